"""What is learned from a target that reads a corpus: drafters, and draft models.

Training, a target and a corpus in, a folder out. All kinds share labels, steps and runs:

options.py                     what a caller chooses
estimate.py                    what that will take
labelled_corpus.py             target and corpus -> windows of ids -> what follows each
    labels.py                      labels on disk, and the order of batches
losses.py                      what is compared with the target's probabilities
run.py                         a run that can be killed: steps of AdamW, evaluations, the best kept
card.py                        the model card

drafters.py                    a drafter of any kind, on batches of windows
    blocks.py, eagles.py           DFlash, EAGLE-3; `begun.py` is what these share
    kinds.py                       the list of them, and the recurrent one
teaching.py                    a draft model with any tokenizer
    lessons.py                     texts and labels -> what a batch adds up: covers of target tokens

`from_model.py` has the target write a corpus, which is learned, too, or counted.
"""
