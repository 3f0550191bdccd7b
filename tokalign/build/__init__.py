"""Building tables offline: a corpus and tokenizers in, bundles out.

The builders are pure functions over iterables. Paths, clocks and writing are in `pipeline.py`; its
stages report progress through `corpus.Stage`. mlx is never imported. A bundle is what decoding gets
from here: `build/` and `runtime/` do not import each other.

    corpus.py                   text in: sources.py finds files and URLs, reads and unpacks their
                                bytes, text_files.py takes the texts out
    counting/                   corpus -> n-gram counts
    dictionary/                 n-gram counts -> the dictionary of a target and a language
    alignment.py                two tokenizers -> the alignment of a pair; merge_sites.py finds the
                                bytes that the target would merge into a token
    learning.py                 a user's own documents, read by documents.py -> a private dictionary

Read `pipeline.py` next, for the order of the steps; `cluster.py` has a dictionary counted by
datatrove on many machines.
"""
