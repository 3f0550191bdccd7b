"""What a caller chooses: how a corpus is labelled, how a drafter is trained on the labels, and what
a target writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["greedy", "sampled", "text"]
Loss = Literal["text", "marginal", "kl", "acceptance"]

MOST_PROBABLE = 12
"""Ids of the target whose probabilities a draft model may learn at each position."""

MOST_SEED = (1 << 32) - 1
"""A key of the device has 64 bits, of which the seed has half and the window's number the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelling:
    """Which ids follow a position.

    kind: of the positions of a text, "greedy" and "sampled" are the target's own ids, and "text"
        the text's.
    future: how many ids. The first is the one that the target has committed when a drafter starts;
        the drafter learns to guess the others. temperature, seed: of sampled ids; the seed is at
        most MOST_SEED.
    """

    kind: Kind = "greedy"
    future: int = 5
    temperature: float = 0.7
    seed: int = 0

    @property
    def rows_per_position(self) -> int:
        """How many rows of the target a labelled position costs."""
        return 1 if self.kind == "text" else self.future

    def positions_of(self, window: int) -> int:
        """How many positions are labelled for a window of so many ids, at most."""
        return window - self.future if self.kind == "text" else window


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """tokens: to be written, about. prompts: whether the lines of the corpus are to be answered.

    Otherwise its texts are gone on with, from everywhere in it. seed: has 32 bits.
    """

    tokens: int
    prompts: bool = False
    temperature: float = 0.7
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelOptions:
    """What is labelled, and how.

    positions, held_out: to train on and to measure acceptance on; about as many, and fewer if the
        corpus has fewer. window: ids that the target reads at once.
    seed: of the paragraphs drawn. labelling: what follows the positions to train on; those held out
        always have the target's own greedy ids, if it takes trees.
    """

    positions: int = 1_000_000
    held_out: int = 8_192
    window: int = 256
    seed: int = 0
    labelling: Labelling = field(default_factory=Labelling)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """How a drafter or a draft model is trained on labels.

    epochs: how often each position is seen. batch, candidates, seed: as of `Batches`.
    learning_rate: as of `Recipe`.
    evaluations: how often acceptance is measured on the positions held out, and the state saved.
    patience: evaluations without a better one, after which training stops; None for never.
    losses, lora: of a draft model, as of `teaching.loss_of`, and the rank of LoRA adapters; None to
        train all layers. keep: the share of a draft model's own weights in the result.
    """

    epochs: float = 2.0
    batch: int = 256
    candidates: int | None = 4_096
    learning_rate: float = 1e-3
    evaluations: int = 20
    patience: int | None = 4
    seed: int = 0
    losses: tuple[Loss, ...] = ("marginal",)
    lora: int | None = None
    keep: float = 0.0
