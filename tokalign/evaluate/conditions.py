"""The conditions that `tokalign bench` compares, and how each of them drafts. It loads no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tokalign.evaluate.measurements import BASELINES, PLAIN, Condition
from tokalign.runtime.draft.cost_aware import Experience
from tokalign.runtime.draft.mixing import Mixing
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.methods import METHODS
from tokalign.tokenizer.tokenizer import Tokenizer


def drafting_of(drafting: Drafting, condition: Condition) -> Drafting:
    """How a condition drafts, with nothing learned yet.

    Its name is a method, else a translation of the draft model.
    """
    name = condition.name if condition.drafts else PLAIN
    drafting = replace(
        drafting,
        num_draft_tokens=condition.k if isinstance(condition.k, int) else None,
        mixing=Mixing(),
        experience=Experience(),
    )
    if condition.chain:
        drafting = replace(drafting, alternatives=0)
    if name in METHODS:
        return replace(drafting, method=name)
    return replace(drafting, method="draft", translation=condition.name)


def conditions_of(
    drafting: Drafting,
    *,
    lengths: Sequence[int | str],
    pair: tuple[Tokenizer[Any], Tokenizer[Any]] | None,
    with_drafter: bool = False,
) -> list[Condition]:
    """All conditions that can be measured: plain decoding and its control, the others by length.

    pair: the tokenizers of target and draft, None without a draft model. If both are the same,
    `none` is the only translation; else the others are measured. A dictionary is measured if there
    is one. with_drafter: whether there is a recurrent drafter, which is measured alone, too.
    """
    translations: Sequence[str] = ()
    if pair is not None:
        same = pair[0].fingerprint == pair[1].fingerprint
        translations = ("none",) if same else ("context:5", "intersection", "exact")
    dictionary = () if drafting.dictionary is None else ("dictionary",)
    drafter = ("drafter",) if with_drafter else ()
    names = (*translations, *drafter, *dictionary, "copy", "hybrid")
    return [*BASELINES, *(Condition(name, k) for name in names for k in lengths)]
