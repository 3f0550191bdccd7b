"""Drafters: each guesses how the target goes on, in target ids.

lookup.py               from dictionaries, and from the target's top-k logits at verified rows
context_copy.py         copies of what followed an earlier occurrence of the text's end
    suffix_automaton.py     where that is
neural.py               a draft model, and how far its drafts were right
trained.py              drafters that were trained for the target
tree.py                 one tree of all sources
    growth.py               the tree as it grows, and what models say of it
    mixing.py               one probability for each id that several sources expect
    trust.py                what is learned of the sources
    weights.py              what every source contributes to it, as it was fitted

How much to draft is decided in every round, from what passes cost and what was accepted:

controller.py           the decision, and what is learned of a round's time
    free_offers.py          what the free sources offer, and how often they are asked
    model_drafts.py         what models are expected to draft, and what is learned of it
    losses.py               what drafting has lost
    costs.py                what is learned of times
    shared_costs.py         what rows cost where requests share passes, and which are worth it
    opening_knowledge.py    what is known before the first round
"""
