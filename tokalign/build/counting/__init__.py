"""Counting the n-grams of a corpus of any size in bounded memory.

Token n-grams, for the back-off table, are counted on all cores:

    token_ngrams.py     the whole count, from shards of text to n-grams with counts; read it first
    windows.py          the counting itself: pure functions over arrays of ids
    word_encoder.py     a shard of text -> ids, each word encoded once; with batch_bpe.py,
                        hash_index.py and sequence_pool.py
    run_files.py        the same steps as tasks from files to files
    workers.py, workspace.py, memory_budget.py
                        processes, finished files to resume from, and how much memory each may use

Word n-grams, for DictSpec's table, are counted in memory by `word_ngrams.py`.
"""
