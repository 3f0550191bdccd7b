"""Pages and tables made of measured values: one self-contained HTML document, or text.

`run` (with `tokens`) and `bench` make the pages out of `page` and `charts`; `tables` makes text.
Values in, text out: nothing here measures, reads or writes a file.

Charts are descriptions in Vega-Lite. vl-convert makes static SVG out of them, without a script, and
keeps the page's CSS variables, which matplotlib refuses as colours. Altair, which writes the same
descriptions, would add five packages and save no lines.
"""
