"""`tokalign bench --text`: texts play the target, so no weights but a draft model's are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from tokalign.api.assemble import keep_loaded, load_models
from tokalign.api.choosing import choose_drafting
from tokalign.cli.bench_options import Options
from tokalign.cli.output import markdown_table, note, progress, show
from tokalign.cli.texts import read_texts
from tokalign.errors import UsageError
from tokalign.evaluate.comparison import Condition, conditions_of, drafting_of
from tokalign.evaluate.replay import MakeDrafter, replay_texts
from tokalign.names.registry import Resolved, resolve_tokenizer
from tokalign.runtime.cost import ASSUMED_DRAFT, read_curve
from tokalign.runtime.draft.learned_costs import Costs, costs_at
from tokalign.runtime.drafting import Drafting, make_drafter, make_model_drafter
from tokalign.runtime.rounds import Drafter, Event, Round
from tokalign.runtime.statistics import Statistics, ratio
from tokalign.runtime.translation.base import Pair
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId

if TYPE_CHECKING:
    from tokalign.runtime.decoder import LanguageModel

_PROMPT_TOKENS = 12

_SHOWN = ("tokens_per_round", "draft_acceptance_rate", "coverage", "mean_accepted_length",
          "rows_per_round", "draft_passes_per_round")  # fmt: skip


def show_texts(options: Options) -> None:
    """Measure every condition on the texts, and print what it saves. Raises: as `prepare`."""
    curves = {name: read_curve(name) for name in options.curves}
    for name, curve in curves.items():
        note(f"{name}: {curve.source}")
    makers, encoded, given = prepare(options)
    costs = {
        name: costs_at(curve, 0, assumed_draft=ASSUMED_DRAFT) for name, curve in curves.items()
    }
    with progress(len(makers) * len(encoded), "playing") as advance:
        found = {one: _played(encoded, make, given, costs, advance) for one, make in makers.items()}
    result = {
        "target": options.target,
        "draft": options.draft,
        "files": [str(file) for file in options.files],
        "texts": len(encoded),
        "conditions": [
            {"name": one.name, "k": one.k, **_figures(statistics)}
            | {"speed": {name: round(speed, 4) for name, speed in speeds.items()}}
            for one, (statistics, speeds) in found.items()
        ],
    }
    head = ("condition", "k", *(name.replace("_", " ") for name in _SHOWN), *curves)
    rows = [
        (
            one.name,
            str(one.k),
            *(f"{getattr(statistics, name):.3f}" for name in _SHOWN),
            *(f"{speed:.2f}" for speed in speeds.values()),
        )
        for one, (statistics, speeds) in found.items()
    ]
    show(result, lambda: markdown_table(head, rows))


def _played(
    texts: Sequence[Sequence[TargetId]],
    make: MakeDrafter,
    given: int,
    costs: Mapping[str, Costs],
    advance: Callable[[int], object],
) -> tuple[Statistics, dict[str, float]]:
    """What a drafter saves, and by curve how fast that is if only passes take time.

    The speed of plain decoding is 1. given: how many ids of a text are its prompt.
    """
    passes = dict.fromkeys(costs, 0.0)

    def watch(event: Event) -> None:
        if isinstance(event, Round):
            for name, one in costs.items():
                passes[name] += one.of(event.tree, event.draft_passes)

    found = replay_texts(texts, make, prompt_tokens=given, watch=watch, progress=advance)
    return found, {name: ratio(found.generation_tokens, took) for name, took in passes.items()}


def prepare(options: Options) -> tuple[dict[Condition, MakeDrafter], list[list[TargetId]], int]:
    """The drafters of every condition, the ids of the texts, and how many of each are its prompt.

    Raises: UsageError without texts, or for the draft length `auto`, which needs costs.
    """
    if not options.files:
        raise UsageError("there are no texts to play the target; give FILEs")
    if "auto" in options.lengths:
        raise UsageError("how many tokens pay depends on costs: give numbers to --num-draft-tokens")
    texts = [
        text
        for file in options.files
        for text in read_texts(file, field=options.field, limit=options.limit)
    ]
    target, model, drafting = _load(options)
    played = target.encode_batch(texts)
    for ids in played:
        drafting = drafting.for_prompt(ids)
    pair = None if model is None else (target, model.tokenizer)
    names = options.methods or None
    conditions = conditions_of(drafting, names, lengths=options.lengths, pair=pair)
    given = _PROMPT_TOKENS if options.prompt_tokens is None else options.prompt_tokens
    makers = {
        one: _maker(drafting_of(drafting, one), target, model, given)
        for one in conditions
        if one.drafts
    }
    return makers, played, given


def _load(
    options: Options,
) -> tuple[Tokenizer[TargetId], LanguageModel[DraftId] | None, Drafting]:
    """The target's tokenizer, the draft model, and how to draft with every source there is."""
    found: Resolved[TargetId] = resolve_tokenizer(options.target)
    note(found.description)
    model = None
    if options.draft is not None:
        [model] = load_models([options.draft], dtype=options.dtype, note=note)
        keep_loaded()
    draft = None if model is None else model.tokenizer
    say_once = cache(note)
    drafting = choose_drafting(
        found.tokenizer, draft, options.drafting, model_folder=found.folder, note=say_once
    )
    return found.tokenizer, model, drafting


def _maker(
    drafting: Drafting,
    target: Tokenizer[TargetId],
    model: LanguageModel[DraftId] | None,
    given: int,
) -> MakeDrafter:
    """Makes the drafter of each text, whose first `given` ids are its prompt."""
    if model is None or not drafting.options.uses_model:
        return lambda _: make_drafter(drafting, None)
    from tokalign.runtime.chat import Prompt
    from tokalign.runtime.mlx.draft_session import DraftModelSession

    pair, session = Pair(target, model.tokenizer), DraftModelSession(model.model)

    def make(ids: Sequence[TargetId]) -> Drafter:
        neural = make_model_drafter(drafting, pair, Prompt(target=ids[:given]), session)
        return make_drafter(drafting, neural)

    return make


def _figures(statistics: Statistics) -> dict[str, Any]:
    return {
        "rounds": statistics.rounds,
        "generation_tokens": statistics.generation_tokens,
        **{name: getattr(statistics, name) for name in _SHOWN},
        "host_ms_per_round": statistics.host_ms_per_round,
        "translation_counts": dict(sorted(statistics.counts.items())),
    }
