"""The type variable of ids, so that an encoder speaks the ids of one tokenizer."""

from __future__ import annotations

from typing import TypeVar

Id = TypeVar("Id", bound=int)
"""The ids of one tokenizer; `tokenizer/vocabulary.py` tells the draft's from the target's."""
