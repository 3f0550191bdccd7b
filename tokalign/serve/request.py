"""What one answer is asked for, whichever API the request came by. It imports nothing of HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from time import monotonic
from typing import Any

from tokalign.runtime.grammar import Grammar
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.tokenizer.vocabulary import TargetId

DEFAULT = "default_model"
"""mlx-lm's name for what the server was started with."""


@dataclass(frozen=True, slots=True)
class ModelNames:
    """The models of a request, `DEFAULT` for what the server was started with."""

    model: str = DEFAULT
    draft: str = DEFAULT
    adapter: str = DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ApiRequest:
    """One answer to one prompt.

    messages: of a chat, which its template renders with `tools`, `template_variables` and, where it
    takes them, the variables of `effort`; None for a completion, whose prompt is a text or ids.
    suffix: what a completion has to end before.
    sampling: without what depends on the model. logit_bias, penalties: arguments of mlx-lm's
    `make_logits_processors`. stop_token_ids: end an answer besides the model's own ids, or alone if
    it is to `ignore_eos`. skips_specials: whether special tokens are no part of its text.
    max_tokens: None for as many as the context holds.
    num_draft_tokens: as in `DraftingOptions`. top_logprobs: alternatives given for each token; None
    for no log-probabilities at all.
    prediction: a text that the answer may repeat. grammar: what it has to match. tool_choice: the
    tool that has to be called, see `structured.tool_choice`. several_calls: whether
    more than one call may be made; None where the request does not say: one where one has to be,
    and any number else.
    not_enforced: paths of what the answer will not follow.
    api_key: the scope of what is kept. only_counts: whether only the prompt's tokens are counted.
    abandoned: set when nobody waits for the answer any more; one for all choices of a body.
    """

    messages: Sequence[dict[str, Any]] | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    effort: Mapping[str, Any] = field(default_factory=dict)
    prompt: str | list[int] = ""
    suffix: str = ""
    models: ModelNames = field(default_factory=ModelNames)
    sampling: Sampling = field(default_factory=Sampling)
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    penalties: Mapping[str, float] = field(default_factory=dict)
    stop_texts: tuple[str, ...] = ()
    stop_token_ids: frozenset[TargetId] = frozenset()
    ignore_eos: bool = False
    skips_specials: bool = True
    max_tokens: int | None = None
    num_draft_tokens: int | None = None
    top_logprobs: int | None = None
    prediction: str | None = None
    grammar: Grammar | None = None
    tool_choice: str | None = None
    several_calls: bool | None = None
    not_enforced: tuple[str, ...] = ()
    api_key: str = ""
    only_counts: bool = False
    abandoned: Event = field(default_factory=Event)
    arrived: float = field(default_factory=monotonic)
