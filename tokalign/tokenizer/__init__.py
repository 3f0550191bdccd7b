"""Tokenizers: a file of any kind becomes a vocabulary (id -> bytes) and an encoder.

Imports `bpe`. Start with `vocabulary.py` and `tokenizer.py`. `files.py` reads tokenizer files, with
a reader for each kind that returns a `spec.py`: `tokenizer_json.py`, `sentencepiece.py` and
`ranks.py`. `self_check.py` compares what was read with the library that owns the format, and finds
the level at which it can be used. What only the library knows is in `library.py`. `foreign.py` has
tokenizers that are programs.
"""
