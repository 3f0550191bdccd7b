"""What a name on the command line stands for: an alias, a local path, or a Hub repository.

Start with `registry.py`, which knows the aliases; `hub.py` looks in the Hub and its cache, and
`packaged_model.py` reads a model that lies inside an installed distribution.
"""
