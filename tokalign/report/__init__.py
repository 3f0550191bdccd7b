"""Pages and tables made of measured values: one self-contained HTML document, or text.

`run` (with `tokens`) and `bench` make their pages out of `page`; `tables` makes text.
Values in, text out: nothing here measures, reads or writes a file.
"""
