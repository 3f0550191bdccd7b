"""Counting the n-grams of a corpus of any size in bounded memory: `token_ngrams.py` comes first."""
