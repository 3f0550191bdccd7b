"""Self-contained HTML and SVG out of measured values: no scripts, no assets, no other package.

`html` and `page` make documents, `axes` and `plots` charts; `run` and `bench` use them. Values in,
text out: nothing here measures, reads or writes a file.
"""
