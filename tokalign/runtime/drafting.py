"""How to draft, and the drafters that each method stands for. It loads no model and no mlx."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tokalign.errors import MissingAssetError, UsageError
from tokalign.runtime.draft.context_copy import ContextCopy
from tokalign.runtime.draft.controller import Controller
from tokalign.runtime.draft.costs import MAX_IDS, Costs
from tokalign.runtime.draft.knowledge import Knowledge, ModelWorth, new_worth
from tokalign.runtime.draft.lookup import (
    DictionaryDrafter,
    LogitStore,
    dictionary_sources,
    logit_sources,
)
from tokalign.runtime.draft.mixing import Source
from tokalign.runtime.draft.neural import ModelDrafter, NeuralDrafter, make_translation
from tokalign.runtime.draft.suffix_automaton import SuffixAutomaton
from tokalign.runtime.draft.tree import TreeDrafter
from tokalign.runtime.draft.trust import Mixing
from tokalign.runtime.grammar import Constraint
from tokalign.runtime.options import DEFAULT_DRAFT_TOKENS, NO_DICTIONARY, DraftingOptions
from tokalign.runtime.rounds import UNBOUNDED, Context, Drafter, Proposal, RowStore
from tokalign.tables.alignment import Alignment
from tokalign.tables.logit_rows import LogitRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tokalign.runtime.chat import Prompt
    from tokalign.runtime.mlx.draft_session import DraftModelSession
    from tokalign.runtime.mlx.noise import NoiseAhead
    from tokalign.runtime.mlx.sampling import Sampling
    from tokalign.runtime.request import Request
    from tokalign.runtime.translation.base import Pair
    from tokalign.tables.dictionary import Dictionaries
    from tokalign.tokenizer.vocabulary import TargetId

ASSUMED_COSTS = Costs(rows=(1.0, 1.05), draft_pass=0.1)
"""Assumed until costs are measured: 5 % of a pass for each further row, 10 % for a draft pass."""


PLAINLY = DraftingOptions(method="plain", translation="none")


def no_alignment() -> Alignment:
    """The default of `Drafting.alignment`. Raises: UsageError."""
    raise UsageError("this translation needs the alignment of a pair; pass `alignment`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """How to draft: the options, and what was opened for them.

    options: with nothing left open but the length of drafts.
    packs: give the dictionaries to draft with after a prompt, see `build.installed_packs`; None if
    `dictionary` is for all.
    alignment: gives the pair's tables, if a translation needs them.
    costs: by which a hybrid decides where there is no knowledge.
    logits: the target's top-k logits so far; None keeps them for a request alone. known_rows: what
    every store of this kind begins with.
    outputs: other texts to copy from.
    knowledge: by which the controller chooses every draft length; None where lengths are given.
    model_worth: what was learned of each model where lengths are given; mixing: of sources.
    Requests share both.
    """

    options: DraftingOptions = PLAINLY
    dictionary: Dictionaries | None = None
    packs: Callable[[Sequence[TargetId]], Dictionaries | None] | None = None
    alignment: Callable[[], Alignment] = no_alignment
    costs: Costs = ASSUMED_COSTS
    logits: LogitStore | None = None
    known_rows: LogitRows | None = None
    outputs: Sequence[SuffixAutomaton] = ()
    knowledge: Knowledge | None = None
    model_worth: Mapping[str, ModelWorth] = field(default_factory=new_worth)
    mixing: Mixing = field(default_factory=Mixing)

    def under(self, options: DraftingOptions | None) -> Drafting:
        """The same with other options, and without knowledge where these give the lengths."""
        options = options or self.options
        knowledge = self.knowledge if options.chooses_lengths else None
        return replace(self, options=options, knowledge=knowledge)

    def with_options(self, **changed: Any) -> Drafting:
        return self.under(replace(self.options, **changed))

    def for_request(self, request: Request, size: int) -> Drafting:
        """What one request drafts with: its options, its texts and its logit store, and the
        dictionary of its prompt's language. size: how many ids the target has."""
        drafting = self.under(request.options).for_prompt(request.prompt.target)
        logits = request.logits if self.logits is None else self.logits
        outputs = (*self.outputs, *request.outputs)
        return replace(drafting, outputs=outputs, logits=logits).with_stores(size)

    @property
    def uses_logits(self) -> bool:
        return self.options.method == "hybrid"

    def head_ids(self, *, trained: bool) -> NDArray[np.uint32] | None:
        """The ids that the draft model's head may be shortened to, or the target's in a `trained`
        drafter (`short_head.py`). Published translations choose from all."""
        if trained or self.options.translation == "none":
            return None if self.dictionary is None else self.dictionary.known_ids
        return self.alignment().frequent if self.options.translation == "exact" else None

    @property
    def row_store(self) -> RowStore | None:
        """Is told by the verifier the target's top-k logits; None if the method needs none."""
        return self.logits if self.uses_logits else None

    def for_prompt(self, prompt: Sequence[TargetId]) -> Drafting:
        """The same with a dictionary of the prompt's language, if there is one by now."""
        return self if self.packs is None else replace(self, dictionary=self.packs(prompt))

    def with_stores(self, size: int = UNBOUNDED) -> Drafting:
        """The same with a logit store, if the method needs one, of the rows that are known."""
        if not self.uses_logits:
            return self
        store = LogitStore() if self.logits is None else self.logits
        if self.known_rows is not None and not len(store):
            store.begin_with(self.known_rows.within(size))
        return replace(self, logits=store)


def make_drafter(
    drafting: Drafting,
    *models: ModelDrafter,
    branches: bool = True,
    noise: NoiseAhead | None = None,
    constraint: Constraint | None = None,
    size: int = UNBOUNDED,
) -> Drafter:
    """The drafter that a method stands for, for one request. The hybrid uses what there is.

    branches: whether the target can verify a tree. noise: of the coming choices, if any.
    constraint: the grammar that the output follows, if it follows one.
    size: how many ids the target has; the tokenizer and the tables may know more.
    """
    options, knowledge = drafting.options, drafting.knowledge
    method, most = options.method, options.num_draft_tokens
    directly = knowledge is None and constraint is None
    if method == "plain":
        return NoDrafter()
    if method in ("draft", "drafter"):
        assert models, f"{method} was chosen without what it needs"
        if directly:
            return models[0]
    elif method != "hybrid":
        models = ()
    if method == "dictionary" and directly:
        if drafting.dictionary is None:
            raise MissingAssetError(NO_DICTIONARY)
        return DictionaryDrafter(drafting.dictionary, max_tokens=most or 8)
    free = TreeDrafter(
        _sources(drafting),
        costs=drafting.costs,
        # With a model, the number of draft tokens is that of the model alone.
        max_tokens=MAX_IDS if most is None or models else most,
        rows=options.draft_rows,
        branches=branches and method not in ("copy", "dictionary"),
        mixing=drafting.mixing,
        noise=noise,
        constraint=constraint,
        size=size,
    )
    if knowledge is not None:
        return Controller(knowledge, free, *models)
    if not models:
        return free
    given = Knowledge.given(drafting.costs, drafting.model_worth)
    return Controller(given, free, *models, timed=False)


def make_model_drafter(
    drafting: Drafting,
    pair: Pair,
    prompt: Prompt,
    session: DraftModelSession,
    sampler: Sampling | None = None,
    *,
    trees: bool = True,
) -> NeuralDrafter:
    """A draft model with its translation as a drafter for one request. trees: whether it may
    propose alternatives beside its chain. Raises: as `make_translation`."""
    options = drafting.options
    if (ids := drafting.head_ids(trained=False)) is not None:
        session.shorten_head(ids)
    return NeuralDrafter(
        session,
        make_translation(options.translation or "none", pair, prompt, drafting.alignment, sampler),
        num_draft_tokens=options.num_draft_tokens or DEFAULT_DRAFT_TOKENS,
        alternatives=options.alternatives if trees else 0,
    )


def _sources(drafting: Drafting) -> list[Source]:
    sources: list[Source] = []
    method = drafting.options.method
    if method in ("copy", "hybrid"):
        sources += [ContextCopy(), *map(ContextCopy, drafting.outputs)]
    if method in ("dictionary", "hybrid") and drafting.dictionary is not None:
        sources += dictionary_sources(drafting.dictionary)
    if drafting.uses_logits and drafting.logits is not None:
        sources += logit_sources(drafting.logits)
    return sources


_NOTHING, _NOTHING_MORE = Proposal(run_ahead=True), Proposal()


class NoDrafter(Drafter):
    """Proposes nothing, and says so in advance, so that the target runs ahead."""

    def propose(self, context: Context, limit: int) -> Proposal:
        return _NOTHING if limit else _NOTHING_MORE  # after the last token no pass is to begin
