"""Training a recurrent drafter: a target and a corpus in, a drafter folder out.

    options.py                     what a caller chooses
    windows.py                     corpus -> windows of ids
    future_ids.py, labels.py       windows -> hidden states and what follows, on disk
    batches.py, fit.py             labels -> steps of AdamW
    held_out.py, checkpoint.py     how good it is by now; how a killed run goes on
    estimate.py                    what all this will take, before it starts

Read `pipeline.py` next, for the order of the steps.
"""
