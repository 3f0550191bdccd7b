"""Read-only tables, their file format, and how they are found and opened.

`build` makes these tables and `runtime` uses them; the two meet only here.

    token_tree.py       the value that guesses are
    dictionary.py       what every dictionary answers: backoff.py (with binary_fuse.py; for a batch,
                        batch_lookup.py) and dictspec.py; dictionaries.py is several at once
    alignment.py        the tables of a pair; boundary.py and absorption.py say what may follow the
                        committed text
    logit_rows.py       what a model found likely, as a table
    bundle.py           the file format, with header.py and sections.py
    finding.py          where tables are looked for; opening.py reads and checks them
    travelling.py       `push` and `pull` of what is verified (verified.py; drafter_files.py checks
                        a drafter's folder); model_card.py describes it
"""
