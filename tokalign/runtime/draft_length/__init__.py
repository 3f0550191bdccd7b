"""Choose in every round how many tokens to draft, from measured costs and learned acceptance.

`decision.py` holds the rules as one pure function. `controller.py` connects it with the decode
loop and the clock, and `free_offers.py` asks the free sources. `knowledge.py` lists what is
learned: `learned_costs.py` of times and `acceptance.py` of right and wrong drafts. `overrides.py`
says in which rounds the controller does something else than what is expected to pay best, and
`opening_knowledge.py` what is known before the first round.
"""
