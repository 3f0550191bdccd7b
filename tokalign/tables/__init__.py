"""Read-only tables, their file format, and how they are found and opened.

`build` makes these tables and `runtime` uses them; the two meet only here.

    bundle.py           the file of every table, its writer and its reader; header.py: what it says
    dictionary.py       what every dictionary answers, as backoff.py does (with binary_fuse.py)
    alignment.py        the tables of a pair
    logit_rows.py       what a model found likely, as a table
    finding.py          where tables and drafters are looked for, and the files of a drafter
    opening.py          tables, read and checked
    token_tree.py       the value that guesses are
"""
