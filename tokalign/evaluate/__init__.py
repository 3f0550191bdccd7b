"""Measuring, never decoding: replay, emulation, benchmarks, calibration and projection.

    replay.py               texts play the output; recorded_proposals.py keeps a trace of proposals
    project.py              what a trace is worth under any cost curve
    bench.py                every way to draft with loaded models; measurements.py keeps what was
                            measured, comparison.py compares it with plain decoding
    calibrate.py            how long passes take on this machine
    sweep.py                dictionaries of many kinds and sizes; with variants.py
    dictionary_saving.py    what dictionaries save on a text, for `tokalign check`
    study/                  the experiments of the papers, and results that others can check

Imports every layer below it (`runtime`, `cost`, `tables`, ...); only `report` and `cli` import it.
"""
