"""Byte-pair encoding as theory: encoder, pair validity, pre-tokenizers, stable prefixes.

Imports nothing else of tokalign. Start with `encoder.py`; its theory is in
`docs/lossless.md`.
"""
