"""What a name on the command line stands for: an alias, a local path, or a Hub repository.

Start with `registry.py`; `aliases.py` reads registry.toml, `hub.py` looks in the Hub and its cache.
"""
