"""What a name on the command line stands for: an alias, a local path, or a Hub repository.

Start with `aliases.py`, which knows what a name can be; `registry.py` finds it, `hub.py` looks in
the Hub and its cache, `packaged_model.py` reads a model that lies inside an installed distribution,
and `memory.py` says whether models fit into this machine. `published_drafters.py` knows drafters.
"""
