"""Byte-pair encoding as theory: what a canonical encoding is, and which tokens may meet in one.

Imports nothing else of tokalign but its errors. Read `validity.py` (merges, and which tokens may
stand side by side), `encoder.py` (bytes to ids, of whole texts and of one that grows), then
`absorption.py` (which bytes may not follow a token). The proofs are in `docs/alignment.md`.
"""

from __future__ import annotations

from typing import TypeVar

Id = TypeVar("Id", bound=int)
"""The ids of one tokenizer; `tokenizer/vocabulary.py` tells the draft's from the target's."""
