"""Read-only tables, their file format, and how they are found and opened.

`build` makes these tables and `runtime` uses them; the two meet only here. `bundle.py` is the file
of every table and `header.py` what it says of itself, with the list of the kinds of tables.
"""
