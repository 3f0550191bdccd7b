"""Drafters: each guesses how the target goes on, in target ids.

lookup.py               from dictionaries, and what the target found likely at verified rows
context_copy.py         copies of what followed an earlier occurrence of the text's end
neural.py               a draft model, and how far its drafts were right
hybrid.py               one tree of all sources
    mixing.py               one probability for each id that several sources expect

How many tokens to draft is decided in every round, from measured costs and learned acceptance:

planner.py              the decision, and its connection with the clock
    knowledge.py            what is learned of drafts, of losses and of what is to be tried again
    learned_costs.py        what is learned of times
    opening_knowledge.py    what is known before the first round
"""
