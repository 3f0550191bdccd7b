"""A run, round by round: what was proposed and what became of it.

`decode --json` saves a run; `report` shows it and `project` replays it under another machine's
costs. Tokens are written as bytes, so that neither needs the tokenizer and half a character stays
what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Self

from tokalign.errors import UsageError


class Outcome(StrEnum):
    """How an emitted token came about."""

    ACCEPTED = "accepted"
    """Proposed, and what the target chose too."""
    CORRECTED = "corrected"
    """The target's own, in the place of a proposed token that it rejected."""
    BONUS = "bonus"
    """The target's own, behind a proposal that was accepted to its end."""
    UNDRAFTED = "undrafted"
    """The target's own, in a round without a proposal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One pass of the target.

    limit: how many ids the drafter was asked for at most. sources: one per proposed id.
    parents, probabilities: as in a `Proposal`; parents are empty for a chain.
    accepted: how many of the emitted ids were proposed; what follows them is the target's own.
    seconds: of the whole round, `model_seconds` of it in passes of either model.
    """

    limit: int
    proposed: tuple[int, ...]
    sources: tuple[str, ...]
    parents: tuple[int, ...] = ()
    probabilities: tuple[float, ...] = ()
    accepted: int
    emitted: tuple[int, ...]
    draft_passes: int = 0
    seconds: float = 0.0
    model_seconds: float = 0.0

    @property
    def path(self) -> list[int]:
        """Which of the proposed ids were accepted: their indices, in the order of the text."""
        path: list[int] = []
        for index, (token, parent) in enumerate(zip(self.proposed, self.behind, strict=True)):
            if len(path) == self.accepted:
                break
            if parent == (path[-1] if path else -1) and token == self.emitted[len(path)]:
                path.append(index)
        return path

    @property
    def rejected(self) -> list[int]:
        """Which of the proposed ids stood where the target's own one stands now: their indices."""
        last = (self.path or [-1])[-1]
        return [index for index, parent in enumerate(self.behind) if parent == last]

    def outcome(self, index: int) -> Outcome:
        """How the emitted token at `index` came about."""
        if index < self.accepted:
            return Outcome.ACCEPTED
        if not self.proposed:
            return Outcome.UNDRAFTED
        return Outcome.CORRECTED if self.rejected else Outcome.BONUS

    @property
    def behind(self) -> Sequence[int]:
        """For each proposed id the index of the one it stands behind, -1 for the committed text."""
        return self.parents or range(-1, len(self.proposed) - 1)

    def to_json(self) -> dict[str, Any]:
        """Its fields; seconds to a microsecond, probabilities to four places."""
        return asdict(self) | {
            "probabilities": [round(p, 4) for p in self.probabilities],
            "seconds": round(self.seconds, 6),
            "model_seconds": round(self.model_seconds, 6),
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Self:
        """Raises: KeyError, TypeError or ValueError for anything that is not a round."""
        lists = ("proposed", "sources", "parents", "probabilities", "emitted")
        values = {field.name: saved[field.name] for field in fields(cls)}
        found = cls(**values | {name: tuple(values[name]) for name in lists})
        if len(found.sources) != len(found.proposed):
            raise ValueError("a source is needed for each proposed id")
        if len(found.path) != found.accepted:
            raise ValueError("what was accepted was not proposed")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRun:
    """What `decode --json` wrote.

    token_bytes: of every ordinary token that was proposed or emitted; special_tokens: the spelling
    of the others. figures: everything else in the file, under the names of `docs/metrics.md`.
    """

    rounds: tuple[Round, ...]
    token_bytes: Mapping[int, bytes]
    special_tokens: Mapping[int, str]
    figures: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """One object: the figures, then rounds and tokens (bytes in hexadecimal)."""
        return {
            **self.figures,
            "trace": [one.to_json() for one in self.rounds],
            "token_bytes": {str(i): data.hex() for i, data in self.token_bytes.items()},
            "special_tokens": {str(i): text for i, text in self.special_tokens.items()},
        }

    @classmethod
    def from_json(cls, saved: Any, *, name: str) -> Self:
        """Raises: UsageError, with `name`, for anything that `decode --json` does not write."""
        try:
            figures = dict(saved)
            return cls(
                rounds=tuple(map(Round.from_json, figures.pop("trace"))),
                token_bytes={
                    int(i): bytes.fromhex(data) for i, data in figures.pop("token_bytes").items()
                },
                special_tokens={int(i): t for i, t in figures.pop("special_tokens").items()},
                figures=figures,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                f"{name} is not a run that can be shown ({type(error).__name__}: {error}); "
                "save one with: tokalign decode ... --json > RUN.json"
            ) from error


def tokens_of(
    rounds: Sequence[Round], tokens: Sequence[bytes], specials: Mapping[int, str]
) -> tuple[dict[int, bytes], dict[int, str]]:
    """Bytes and special spellings of the ids that occur in `rounds`, as a `SavedRun` holds them."""
    seen = sorted(set(_ids(rounds)))
    ordinary = {i: tokens[i] for i in seen if i < len(tokens) and tokens[i]}
    return ordinary, {i: specials.get(i, "") for i in seen if i not in ordinary}


def _ids(rounds: Sequence[Round]) -> Iterator[int]:
    for one in rounds:
        yield from one.proposed
        yield from one.emitted
