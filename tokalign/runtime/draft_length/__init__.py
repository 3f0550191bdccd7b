"""Choose in every round how many tokens to draft, from measured costs and learned acceptance.

`planner.py` decides and connects the decision with the clock. `knowledge.py` has what is learned of
drafts, of losses and of what is to be tried again, `learned_costs.py` what is learned of times.
`opening_knowledge.py` has what is known before the first round.
"""
