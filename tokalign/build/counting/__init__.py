"""Counting the n-grams of a corpus of any size in bounded memory.

token_ngrams.py     the whole count, from a corpus to n-grams with counts; read it first
word_encoder.py     a shard of text -> ids of tokens, or of the words of a pack
windows.py          the counting itself: pure functions over arrays of ids
runs.py             files of sorted windows, how many are read as one, and resuming from them
workers.py          processes, as many as fit in the memory
"""
