"""What dictionaries save on a text: those there are, and one of the text's own kind.

The second is built from nine tenths of the text and decodes the rest. So it says something of every
language and domain, before any table of it exists. It is a lower bound: more text of the same kind
makes a better table.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokalign.build.corpus import Corpus
from tokalign.build.dictionary.dictionary_bundle import BackoffOptions, build_dictionary
from tokalign.evaluate.replay import emulate
from tokalign.runtime.drafting import Drafting
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.dictionary import Dictionary
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

MOST_TOKENS = 20_000
"""So many tokens are decoded."""

_RUN = 20
"""Lines are held out in runs of this length, so that few neighbours of theirs are counted."""

_LEAST_LINES = 10 * _RUN


@dataclass(frozen=True, slots=True, kw_only=True)
class DictionarySaving:
    """Tokens per pass of the target when it writes this text, if a verified row cost nothing.

    found: with the dictionaries that there are for the target; None if there are none.
    own: with one of nine tenths of the text, on the rest; None if the text is too short.
    """

    found: float | None
    own: float | None


def measure_dictionaries(
    target: Tokenizer[TargetId], lines: Sequence[str], found: Dictionary | None
) -> DictionarySaving:
    """What `found`, and a dictionary of the text itself, save on the lines.

    Cost: about 2 s per megabyte of text.
    """
    held = [line for number, line in enumerate(lines) if number // _RUN % 10 == 0]
    rest = [line for number, line in enumerate(lines) if number // _RUN % 10]
    return DictionarySaving(
        found=None if found is None else _saving(target, held, found),
        own=_saving(target, held, _build(target, rest)) if len(lines) >= _LEAST_LINES else None,
    )


def _saving(target: Tokenizer[TargetId], lines: Sequence[str], table: Dictionary) -> float:
    texts: list[list[TargetId]] = []
    left = MOST_TOKENS
    for line in lines:
        texts.append(target.encode(line)[:left])
        left -= len(texts[-1])
        if left <= 0:
            break
    return emulate(Drafting(method="dictionary", dictionary=table), texts).tokens_per_round


def _build(target: Tokenizer[TargetId], lines: Sequence[str]) -> Dictionary:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines.txt"
        path.write_text("\n".join(lines), encoding="utf-8")
        built = build_dictionary(target, Corpus([path]), BackoffOptions(), language="und")
        return BackoffTable.from_bundle(built)
