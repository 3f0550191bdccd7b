"""Decoding: models and tables in, events out.

A round, to be read in this order:

    loop.py                 propose, verify, commit: the whole round, and the target's verdict
    rounds.py               the context, a proposal, a verdict; who gives them; what goes out

What drafts:

    draft/                  drafters: from models, tables and contexts, the hybrid of them all, and
                            how many tokens to draft in a round
    translation/            a draft model's ids -> the target's
    grammar/                what an output has to match
    cost.py                 what a pass costs on a machine: measured curves, some in curves/
    mlx/                    models: sessions, caches, trees, sampling; all that imports mlx

Around the loop:

    options.py              how to draft and to cache, as asked for
    drafting.py             a method's name -> its drafters
    decoder.py              models, tables and options -> a decoder, from which requests are decoded
    request.py              what is asked for one output
    batch.py                rounds of several generations, in passes that they share
    generate.py             one request: events -> output tokens with text and statistics
    held_back.py            what of a text may be the beginning of a stop text
    statistics.py           events -> figures
    chat.py                 messages -> prompt ids
    remembered.py           what is kept for drafting: by a named session, and between processes
    written_later.py        writing files while decoding goes on
"""
