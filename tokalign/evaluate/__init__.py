"""Measuring, never decoding: benchmarks, texts that play the target, calibration and projection.

    replay.py               texts play the target; recorded_proposals.py keeps a trace of proposals
    project.py              what a trace is worth under any cost curve
    conditions.py           what is compared, and how each condition drafts
    bench.py                every way to draft with loaded models; measurements.py keeps what was
                            measured, comparison.py compares it with plain decoding
    calibrate.py            how long passes take on this machine
    dictionary_saving.py    what dictionaries save on a text, for `tokalign check`

Imports every layer below it (`runtime`, `cost`, `tables`, ...); only `report` and `cli` import it.
"""
