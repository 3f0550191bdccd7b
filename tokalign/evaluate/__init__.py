"""Measuring, never decoding: replay, emulation, benchmarks, calibration and projection.

Imports every layer below it (`runtime`, `cost`, `tables`, ...); only `report` and `cli` import it.
"""
