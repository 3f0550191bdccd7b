"""How to draft, and the drafters that each method stands for. It loads no model and no mlx."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from tokalign.cost.expected_gain import Costs
from tokalign.errors import UsageError
from tokalign.runtime.draft.beams import BeamShape
from tokalign.runtime.draft.context_copy import ContextCopy
from tokalign.runtime.draft.cost_aware import CostAwareHybrid, Experience, ModelDrafter
from tokalign.runtime.draft.hybrid import ComingNoise, Hybrid
from tokalign.runtime.draft.logit_store import LogitStore, logit_sources
from tokalign.runtime.draft.lookup import DictionaryDrafter, dictionary_sources
from tokalign.runtime.draft.mixing import Mixing, Source
from tokalign.runtime.draft.none import NoDrafter
from tokalign.runtime.draft_length.controller import DraftLengthController, SteppedDrafter
from tokalign.runtime.draft_length.decision import MAX_IDS
from tokalign.runtime.draft_length.knowledge import Knowledge
from tokalign.runtime.interfaces import Drafter, RowStore, Verifier
from tokalign.runtime.methods import DEFAULT_ALTERNATIVES, DRAFTER_METHODS, MODEL_METHODS
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

    num_draft_tokens: ids proposed in a round; None for the default of each drafter.
    alternatives: ids that a draft model proposes in a tree besides one for each of its passes. A
        draft that has to stay a chain has them as leaves in the place of its first id.
    alignment: gives the pair's tables, if a translation needs them.
    costs: the costs by which a hybrid ranks its sources.
    logits: what the target found likely so far, kept for a conversation or a session; None keeps it
        for a request alone. known_rows: what every store of this kind begins with.
    draft_rows: how many ids the hybrid proposes in every round, whatever they cost; None to have
        costs decide.
    exact_rows: rows of a pass at most, up to which its logits are those of single rows, bit for
    bit; None for any number.
    beam: the shape of a recurrent drafter's beam, which is then proposed whole; None to have every
        round choose the rows and the number of steps.
    outputs: other texts to copy from, such as earlier outputs of the same session.
    knowledge: what the draft length controller chooses every draft length by; None leaves the
        length to the drafters.
    experience: what was learned about a draft model beside free sources; requests share it.
    mixing: what was learned about sources; requests share it.
    noise: of the coming choices of one request; None where nothing is drawn.
    """

    method: str = "plain"
    translation: str = "none"
    num_draft_tokens: int | None = None
    alternatives: int = DEFAULT_ALTERNATIVES
    dictionary: Dictionary | None = None
    alignment: Callable[[], Alignment] = no_alignment
    costs: Callable[[], Costs] = lambda: ASSUMED_COSTS
    logits: LogitStore | None = None
    known_rows: LogitRows | None = None
    draft_rows: int | None = None
    exact_rows: int | None = None
    beam: BeamShape | None = None
    outputs: Sequence[SuffixAutomaton] = ()
    knowledge: Knowledge | None = None
    experience: Experience = field(default_factory=Experience)
    mixing: Mixing = field(default_factory=Mixing)
    noise: ComingNoise | None = None

    @property
    def uses_logits(self) -> bool:
        """Whether the method drafts with what the target found likely."""
        return self.method == "hybrid"

    @property
    def uses_model(self) -> bool:
        """Whether the method drafts with a model if there is one."""
        return self.method in MODEL_METHODS

    @property
    def uses_drafter(self) -> bool:
        """Whether the method drafts with a recurrent drafter if there is one."""
        return self.method in DRAFTER_METHODS

    @property
    def row_store(self) -> RowStore | None:
        """Is told by the verifier what the target found likely; None if the method needs none."""
        return self.logits if self.uses_logits else None

    def with_stores(self) -> Drafting:
        """The same with a logit store of its own, if the method needs one and has none.

        An empty logit store begins with the rows that are known.
        """
        if not self.uses_logits:
            return self
        store = LogitStore() if self.logits is None else self.logits
        if self.known_rows is not None and not len(store):
            store.begin_with(self.known_rows)
        return replace(self, logits=store)


def make_drafter(
    drafting: Drafting, neural: ModelDrafter | None, *, branches: bool = True
) -> Drafter:
    """The drafter that a method stands for, for one request. The hybrid uses what there is.

    branches: whether the target can verify a tree.
    """
    most = drafting.num_draft_tokens
    match drafting.method:
        case "plain":
            return NoDrafter()
        case "hybrid":
            return _by_cost(drafting, neural, branches)
        case "copy":
            sources = _copies(drafting)
            most = most or _MOST_PROPOSED
            return Hybrid(sources, costs=drafting.costs, max_tokens=most, branches=False)
        case "dictionary":
            assert drafting.dictionary is not None, "dictionary was chosen without one"
            return DictionaryDrafter(drafting.dictionary, max_tokens=most or 8)
    assert neural is not None, f"{drafting.method} was chosen without what it needs"
    return neural


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

    clock: seconds, from any start.
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
    sources = _copies(drafting)
    if drafting.dictionary is not None:
        sources += dictionary_sources(drafting.dictionary)
    if drafting.logits is not None:
        sources += logit_sources(drafting.logits)
    return Hybrid(
        sources,
        costs=drafting.costs,
        max_tokens=drafting.num_draft_tokens or _MOST_PROPOSED,
        rows=drafting.draft_rows,
        branches=branches,
        mixing=drafting.mixing,
        noise=drafting.noise,
    )


def _copies(drafting: Drafting) -> list[Source]:
    """Copy from the request's own text, and from other texts that were given."""
    return [ContextCopy(), *map(ContextCopy, drafting.outputs)]
