"""Pages and tables made of measured values: one self-contained HTML document, or text.

`run`, `bench` and `sweep` make the pages out of `page` and `charts`; `tables` makes text.
Values in, text out: nothing here measures, reads or writes a file.

Charts were drawn by 480 lines of our own until a trial on the page of `tokalign bench`, at 1280 and
390 pixels, light and dark, showed that Vega-Lite draws them as well. vl-convert makes static SVG
out of it, without a script, and keeps the page's CSS variables, which matplotlib refuses as
colours. Altair, which writes the same descriptions, would add five packages and save no lines.
"""
