"""What a caller chooses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tokalign.errors import UsageError

Kind = Literal["greedy", "sampled", "text"]
DrafterKind = Literal["redrafter", "dflash", "eagle3", "model"]
Loss = Literal["text", "marginal", "kl", "acceptance"]

OWN_LOSSES: tuple[Loss, ...] = ("kl",)
"""What is learned of a text that the target wrote, in turn with its greedy ids."""

STRIDE = 4
"""A step drafts blocks after every fourth position of its windows, an epoch after each of them."""

MEASURED = 64
"""Drafts of a batch where acceptance is measured."""

MOST_PROBABLE = 12
"""Ids of the target whose probabilities a draft model may learn at each position."""

LEAST_WINDOW = 2
"""Ids that a target reads at once, at least. Its own windows and long drafts may leave few."""

MOST_SEED = (1 << 32) - 1
"""A key of the device has 64 bits, of which the seed has half and the window's number the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelling:
    """Which ids follow a position.

    kind: the target's own ids, "greedy" or "sampled", or those of the "text". future: how many; the
        first one is committed when a drafter starts, which guesses the others. 0 for a draft model.
    temperature, seed (at most MOST_SEED): of sampled ids. taps: the layers whose outputs a drafter
        reads; none for the last hidden state. probable: how many of the target's most probable ids
        are kept at each guess, with probabilities. keeps_states: whether the target's states are
        kept, or computed again in every step.
    """

    kind: Kind = "greedy"
    future: int = 5
    temperature: float = 0.7
    seed: int = 0
    taps: tuple[int, ...] = ()
    probable: int = 0
    keeps_states: bool = True

    @property
    def rows_per_position(self) -> int:
        """Rows of the target for each position."""
        return int(self.future > 0) if self.kind == "text" else max(1, self.future)

    def positions_of(self, window: int) -> int:
        """How many positions are labelled for a window of this many ids, at most."""
        return window - self.future if self.kind == "text" else window


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """What a target writes: about `tokens` tokens, as answers to the lines of a corpus (`prompts`)
    or after pieces of its texts. seed: at most MOST_SEED."""

    tokens: int
    prompts: bool = False
    temperature: float = 0.7
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelOptions:
    """What is labelled, and how.

    positions, held_out: about how many to train on and to measure acceptance on; fewer if the
        corpus has fewer. window: ids that the target reads at once. seed: of the paragraphs drawn.
    labelling: of the positions to train on; those held out are labelled with the target's greedy
        ids, or with the text's if the target takes no trees or a draft model learns them.
    Raises: UsageError for a window that is too short for its labelling.
    """

    positions: int = 1_000_000
    held_out: int = 8_192
    window: int = 256
    seed: int = 0
    labelling: Labelling = field(default_factory=Labelling)

    def __post_init__(self) -> None:
        if self.labelling.positions_of(self.window) < 1:
            future = self.labelling.future
            raise UsageError(
                f"no position in a window of {self.window} ids has {future} ids of its text after "
                f"it; give --window {future + 1} or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """A drafter that reads layers of its target.

    layers: its own. block: ids of a draft, the last committed one included. taps: the target's
    layers that it reads; none for those of `read_of`. causal: an id of a block sees only those
    before it. draft_vocabulary: most ids that EAGLE-3's head knows.
    """

    layers: int = 1
    block: int = 8
    taps: tuple[int, ...] = ()
    causal: bool = False
    draft_vocabulary: int = 32_000

    def read_of(self, layers: int) -> tuple[int, ...]:
        """The layers that it reads of a target with so many: without a choice the second one, the
        middle one, what the drafter's first layer reads, and the last one."""
        places = {1, layers // 2, layers - self.layers - 1, layers - 1}
        return self.taps or tuple(sorted(place for place in places if 0 <= place < layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """How a drafter or a draft model is trained on labels.

    epochs: how often each position is seen. batch: positions of a batch, about. candidates, seed:
    as of `Candidates` and `Shuffled`. learning_rate: its peak. evaluations: how often acceptance is
    measured and state saved. patience: training stops after this many evaluations without a better
    one; see `Training`.
    losses: see `losses_of`. decay: the weight of a block's position over that of the one before it.
    lora: the rank of a draft model's LoRA adapters; None to train all layers. keep: the share of
        its own weights in the result.
    """

    epochs: float = 2.0
    batch: int = 256
    candidates: int | None = 4_096
    learning_rate: float = 1e-3
    evaluations: int = 20
    patience: int | None = 4
    seed: int = 0
    losses: tuple[Loss, ...] = ("marginal",)
    decay: float = 0.8
    lora: int | None = None
    keep: float = 0.0
