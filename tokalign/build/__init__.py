"""Offline: iterables in, values out. Paths and clocks only in `pipeline.py`."""
