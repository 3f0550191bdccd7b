"""Read-only tables, the one file format they live in, and how they are found and opened.

Imports `bpe` and `tokenizer`. `build` writes these tables and `runtime` reads them.
"""
