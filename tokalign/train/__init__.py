"""What is learned from a target that reads a corpus: recurrent drafters, and tables of likely ids.

Training a recurrent drafter, a target and a corpus in, a drafter folder out:

options.py                     what a caller chooses
labelled_corpus.py             target and corpus -> windows of ids -> labels
    future_ids.py                  window -> hidden states, and the ids that follow
    labels.py                      labels on disk, and batches of them
training.py                    labels -> drafter folder, and how many guesses are accepted
    fit.py                         steps of AdamW, and how a killed run goes on
estimate.py                    what all this will take, before it starts

`tokalign build --from-model` has two modules: `own_texts.py` has the target write a corpus, and
`logit_table.py` makes the table that a logit store begins with. `writing.py` serves labels, too.
"""
