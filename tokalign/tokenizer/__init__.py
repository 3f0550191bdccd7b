"""Read tokenizer files of any kind as a vocabulary (id -> bytes) and an encoder.

Imports `bpe`. Start with `tokenizer.py`; `registry.py` finds what a name stands for.
"""
