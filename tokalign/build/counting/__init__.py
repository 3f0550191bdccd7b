"""Counting the n-grams of a corpus of any size in bounded memory.

Token n-grams, for the back-off table, are counted on all cores:

    token_ngrams.py     the whole count, from a corpus to n-grams with counts; read it first
    steps.py            its steps, each done share by share, from files to files; with shares.py and
                        least_count.py
    windows.py          the counting itself: pure functions over arrays of ids
    word_encoder.py     a shard of text -> ids, each word encoded once; with batch_bpe.py,
                        hash_index.py and sequence_pool.py
    run_files.py        the tasks inside a step, and the files they leave
    workers.py, workspace.py, memory_budget.py
                        processes, finished files to resume from, and how much memory each may use

Word n-grams, for DictSpec's table, are counted in memory by `word_ngrams.py`.
"""
