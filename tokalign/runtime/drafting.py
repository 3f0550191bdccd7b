"""How to draft, and the drafters that each method stands for. It loads no model and no mlx."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from tokalign.cost.expected_gain import Costs
from tokalign.errors import UsageError
from tokalign.runtime.draft.adjacency import Adjacency
from tokalign.runtime.draft.beams import BeamShape
from tokalign.runtime.draft.context_copy import ContextCopy
from tokalign.runtime.draft.cost_aware import CostAwareHybrid, Experience, ModelDrafter
from tokalign.runtime.draft.fixed_order import FirstOf
from tokalign.runtime.draft.hybrid import Hybrid, Source
from tokalign.runtime.draft.logit_sources import logit_sources
from tokalign.runtime.draft.logit_store import LogitStore
from tokalign.runtime.draft.lookup import (
    DictionaryDrafter,
    PromptLookupDrafter,
    dictionary_sources,
)
from tokalign.runtime.draft.mixing import Mixing
from tokalign.runtime.draft.none import NoDrafter
from tokalign.runtime.draft.recycling import (
    RECYCLED_WIDTH,
    SAM_COPIED,
    SamDrafter,
    TokenRecyclingDrafter,
)
from tokalign.runtime.draft.unispec import (
    ABLATED,
    PUBLISHED,
    UNCALIBRATED_SIZE,
    UNISPEC_WIDTH,
    UniSpecDrafter,
    draft_size,
)
from tokalign.runtime.draft_length.controller import DraftLengthController, SteppedDrafter
from tokalign.runtime.draft_length.decision import MAX_IDS
from tokalign.runtime.draft_length.knowledge import Knowledge
from tokalign.runtime.interfaces import Drafter, RowStore, Verifier
from tokalign.runtime.methods import (
    DEFAULT_ALTERNATIVES,
    DRAFTER_METHODS,
    HYBRID_ORDER,
    MODEL_METHODS,
    RECYCLING_METHODS,
)
from tokalign.tables.alignment import Alignment
from tokalign.tables.logit_rows import LogitRows

if TYPE_CHECKING:
    from tokalign.runtime.draft.suffix_automaton import SuffixAutomaton
    from tokalign.tables.dictionary import Dictionary

ASSUMED_COSTS = Costs(rows=(1.0, 1.05), draft_pass=0.1)
"""Assumed until costs are measured: 5 % of a pass for each further row, 10 % for a draft pass."""

ASSUMED_DRAFTER_COSTS = Costs(rows=(1.0, 1.05), draft_pass=0.025)
"""The same with a recurrent drafter, whose step reads its own weights and the target's head."""

_MOST_PROPOSED = MAX_IDS
"""Proposal cap for drafters that weigh the cost of a row."""


def no_alignment() -> Alignment:
    """The default of `Drafting.alignment`. Raises: UsageError."""
    raise UsageError("this translation needs the alignment of a pair; pass `alignment`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """How to draft.

    without: a part of the method that is left out, one of `methods.PARTS`; empty for none.
    num_draft_tokens: ids proposed in a round; None for the default of each drafter.
    alternatives: ids that a draft model proposes in a tree besides one for each of its passes. A
        draft that has to stay a chain has them as leaves in the place of its first id.
    order: the sources of `hybrid-fixed`, the first to be asked first.
    alignment: gives the pair's tables, if a translation needs them.
    costs: the costs by which a hybrid ranks its sources.
    context_copy: what a conversation keeps of its text; None where a request stands alone.
    adjacency: what the target found likely so far, for the published methods that draft from it;
        None keeps it for a request alone. It has to be of their width.
    logits: what the target found likely so far, kept for a conversation or a session; None keeps it
        for a request alone. known_rows: what every store of this kind begins with.
    draft_rows: how many ids the hybrid proposes in every round, whatever they cost; None to have
        costs decide.
    beam: the shape of a recurrent drafter's beam, which is then proposed whole; None to have every
        round choose the rows and the number of steps.
    outputs: other texts to copy from, such as earlier outputs of the same session.
    knowledge: what the draft length controller chooses every draft length by; None leaves the
        length to the drafters.
    experience: what was learned about a draft model beside free sources; requests share it.
    mixing: what was learned about sources; requests share it.
    """

    method: str = "plain"
    without: str = ""
    translation: str = "none"
    num_draft_tokens: int | None = None
    alternatives: int = DEFAULT_ALTERNATIVES
    order: Sequence[str] = HYBRID_ORDER
    dictionary: Dictionary | None = None
    alignment: Callable[[], Alignment] = no_alignment
    costs: Callable[[], Costs] = lambda: ASSUMED_COSTS
    context_copy: ContextCopy | None = None
    adjacency: Adjacency | None = None
    logits: LogitStore | None = None
    known_rows: LogitRows | None = None
    draft_rows: int | None = None
    beam: BeamShape | None = None
    outputs: Sequence[SuffixAutomaton] = ()
    knowledge: Knowledge | None = None
    experience: Experience = field(default_factory=Experience)
    mixing: Mixing = field(default_factory=Mixing)

    @property
    def uses_logits(self) -> bool:
        """Whether the method drafts with what the target found likely."""
        return self.method == "hybrid" and self.without != "logits"

    @property
    def uses_model(self) -> bool:
        """Whether the method drafts with a model if there is one."""
        return self.method in MODEL_METHODS

    @property
    def uses_drafter(self) -> bool:
        """Whether the method drafts with a recurrent drafter if there is one."""
        return self.method in DRAFTER_METHODS

    @property
    def is_recycling(self) -> bool:
        """Whether the method drafts from an adjacency matrix."""
        return self.method in RECYCLING_METHODS

    @property
    def row_store(self) -> RowStore | None:
        """Is told by the verifier what the target found likely; None if the method needs none."""
        return self.logits if self.uses_logits else self.adjacency if self.is_recycling else None

    def with_stores(self) -> Drafting:
        """The same with a store of its own, if the method needs one and has none.

        An empty logit store begins with the rows that are known.
        """
        if self.uses_logits:
            store = LogitStore() if self.logits is None else self.logits
            if self.known_rows is not None and not len(store):
                store.begin_with(self.known_rows)
            return replace(self, logits=store)
        if not self.is_recycling or self.adjacency is not None:
            return self
        width = UNISPEC_WIDTH if self.method == "unispec" else RECYCLED_WIDTH
        return replace(self, adjacency=Adjacency(width))


def make_drafter(
    drafting: Drafting, neural: ModelDrafter | None, *, branches: bool = True
) -> Drafter:
    """The drafter that a method stands for, for one request. Hybrids use what sources there are.

    branches: whether the target can verify a tree.
    """
    if drafting.is_recycling:
        return _recycling(drafting, branches=branches)
    match drafting.method:
        case "plain":
            return NoDrafter()
        case "hybrid":
            return _by_cost(drafting, neural, branches)
        case "hybrid-fixed":
            known = [_make_single(name, drafting, neural) for name in drafting.order]
            return FirstOf([drafter for drafter in known if drafter is not None])
    found = _make_single(drafting.method, drafting, neural)
    assert found is not None, f"{drafting.method} was chosen without what it needs"
    return found


def make_controlled(
    drafting: Drafting,
    knowledge: Knowledge,
    verifier: Verifier,
    neural: SteppedDrafter | None,
    *,
    branches: bool = True,
    clock: Callable[[], float] = perf_counter,
) -> DraftLengthController:
    """The draft length controller of one request, around a method's drafters and the verifier.

    With `hybrid-fixed` it chooses the length of the free sources' proposals, and decides in every
    round whether the model drafts, whatever the order says. clock: seconds, from any start.
    """
    controller = partial(DraftLengthController, knowledge, verifier, model=neural, clock=clock)
    if drafting.method in ("draft", "drafter"):
        return controller()
    if drafting.method == "hybrid":
        costs = knowledge.costs.for_ranking
        hybrid = _free_hybrid(replace(drafting, costs=costs), branches)
        return controller(free=hybrid, join=hybrid.join)
    return controller(free=make_drafter(drafting, None))


def _by_cost(drafting: Drafting, neural: ModelDrafter | None, branches: bool) -> Drafter:
    if neural is None:
        return _free_hybrid(drafting, branches)
    # With a model, the number of draft tokens is that of the model alone.
    hybrid = _free_hybrid(replace(drafting, num_draft_tokens=None), branches)
    costs, experience = drafting.costs, drafting.experience
    return CostAwareHybrid(hybrid, neural, costs=costs, experience=experience)


def _free_hybrid(drafting: Drafting, branches: bool) -> Hybrid:
    sources = [] if drafting.without == "copy" else _copies(drafting)
    if drafting.dictionary is not None and drafting.without != "dictionary":
        sources += dictionary_sources(drafting.dictionary)
    if drafting.logits is not None:
        sources += logit_sources(drafting.logits)
    return Hybrid(
        sources,
        costs=drafting.costs,
        max_tokens=drafting.num_draft_tokens or _MOST_PROPOSED,
        rows=drafting.draft_rows,
        branches=branches and drafting.without != "trees",
        mixing=drafting.mixing,
    )


def _recycling(drafting: Drafting, *, branches: bool) -> Drafter:
    """A published method that drafts from an adjacency matrix, which the verifier has to fill."""
    adjacency, most = drafting.adjacency, drafting.num_draft_tokens
    assert adjacency is not None, f"{drafting.method} was chosen without an adjacency matrix"
    if drafting.method == "unispec":
        size = most or draft_size(drafting.costs())
        if drafting.without == "calibration":
            size = UNCALIBRATED_SIZE
        expansion = ABLATED.get(drafting.without, PUBLISHED)
        return UniSpecDrafter(adjacency, size=size, expansion=expansion, branches=branches)
    recycling = TokenRecyclingDrafter(adjacency, max_tokens=most, branches=branches)
    if drafting.method == "recycling":
        return recycling
    return SamDrafter(recycling, max_tokens=most or SAM_COPIED)


def _copies(drafting: Drafting) -> list[Source]:
    """Copy from the request's own text, and from other texts that were given."""
    return [drafting.context_copy or ContextCopy(), *map(ContextCopy, drafting.outputs)]


def _make_single(name: str, drafting: Drafting, neural: ModelDrafter | None) -> Drafter | None:
    """A drafter with one source; None if it lacks what it needs."""
    most = drafting.num_draft_tokens
    match name:
        case "draft" | "drafter":
            return neural
        case "copy":
            most = most or _MOST_PROPOSED
            sources = _copies(drafting)
            return Hybrid(sources, costs=drafting.costs, max_tokens=most, branches=False)
        case "prompt-lookup":
            return PromptLookupDrafter(max_tokens=most or 10)
    if drafting.dictionary is None:
        return None
    return DictionaryDrafter(drafting.dictionary, max_tokens=most or 8)
