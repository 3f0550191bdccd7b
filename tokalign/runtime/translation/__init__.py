"""From a draft model's ids to the target's. Nothing in here imports mlx; start at `base.py`.

base.py                 what every translation has in common
exact.py                `exact`, the default between two tokenizers: cover search and trees
    committed_text.py       it in the draft's own canonical ids, and which bytes may follow it
    exact_chain.py          the same as a chain
growth.py               trees of a draft model, pass by pass
by_token.py             `none`, `intersection` (a draft token is a target token), and `context:P`
"""
