"""Read-only tables, their file format, and how they are found and opened.

`build` makes these tables and `runtime` uses them; the two meet only here. To read on: `bundle` for
the file, `opening` for which file is used, `absorption` for the theory of boundaries.
"""
