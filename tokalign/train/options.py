"""What a caller chooses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tokalign.errors import UsageError
from tokalign.runtime.options import declared

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
    seed: of sampled ids, at most MOST_SEED. taps: the layers whose outputs a drafter
        reads; none for the last hidden state. probable: how many of the target's most probable ids
        are kept at each guess, with probabilities. keeps_states: whether the target's states are
        kept, or computed again in every step.
    """

    kind: Kind = "greedy"
    future: int = 5
    temperature: float = declared(
        0.7,
        "Temperature of sampled labels.",
        least=0,
        open="least",
        flag="--label-temp temperature",
        rare=True,
    )
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
    """What a target writes: about `tokens` tokens, as answers to the texts of a corpus (`prompts`)
    or after pieces of its texts. seed: at most MOST_SEED."""

    tokens: int
    prompts: bool = False
    temperature: float = 0.7
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelOptions:
    """What is labelled, and how.

    positions, held_out: fewer if the corpus has fewer. seed: of the paragraphs drawn.
    labelling: of the positions to train on; those held out are labelled with the target's greedy
        ids, or with the text's if the target takes no trees or a draft model learns them.
    Raises: UsageError for a window that is too short for its labelling.
    """

    positions: int = declared(1_000_000, "Positions to train on, about.", least=1)
    held_out: int = declared(8_192, "Positions to measure acceptance on.", least=1, rare=True)
    window: int = declared(256, "Ids of text read at once.", least=LEAST_WINDOW, rare=True)
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

    taps: the target's layers that it reads; none for those of `read_of`.
    """

    layers: int = declared(1, "Layers of a block drafter.", least=1, most=1_000, rare=True)
    block: int = declared(
        8, "Ids of a draft, the last committed one included.", least=2, most=1_000, rare=True
    )
    taps: tuple[int, ...] = ()
    causal: bool = declared(False, "An id of a block sees only those before it.", rare=True)
    draft_vocabulary: int = declared(
        32_000, "Most ids that EAGLE-3's head knows.", least=1, rare=True
    )

    def read_of(self, layers: int) -> tuple[int, ...]:
        """The layers that it reads of a target with so many: without a choice the second one, the
        middle one, what the drafter's first layer reads, and the last one."""
        places = {1, layers // 2, layers - self.layers - 1, layers - 1}
        return self.taps or tuple(sorted(place for place in places if 0 <= place < layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """How a drafter or a draft model is trained on labels.

    candidates: as of `Candidates`; None for the vocabulary. learning_rate: its peak. evaluations:
    how often acceptance is measured, too. patience: training stops after this many evaluations
    without a better one; see `Training`. losses: see `losses_of`. lora: the rank of a draft model's
    LoRA adapters; None to train all layers. decay: the weight of a draft's position over the one
    before.
    """

    losses: tuple[Loss, ...] = ("marginal",)
    lora: int | None = None
    decay: float = 0.8
    keep: float = declared(
        0.0,
        "Share of the old weights in the mean that is written; helps after a short training.",
        least=0,
        most=1,
        open="most",
        rare=True,
    )
    epochs: float = declared(2.0, "How often each position is seen.", least=0, open="least")
    batch: int = declared(256, "Positions of a batch.", least=1)
    candidates: int | None = declared(
        4_096,
        "Frequent ids in the softmax, besides those of the batch; 0 is the vocabulary.",
        least=0,
        rare=True,
    )
    learning_rate: float = 1e-3
    evaluations: int = declared(20, "How often the state is saved.", least=1, rare=True)
    patience: int | None = 4
    seed: int = declared(0, "Seed of what is drawn.", least=0, most=MOST_SEED)
