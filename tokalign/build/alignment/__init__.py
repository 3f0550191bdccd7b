"""The alignment of a draft and a target tokenizer: which tokens they share, and where the target
merges across a boundary.

`alignment_bundle.py` builds all of it as a bundle; read it first.

    merge_sites.py      bytes that the target would merge into a token
    fit.py              how often all this matters in a text; recorded in the bundle
"""
