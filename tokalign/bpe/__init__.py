"""Byte-pair encoding as theory: what a canonical encoding is, and which tokens may meet in one.

Imports nothing else of tokalign but its errors. Read `merges.py` (rules and merging), `encoder.py`
(bytes to ids), `validity.py` (which tokens may stand side by side), `absorption.py` (which bytes
may not follow a token), then `incremental.py` (a text that grows). The proofs are in
`docs/alignment.md`.
"""
