"""From n-gram counts to a dictionary; `dictionary_bundle.py` comes first."""
