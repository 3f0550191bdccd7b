"""Choose in every round how many tokens to draft, from measured costs and learned acceptance.

`planner.py` decides and connects the decision with the clock. `knowledge.py` lists what is learned:
`learned_costs.py` of times, `Acceptance` of right and wrong drafts, `budget.py` of losses and of
what is to be tried again. `opening_knowledge.py` has what is known before the first round.
"""
