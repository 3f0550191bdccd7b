"""From n-gram counts to the dictionary of a target tokenizer and a language.

`dictionary_bundle.py` builds it as a bundle; read it first.

    back-off    ngram_tree.py links the counted n-grams and gives them probabilities, pruning.py
                chooses the contexts worth storing, backoff.py packs them

A module that builds has the name of the one in `tables/` that reads.
"""
