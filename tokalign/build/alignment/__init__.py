"""The alignment of a draft and a target tokenizer: which tokens they share, and where the target
merges across a boundary.

`alignment_bundle.py` builds all of it as a bundle; read it first.

    merge_sites.py      bytes that the target would merge into a token; it asks followers.py which
                        tokens may follow which, and how tokens are merged;
                        it holds the vocabulary as a tree of prefixes
    fit.py              how often all this matters in a text; recorded in the bundle
"""
