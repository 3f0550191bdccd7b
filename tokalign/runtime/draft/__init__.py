"""Drafters: each guesses how the target goes on, in target ids.

lookup.py               from dictionaries, and what the target found likely at verified rows
context_copy.py         copies of what followed an earlier occurrence of the text's end
neural.py               a draft model, and how far its drafts were right
hybrid.py               one tree of all sources
    mixing.py               one probability for each id that several sources expect
"""
