"""From a draft model's ids to the target's. Nothing in here imports mlx; start at `base.py`.

base.py                 what every translation has in common
exact.py                `exact`, the default between two tokenizers
    draft_text.py           the committed text in the draft's own canonical ids
    cover_search.py         which target token the draft model expects next
    cover_translator.py     what a cover adds, in bytes and in target ids
    exact_continuation.py   a chain after the chosen cover
growth.py               trees of a draft model, pass by pass
    token_trees.py          trees in which every draft token is one target token
shared_ids.py           ids as they are: `none`
retokenizing.py         baseline: `context:P`
intersection.py         baseline: `intersection`
"""
