"""One request: all that a decoder is given for one output, and shares with no other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from tokalign.errors import require_integer, require_texts
from tokalign.runtime.chat import Prompt
from tokalign.runtime.draft.lookup import LogitStore
from tokalign.runtime.draft.suffix_automaton import SuffixAutomaton
from tokalign.runtime.grammar import Constraint, Grammar
from tokalign.runtime.mlx.sampling import Sampler, Sampling
from tokalign.runtime.options import DraftingOptions
from tokalign.tokenizer.vocabulary import TargetId


@dataclass(frozen=True, slots=True)
class Request:
    """What to generate after a prompt, and how.

    max_tokens: None for as many as the context holds. sampler: greedy by default.
    grammar: what the output has to match; a constraint is that after this prompt.
    stop: the output ends before these texts, or this text. stop_ids: end it, and have no text; None
    for the target's. silent: other ids without text.
    ends_with_context: whether the target's context length ends it.
    options: how to draft; None for the decoder's own. outputs: other texts to copy from, such as
    earlier outputs of the same session. logits: a store of the target's top-k logits that lasts
    longer than the request.
    Raises: UsageError for a wrong argument.
    """

    prompt: Prompt
    _: KW_ONLY
    max_tokens: int | None = None
    sampler: Sampler = Sampling()  # noqa: RUF009  # it is frozen
    grammar: Grammar | Constraint | None = None
    stop: str | Sequence[str] = ()
    stop_ids: frozenset[TargetId] | None = None
    silent: frozenset[TargetId] = frozenset()
    ends_with_context: bool = True
    options: DraftingOptions | None = None
    outputs: Sequence[SuffixAutomaton] = ()
    logits: LogitStore | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            require_integer("max_tokens", self.max_tokens, least=0)
        require_texts("stop", (self.stop,) if isinstance(self.stop, str) else self.stop)

    @property
    def stop_texts(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def seed(self) -> int | None:
        """The seed that reproduces the output; None if nothing is drawn, or not by `Sampling`."""
        if isinstance(self.sampler, Sampling) and self.sampler.temperature > 0:
            return self.sampler.seed
        return None
