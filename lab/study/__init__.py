"""The study: the experiments of the papers on one machine, and a result that others can check.

`protocol.py` says what is measured, `run.py` measures it, `watch.py` looks at the machine.
A measurement becomes a `Sample` (`samples.py`), which is what a result holds; every figure is
computed from the samples and the cost curves alone (`figures.py`, `cost_model.py`, `waterfall.py`),
so that `check.py` can compute them again. `attribution.py` asks an oracle (`oracle.py`)
why guesses failed, and `causes.py` counts the answers.
"""
