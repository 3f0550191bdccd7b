"""Everything in the runtime that imports mlx: sessions of models, trees, and how ids are chosen.

session.py              passes of a model over whole contexts, counted and timed
    target_session.py       the target's
    draft_session.py        the draft model's: top-k ids and drawn chains
cache.py                a model's cache, kept in step with the contexts that it is given
    held_ids.py             which ids a cache holds, noted on the cache itself
    layers.py               taking positions back, whatever the kind of a layer's cache
    window_cache.py         the same for sliding windows
tree_attention.py       passes over trees, and whether a model takes them
    twin.py                 module objects that share the weights of a model
sampling.py             choosing ids, on the device, or among a few on the host
    processors.py           logits processors, each row with its own history
    noise.py                randomness keyed by seed and position
    drawing.py              drawing a draft over target ids
recurrent_drafter.py    a recurrent drafter's network
    hidden_state.py         the target's last hidden state, from which it starts
    drafter_session.py      a drafter at work for one request, and its beam search
    drafter_folder.py       its files, and finding the drafter that belongs to a target
weights.py              a model's weights, and their device
model_arguments.py      the sizes of a model's vocabulary and context
machine.py              for which machine and models a measured cost curve is valid
"""
