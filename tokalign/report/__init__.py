"""Pages and tables made of measured values: one self-contained HTML document, or text.

`run` and `tables` (of `tokalign bench`) make their pages out of `page`.
Values in, text out: nothing here measures, reads or writes a file.
"""
