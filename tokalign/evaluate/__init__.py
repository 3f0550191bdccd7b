"""Measuring, never decoding: benchmarks, texts that play the target, calibration.

    replay.py               texts play the target
    bench.py                every way to draft with loaded models; comparison.py says what is
                            compared, keeps what was measured, and compares it
    calibrate.py            how long passes take on this machine; timed_passes.py times one
    drafter_fit.py          whether a trained drafter fits, before its weights are downloaded
    machine_report.py       what `bench --publish` writes

Imports every layer below it (`runtime`, `tables`, ...); only `cli` imports it.
"""
