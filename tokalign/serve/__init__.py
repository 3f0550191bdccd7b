"""The server: mlx-lm's HTTP API and flags, decoded by tokalign.

It is built on `mlx_lm.server`. That module's handler parses requests, runs tool parsers and writes
answers and event streams; its prompt cache keeps contexts. What is new here:

    settings.py      what the server is told at its start
    admission.py     refusals; who may ask, and how much
    body.py          the fields of a request that mlx-lm does not check
    metrics.py       counts for `/metrics`
    handler.py       one HTTP request: paths, statuses, usage
    models.py        the models that are served
    job.py           one request while it is answered: its ids, its text, its queue
    contexts.py      caches and outputs that later requests go on with
    speculation.py   a request that is alone: its own decoder, rounds of drafting and verification
    batch.py         requests that are there together: mlx-lm's batches
    scheduler.py     the loop that starts, moves and ends requests
    server.py        sockets, signals, start and end

Only the scheduler's thread touches models and caches. Read next: `scheduler.py`.
"""
