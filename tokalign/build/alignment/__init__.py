"""The alignment of a draft and a target tokenizer: which tokens they share, and where the target
merges across a boundary.

`alignment_bundle.py` builds all of it as a bundle, and counts how often it matters in a text; read
it first. `merge_sites.py` finds the bytes that the target would merge into a token.
"""
