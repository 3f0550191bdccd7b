"""From a draft model's ids to the target's. Nothing in here imports mlx; start at `base.py`."""
