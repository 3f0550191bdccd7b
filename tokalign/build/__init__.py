"""Offline: iterables in, values out. No paths, clocks or progress bars inside, but `pipeline.py`."""
