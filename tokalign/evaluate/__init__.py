"""Measuring, never decoding: benchmarks, texts that play the target, calibration.

    replay.py               texts play the target
    bench.py                every way to draft with loaded models; comparison.py says what is
                            compared, keeps what was measured, and compares it
    calibrate.py            how long passes take on this machine; timed_passes.py times one

Imports every layer below it (`runtime`, `tables`, ...); only `cli` imports it.
"""
