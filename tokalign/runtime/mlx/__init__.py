"""Everything in the runtime that imports mlx: sessions of models, trees, and how ids are chosen.

session.py              passes of a model over whole contexts, counted
    passes_ahead.py         those that run ahead of the host
    taps.py                 hidden states and layers' outputs of passes, for a drafter
    hidden_states.py        finding a model's head, and what goes into it
    draft_session.py        the draft model's: top-k ids, and chains
    to_target_ids.py        its probabilities over target ids
    short_head.py           its head without ids that no text of the user's languages has
cache.py                a model's cache, kept in step with the contexts that it is given
    quantized_cache.py      quantizing it
    layers.py               taking positions back, whatever a layer's kind; which ids it holds
    contexts.py             caches of earlier requests, with which later ones go on
    context_files.py        the same on disk, in chains of files; context_file.py: one of them
    pace.py                 how many ids of a prompt are read in one step
    window_cache.py         the same for sliding windows
batch.py                passes that several sessions share
    batch_split.py          where these are split, and which models can be
tree_attention.py       passes over trees, and whether a model takes them
sampling.py             choosing ids, on the device, or among a few on the host
    noise.py                randomness keyed by seed and position
trained_drafter.py      what is asked of a drafter that was trained for one target, and its ends
    beam_search.py          drafting with one that reads one id after another: a tree
    drafter_folder.py       folders of drafters, and finding the one that belongs to a target
    published_drafter.py    reading the folders of others; the parts that formats share
recurrent_drafter.py    a recurrent drafter: the network and its session
dflash.py               block drafters: DFlash, DFlash 2, DSpark
    dflash_session.py       what one guesses in a round
cached_drafter.py       those that read hidden states and go on from their own outputs
    eagle3.py               EAGLE-3
    mtp.py                  the layer that some checkpoints bring along
gemma4_assistant.py     one that reads the target's own keys and values
weights.py              a model's weights and its sizes
    machine.py              the machine that computes: its speed, its memory
    shape.py                a model of a configuration alone, with random weights
    twins.py                models that share them and have some other modules
"""
