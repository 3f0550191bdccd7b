"""From a draft model's ids to the target's. Nothing in here imports mlx; start at `base.py`.

base.py                 what every translation has in common
exact.py                `exact`, the default between two tokenizers
    committed_text.py       it in the draft's own canonical ids, and which bytes may follow it
    covers.py               the ways to continue it, and the next target token by all of them
growth.py               trees of a draft model, pass by pass
    read_ahead.py           what its first pass reads besides the text
whole_text.py           a whole text: what the draft's rows say of the target's tokens in it
by_token.py             `none`, `intersection` (a draft token is a target token), and `context:P`
"""
