"""A recurrent drafter: a small network that goes on from the target's last hidden state.

It reads the hidden state that chose the last committed id, then one id after another, and gives the
probabilities of the next one. It uses the target's embedding and, unless it has a head of its own,
the target's output head, quantized or not.
Source: ReDrafter (Cheng et al., 2024), section 3.1; the code published with it
(apple/ml-recurrent-drafter), which starts from the state zero and reads the committed id first.

It has no cache: a round starts from the target's hidden state in the row that chose the last
committed id, which the target's session has kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import mlx.core as mx
import mlx.nn as nn
from msgspec import Meta, Struct, convert, to_builtins

from tokalign.runtime.mlx.beam_search import BeamSession, State
from tokalign.runtime.mlx.published_drafter import Weights, fill, renamed
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.trained_drafter import TargetEnds, TrainedDrafter
from tokalign.runtime.rounds import Array
from tokalign.tables.drafter_config import Size, StateShape
from tokalign.tables.drafter_formats import RECURRENT
from tokalign.tokenizer.vocabulary import TargetId

Head = Literal["tied", "full"]


_CALLED = {"vocabulary_size": "vocab_size", "exit_width": "exit_dim", "blocks": "num_draft_layers"}
"""What a `config.json` calls some fields of `DrafterConfig`."""


class DrafterConfig(Struct, frozen=True, kw_only=True, rename=_CALLED):
    """The shape of a drafter.

    hidden_size: H, of the target's hidden states and embeddings. vocabulary_size: V, of its logits.
    width: D, of the recurrent state s. exit_width: E, of the projection of [h, s] that the residual
        blocks compute on.
    head: "tied" projects to H and uses the target's head; "full" has one, E x V, as the drafters
        published with the paper. These have no projection of [h, s] if E = H + D.
    """

    hidden_size: Size
    vocabulary_size: Size
    width: Size
    exit_width: Size
    blocks: Annotated[int, Meta(ge=0, le=1_000)] = 2
    head: Head = "tied"

    @property
    def json(self) -> dict[str, Any]:
        """Its `config.json`."""
        return {"model_type": RECURRENT, "rnn": True, **to_builtins(self)}

    @property
    def parameters(self) -> int:
        """How many numbers a drafter of this shape has."""
        h, d, e = self.hidden_size, self.width, self.exit_width
        head = 0 if e == h else e * h
        if self.head == "full":
            head = e * self.vocabulary_size
        recurrence, entry = h * d + d * d + d, 0 if self.concatenates else h * e + e + d * e
        return recurrence + entry + self.blocks * (e * e + e) + head

    @property
    def concatenates(self) -> bool:
        """Whether the residual blocks compute on [h, s] as it is."""
        return self.head == "full" and self.exit_width == self.hidden_size + self.width


class RecurrentDrafter(TrainedDrafter):
    """The network of section 3.1: s = SiLU(U s + W e), residual blocks x + SiLU(A x + b) on [h, s],
    a head.

    Its state after some ids is s f[..., D], and the hidden state's part of the exit.
    The target's ends are no parameters of it: they are neither trained nor saved.
    Raises: IncompatibleError if the ends have other sizes than the configuration.
    """

    def __init__(self, config: DrafterConfig, ends: TargetEnds) -> None:
        super().__init__()
        shape = StateShape(target_hidden_size=config.hidden_size, vocab_size=config.vocabulary_size)
        ends.require_fit(shape)
        self.config, self._ends = config, ends
        h, d, e = config.hidden_size, config.width, config.exit_width
        self.rnn_u = nn.Linear(d, d)
        self.rnn_w = nn.Linear(h, d, bias=False)
        if not config.concatenates:
            self.entry_h = nn.Linear(h, e)
            self.entry_s = nn.Linear(d, e, bias=False)
        self.blocks = [{"linear": nn.Linear(e, e)} for _ in range(config.blocks)]
        if config.head == "full":
            self.head = [nn.Linear(e, config.vocabulary_size, bias=False)]
        else:
            self.head = [] if e == h else [nn.Linear(e, h, bias=False)]
        # For weights that change no more; copies with other heads share what was compiled. The
        # logits are not part of it, as a head that is shortened follows the text.
        self.compiled_advance = mx.compile(self.advance)

    def session(self, target: TargetModelSession) -> RecurrentSession:
        return RecurrentSession(self, target)

    def initial_state(self, hidden: Array) -> State:
        """Start a round from the target's last hidden state f[..., H], before any id is read."""
        hidden = hidden.astype(self._dtype)
        recurrent = mx.zeros((*hidden.shape[:-1], self.config.width), self._dtype)
        return recurrent, self.entry_h(hidden) if "entry_h" in self else hidden

    def step(self, state: State, ids: Array) -> tuple[State, Array]:
        """Read ids i[...]; return the state after them and the logits f[..., V] of what follows.
        Leading dimensions are those of `state`."""
        state, exit_ = self.advance(state, ids)
        return state, self.logits(exit_)

    def advance(self, state: State, ids: Array) -> tuple[State, Array]:
        """Read ids i[...]; return the state after them and f[..., E] for `logits`."""
        recurrent, context = state
        embedded = self._ends.embed(ids).astype(self._dtype)
        recurrent = nn.silu(self.rnn_w(embedded) + self.rnn_u(recurrent))
        if "entry_s" in self:
            exit_ = context + self.entry_s(recurrent)
        else:
            exit_ = mx.concatenate([context, recurrent], axis=-1)
        for block in self.blocks:
            exit_ = exit_ + nn.silu(block["linear"](exit_))
        return (recurrent, context), exit_

    def logits(self, exit_: Array, ids: Array = None) -> Array:
        """Logits f[..., V] from the residual blocks' output f[..., E]; or of ids i[n] alone, which
        is cheaper by a tied head if they are few."""
        for layer in self.head:
            exit_ = layer(exit_)
        if self.has_head:
            return exit_ if ids is None else exit_[..., ids]
        if ids is None:
            return self.unembed(exit_)
        rows = self._ends.head_rows(ids)
        return exit_.astype(rows.dtype) @ rows.T

    @property
    def has_head(self) -> bool:
        return self.config.head != "tied"

    @property
    def _dtype(self) -> Any:
        return self.rnn_u.weight.dtype


class RecurrentSession(BeamSession):
    """A recurrent drafter of one request."""

    def __init__(self, drafter: RecurrentDrafter, target: TargetModelSession) -> None:
        super().__init__(drafter, target)
        on_cpu = mx.default_device().type == mx.cpu
        self._advance = drafter.advance if on_cpu else drafter.compiled_advance

    def begin(self, ids: Sequence[TargetId]) -> tuple[State, Array] | None:
        """See `BeamSession`; nothing where no recent pass of the target chose the last id."""
        hidden = self._target.state_before_last(ids)
        if hidden is None:
            return None
        return self.step(self._drafter.initial_state(hidden), mx.array([ids[-1]], mx.uint32))

    def step(self, state: State, ids: Array) -> tuple[State, Array]:
        state, exit_ = self._advance(state, ids)
        return state, self._drafter.logits(exit_)


def make_redrafter(config: Mapping[str, Any], weights: Weights, target: Any) -> RecurrentDrafter:
    """As `make_dflash`. One as published with the paper has a head of its own, a state that is as
    wide as the target's, and these names:

    | there | here |
    |---|---|
    | `rnn_u`, `rnn_w` | the same |
    | `input_proj` (2H -> E; none if E = 2H) | `entry_h`: its first H columns; `entry_s`: others |
    | `lm_head.0` ... | `blocks.0` ... |
    | the last `lm_head` | `head.0` |

    Source: apple/ml-recurrent-drafter, `recurrent_drafting/modeling_drafter.py`.
    """
    StateShape.from_json(config)
    shape = convert({"width": config["hidden_size"], "head": "full", **config}, DrafterConfig)
    drafter = RecurrentDrafter(shape, TargetEnds.of(target))
    others = {rf"^lm_head\.{shape.blocks}\.": "head.0.", r"^lm_head\.": "blocks."}
    named = renamed(weights, others | {r"^input_proj\.bias": "entry_h.bias"})
    if (entry := named.pop("input_proj.weight", None)) is not None:
        named["entry_h.weight"] = entry[:, : shape.hidden_size]
        named["entry_s.weight"] = entry[:, shape.hidden_size :]
    fill(drafter, named)
    return drafter
