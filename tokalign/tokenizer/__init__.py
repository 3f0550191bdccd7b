"""Tokenizers: a file of any kind becomes a vocabulary (id -> bytes) and an encoder.

The path: `files.py` opens a file, a reader (`tokenizer_json.py`, `sentencepiece.py`, `ranks.py`)
returns a `spec.py`, and `self_check.py` compares the `tokenizer.py` made of it with what mlx-lm
runs (`reference.py`). What passes is used, and noted on disk (`note.py`). Start with
`vocabulary.py` and `tokenizer.py`. `bpe/` is the theory; `library.py` and `backend.py` have what
the `tokenizers` library does, `unigram.py` models that are not BPE, and `foreign.py` tokenizers
that are programs.
"""
