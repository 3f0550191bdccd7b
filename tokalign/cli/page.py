"""A run as tokens to be shown, with the origin of each, and its page (`page.html`)."""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from tokalign.cli.generation import OUTCOMES, times_plain
from tokalign.cli.output import visible
from tokalign.cli.report import render, timeline_plot
from tokalign.runtime.rounds import Outcome, Round
from tokalign.tokenizer.vocabulary import TargetId, Vocabulary, token_bytes


class Run(NamedTuple):
    """The rounds of a generation, the target's vocabulary, and `Generation.summary`.

    prompt: as it was given. models: who they are, by `target`, `draft` and `drafter`.
    """

    rounds: Sequence[Round]
    vocabulary: Vocabulary[TargetId]
    figures: Mapping[str, Any]
    prompt: str = ""
    models: Mapping[str, str | None] = {}

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token; none for a special one."""
        return token_bytes(self.vocabulary.tokens, token)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownToken:
    """One emitted token of the round number `round`, the first being 1.

    text: the characters that its bytes complete, or a special token's spelling. started: its last
    bytes, if they begin a character that a later token completes. note: its origin.
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
    for number, round_ in enumerate(run.rounds, start=1):
        for index, token in enumerate(round_.emitted):
            data = run.bytes_of(token)
            if not data:  # an unfinished character stays unfinished
                decoder.reset()
            text = decoder.decode(data) if data else spelling(run, token)
            waiting = len(decoder.getstate()[0])
            yield ShownToken(
                text=visible(text),
                started=data[-waiting:] if waiting else b"",
                special=not data,
                outcome=round_.outcome(index),
                round=number,
                note=_note(run, round_, index),
            )


def spelling(run: Run, token: int) -> str:
    """A token on its own; bytes that are no character as \\xNN."""
    data = run.bytes_of(token)
    if not data:
        return run.vocabulary.specials.get(TargetId(token)) or f"<id {token}>"
    return visible(data.decode("utf-8", "backslashreplace"))


def quoted(run: Run, tokens: Iterable[int]) -> str:
    """Write tokens on one line, each in quotation marks, so that spaces show."""
    spelled = (spelling(run, token).replace("\n", "↵").replace("\t", "⇥") for token in tokens)
    return " ".join(f"“{text}”" for text in spelled)


def proposal_in_words(run: Run, round_: Round) -> str:
    """Say what a round proposed; in a tree, a vertical bar precedes each further branch."""
    words = []
    for index, (token, parent) in enumerate(zip(round_.tree.ids, round_.tree.parents, strict=True)):
        words += [*(["|"] if parent != index - 1 else []), quoted(run, [token])]
    return " ".join(words)


def _note(run: Run, round_: Round, index: int) -> str:
    match round_.outcome(index):
        case Outcome.ACCEPTED:
            return f"accepted, from {_origin(round_, round_.path[index])}"
        case Outcome.CORRECTED:
            rejected = (
                f"{quoted(run, [round_.tree.ids[i]])} from {_origin(round_, i)}"
                for i in round_.rejected
            )
            return "instead of " + ", ".join(rejected)
        case Outcome.BONUS:
            return f"bonus, after {round_.accepted} accepted"
        case Outcome.UNDRAFTED:
            return "no draft"


def _origin(round_: Round, index: int) -> str:
    """Who proposed the id at an index, and with what probability."""
    tree = round_.tree
    sure = f" (p = {tree.probabilities[index]:.2f})" if tree.probabilities else ""
    return tree.sources[index] + sure


def run_page(run: Run) -> str:
    """Make one HTML document that needs nothing else. Cost: some microseconds per token."""
    tokens = list(shown_tokens(run))
    about = {**run.models, **{n: run.figures.get(n) for n in ("method", "translation", "seed")}}
    made = render(
        "page.html",
        run=run,
        title="How this text was decoded",
        about=", ".join(f"{name} {v}" for name, v in about.items() if v is not None),
        prompt=visible(run.prompt),
        timeline=timeline_plot(run.rounds),
        compared=times_plain(run.rounds),
        outcomes=OUTCOMES,
        counts=Counter(token.outcome for token in tokens),
        tokens=tokens,
        quoted=partial(quoted, run),
        proposal=partial(proposal_in_words, run),
    )
    return made.encode("utf-8", "replace").decode()  # half a character becomes a question mark
