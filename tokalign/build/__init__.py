"""Building tables offline: a corpus and tokenizers in, bundles out. mlx is never imported.

    corpus.py                   text in: sources.py finds files and URLs, text_files.py reads them
    counting/                   corpus -> n-gram counts; cluster.py runs it on many machines
    dictionary/                 n-gram counts -> the dictionary of a target and a language
    pack.py                     n-gram counts of words -> a pack; compile_pack.py makes dictionaries
    alignment.py                two tokenizers -> the alignment of a pair
    logits.py                   what a target says of a corpus -> the table of a logit store
    learning.py                 a user's own documents, read by documents.py -> a private dictionary

`pipeline.py` runs the recipes. `build/` and `runtime/` do not import each other.
"""
