"""A run as tokens to be shown: text, outcome, and in words where each came from."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokalign.runtime.rounds import Outcome, Round
from tokalign.tokenizer.vocabulary import Vocabulary

OUTCOMES = {
    Outcome.ACCEPTED: "accepted draft",
    Outcome.CORRECTED: "rejected and corrected",
    Outcome.BONUS: "bonus",
    Outcome.UNDRAFTED: "no draft",
}
"""What readers are told of each outcome."""

_PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"}
_VISIBLE = str.maketrans(
    _PICTURES | {0x7F: "\u2421"} | {code: f"\\x{code:x}" for code in range(0x80, 0xA0)}
)
"""Control characters, which HTML does not allow, become pictures or escapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The rounds of a generation, with the spelling of every token in them.

    token_bytes: of every ordinary token that was proposed or emitted; special_tokens: the spelling
    of the others. figures: as of `Generation.summary`.
    """

    rounds: Sequence[Round]
    token_bytes: Mapping[int, bytes]
    special_tokens: Mapping[int, str]
    figures: Mapping[str, Any]

    @classmethod
    def of(
        cls, rounds: Sequence[Round], vocabulary: Vocabulary[Any], figures: Mapping[str, Any]
    ) -> Run:
        """A run of the target with this vocabulary."""
        tokens, specials = vocabulary.tokens, vocabulary.specials
        seen = {int(i) for one in rounds for i in (*one.tree.ids, *one.emitted)}
        ordinary = {i: tokens[i] for i in seen if i < len(tokens) and tokens[i]}
        return cls(
            rounds=rounds,
            token_bytes=ordinary,
            special_tokens={i: specials.get(i, "") for i in seen if i not in ordinary},
            figures=figures,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownToken:
    """One emitted token of the round number `round`, the first being 1.

    text: the characters that its bytes complete, or a special token's spelling. started: its last
    bytes, if they begin a character that a later token completes. note: where it came from.
    """

    text: str
    started: bytes
    special: bool
    outcome: Outcome
    round: int
    note: str


def shown_tokens(run: Run) -> Iterator[ShownToken]:
    """Yield every emitted token once, in order."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for number, one in enumerate(run.rounds, start=1):
        for index, token in enumerate(one.emitted):
            data = run.token_bytes.get(token)
            if data is None:  # an unfinished character stays unfinished
                decoder.reset()
            text = spelling(run, token) if data is None else decoder.decode(data)
            waiting = len(decoder.getstate()[0])
            yield ShownToken(
                text=text.translate(_VISIBLE),
                started=(data or b"")[-waiting:] if waiting else b"",
                special=data is None,
                outcome=one.outcome(index),
                round=number,
                note=_note(run, one, index),
            )


def spelling(run: Run, token: int) -> str:
    """A token on its own; bytes that are no character as \\xNN."""
    data = run.token_bytes.get(token)
    if data is None:
        return run.special_tokens.get(token) or f"<id {token}>"
    return data.decode("utf-8", "backslashreplace").translate(_VISIBLE)


def quoted(run: Run, tokens: Iterable[int]) -> str:
    """Write tokens on one line, each in quotation marks, so that spaces show."""
    spelled = (spelling(run, token).replace("\n", "↵").replace("\t", "⇥") for token in tokens)
    return " ".join(f"“{text}”" for text in spelled)


def proposal_in_words(run: Run, one: Round) -> str:
    """Say what a round proposed; in a tree, a vertical bar precedes each further branch."""
    words = []
    for index, (token, parent) in enumerate(zip(one.tree.ids, one.tree.parents, strict=True)):
        words += [*(["|"] if parent != index - 1 else []), quoted(run, [token])]
    return " ".join(words)


def _note(run: Run, one: Round, index: int) -> str:
    match one.outcome(index):
        case Outcome.ACCEPTED:
            return f"accepted, from {_origin(one, one.path[index])}"
        case Outcome.CORRECTED:
            rejected = (
                f"{quoted(run, [one.tree.ids[i]])} from {_origin(one, i)}" for i in one.rejected
            )
            return "instead of " + ", ".join(rejected)
        case Outcome.BONUS:
            return f"bonus, after {one.accepted} accepted"
        case Outcome.UNDRAFTED:
            return "no draft"


def _origin(one: Round, index: int) -> str:
    """Who proposed the id at an index, and with what probability."""
    tree = one.tree
    sure = f" (p = {tree.probabilities[index]:.2f})" if tree.probabilities else ""
    return tree.sources[index] + sure
