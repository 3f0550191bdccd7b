"""Byte-pair encoding as theory: what a canonical encoding is, and which tokens may meet in one.

Imports nothing else of tokalign but its errors. Read `merges.py` (rules and merging), `encoder.py`
(bytes to ids, of whole texts and of one that grows), `validity.py` (which tokens may stand side by
side), then `absorption.py` (which bytes may not follow a token). The proofs are in
`docs/alignment.md`.
"""

from __future__ import annotations

from typing import TypeVar

Id = TypeVar("Id", bound=int)
"""The ids of one tokenizer; `tokenizer/vocabulary.py` tells the draft's from the target's."""
