"""Ways to draft that others have published, as they published them.

prompt_lookup.py        prompt lookup decoding
recycling.py            Token Recycling and SAM-Decoding
unispec.py              UniSpec
    adjacency.py            what the last two draft from: the target's top-k after each id
translations.py         translations between two tokenizers: `raw` and `naive`
decoder.py              a decoder that drafts in all these ways
"""

from __future__ import annotations

from lab.baselines.adjacency import Adjacency
from lab.baselines.prompt_lookup import PromptLookupDrafter
from lab.baselines.recycling import RECYCLED_WIDTH, SAM_COPIED, SamDrafter, TokenRecyclingDrafter
from lab.baselines.unispec import UNISPEC_WIDTH, UniSpecDrafter, draft_size
from tokalign.runtime.draft.costs import Costs
from tokalign.runtime.drafting import ASSUMED_COSTS
from tokalign.runtime.rounds import Drafter, RowStore

PUBLISHED_METHODS = ("prompt-lookup", "recycling", "sam", "unispec")


def store_of(name: str) -> Adjacency | None:
    """An empty store of what the target finds likely, which the verifier fills; None for none."""
    if name == "prompt-lookup":
        return None
    return Adjacency(UNISPEC_WIDTH if name == "unispec" else RECYCLED_WIDTH)


def baseline(
    name: str,
    store: RowStore | None,
    *,
    most: int | None = None,
    costs: Costs = ASSUMED_COSTS,
    branches: bool = True,
) -> Drafter:
    """The drafter of a baseline, for one request.

    store: as `store_of` makes it. most: ids drafted in a round; None for the published number, or
    for UniSpec the one that suits `costs`. branches: whether the target can verify a tree.
    """
    if name == "prompt-lookup":
        return PromptLookupDrafter(max_tokens=most or 10)
    assert isinstance(store, Adjacency), f"{name} drafts from an adjacency matrix"
    if name == "unispec":
        return UniSpecDrafter(store, size=most or draft_size(costs), branches=branches)
    recycling = TokenRecyclingDrafter(store, max_tokens=most, branches=branches)
    return (
        recycling if name == "recycling" else SamDrafter(recycling, max_tokens=most or SAM_COPIED)
    )
