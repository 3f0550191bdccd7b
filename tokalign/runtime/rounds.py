"""A round of the decode loop: what was proposed and what became of it.

The loop yields rounds as its events, `decode --json` saves them, `report` shows them and `project`
replays them under another machine's costs. Saved tokens are written as bytes, so that a reader
needs no tokenizer and half a character stays what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Self, TypeAlias

from tokalign.errors import UsageError
from tokalign.json_text import finite_number, parents_of, text_of, whole_number
from tokalign.runtime.proposal import TARGET, Array
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

FinishReason: TypeAlias = Literal["stop", "length"]


class Outcome(StrEnum):
    """How an emitted token came about."""

    ACCEPTED = "accepted"
    """Proposed, and the target chose it too."""
    CORRECTED = "corrected"
    """The target's own, in the place of a proposed token that it rejected."""
    BONUS = "bonus"
    """The target's own, after a proposal that was accepted to its end."""
    UNDRAFTED = "undrafted"
    """The target's own, in a round without a proposal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One pass of the target: the proposal, the verdict and the time they took.

    limit: how many ids the drafter was asked for at most. tree: what it proposed.
    path: indices of the proposed ids that were accepted.
    emitted: the accepted ids, then the target's own; already committed.
    rows: rows that the target computed, steps that fill in a long prompt excluded.
    draft_passes, counts, translation_seconds: as in a `Proposal`.
    seconds: of the whole round, `model_seconds` of it in passes of either model.
    logprobs: for each emitted id f[vocabulary], lazy; None when no model was asked. Not saved.
    ends: why the generation ends with this round; None if it goes on. Not saved.
    """

    limit: int
    tree: TokenTree
    path: tuple[int, ...]
    emitted: tuple[TargetId, ...]
    rows: int = 1
    draft_passes: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    model_seconds: float = 0.0
    translation_seconds: float = 0.0
    logprobs: Sequence[Array] | None = field(default=None, compare=False, repr=False)
    ends: FinishReason | None = field(default=None, compare=False)

    @property
    def accepted(self) -> int:
        """How many of the emitted ids were proposed; those after them are the target's own."""
        return len(self.path)

    @property
    def sources(self) -> tuple[str, ...]:
        """For each emitted id the drafter that proposed it, or "target"."""
        own = len(self.emitted) - len(self.path)
        return (*[self.tree.sources[i] for i in self.path], *[TARGET] * own)

    @property
    def rejected(self) -> list[int]:
        """Indices of the proposed ids that stood in the place of the target's own id."""
        last = self.path[-1] if self.path else -1
        return [index for index, parent in enumerate(self.tree.parents) if parent == last]

    def outcome(self, index: int) -> Outcome:
        """How the emitted token at `index` came about."""
        if index < self.accepted:
            return Outcome.ACCEPTED
        if not self.tree:
            return Outcome.UNDRAFTED
        return Outcome.CORRECTED if self.rejected else Outcome.BONUS

    def to_json(self) -> dict[str, Any]:
        """Its fields; seconds to a microsecond, probabilities to four places."""
        return {
            "limit": self.limit,
            "proposed": list(self.tree.ids),
            "parents": list(self.tree.parents),
            "sources": list(self.tree.sources),
            "probabilities": [round(p, 4) for p in self.tree.probabilities],
            "accepted": self.accepted,
            "emitted": list(self.emitted),
            "rows": self.rows,
            "draft_passes": self.draft_passes,
            "seconds": round(self.seconds, 6),
            "model_seconds": round(self.model_seconds, 6),
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Self:
        """Raises: KeyError, TypeError or ValueError for anything that is not a saved round."""
        ids = _ids_of(saved["proposed"])
        tree = TokenTree(
            ids,
            parents_of(saved["parents"] or range(-1, len(ids) - 1)),
            tuple(map(text_of, saved["sources"])),
            tuple(map(finite_number, saved["probabilities"])),
        )
        emitted = _ids_of(saved["emitted"])
        accepted = whole_number(saved["accepted"])
        path = tree.path_of(emitted[:accepted])
        if len(path) != accepted:
            raise ValueError("what was accepted was not proposed")
        return cls(
            limit=whole_number(saved["limit"], most=1 << 62),
            tree=tree,
            path=tuple(path),
            emitted=emitted,
            rows=whole_number(saved.get("rows", 1 + len(ids))),
            draft_passes=whole_number(saved["draft_passes"]),
            seconds=finite_number(saved["seconds"]),
            model_seconds=finite_number(saved["model_seconds"]),
        )


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
            whole_number(figures.get("prompt_tokens", 0))
            finite_number(figures.get("tokens_per_second") or 0)
            return cls(
                rounds=tuple(map(Round.from_json, figures.pop("trace"))),
                token_bytes={
                    int(i): bytes.fromhex(data) for i, data in figures.pop("token_bytes").items()
                },
                special_tokens={
                    int(i): text_of(t) for i, t in figures.pop("special_tokens").items()
                },
                figures=figures,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                f"{name} is not a run that can be shown ({type(error).__name__}: {error}); "
                "save one with: tokalign decode ... --json > RUN.json"
            ) from error


def tokens_of(
    rounds: Sequence[Round], tokens: Sequence[bytes], specials: Mapping[TargetId, str]
) -> tuple[dict[int, bytes], dict[int, str]]:
    """Bytes and special spellings of the ids that occur in `rounds`, as a `SavedRun` holds them."""
    seen = sorted(set(_ids(rounds)))
    ordinary: dict[int, bytes] = {i: tokens[i] for i in seen if i < len(tokens) and tokens[i]}
    return ordinary, {i: specials.get(i, "") for i in seen if i not in ordinary}


def _ids_of(saved: Sequence[Any]) -> tuple[TargetId, ...]:
    return tuple(TargetId(whole_number(one)) for one in saved)


def _ids(rounds: Sequence[Round]) -> Iterator[TargetId]:
    for one in rounds:
        yield from one.tree.ids
        yield from one.emitted
