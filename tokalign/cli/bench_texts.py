"""`tokalign bench --text`: texts play the target, so no weights but a draft model's are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from tokalign.api.assemble import keep_loaded, load_models
from tokalign.api.choosing import choose_drafting
from tokalign.cli.bench import Options
from tokalign.cli.output import figures_table, note, paragraph, progress, show
from tokalign.cli.texts import read_texts
from tokalign.errors import UsageError
from tokalign.evaluate.comparison import Condition, conditions_of, drafting_of
from tokalign.evaluate.replay import MakeDrafter, replay_texts
from tokalign.names.registry import Resolved, resolve_tokenizer
from tokalign.runtime.drafting import Drafting, make_drafter, make_model_drafter
from tokalign.runtime.rounds import Drafter
from tokalign.runtime.statistics import Statistics
from tokalign.runtime.translation.base import Pair
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId

if TYPE_CHECKING:
    from tokalign.runtime.decoder import LanguageModel

_DECISIVE = ("tokens_per_round", "rows_per_round", "draft_passes_per_round")
_FIGURES = (*_DECISIVE, "draft_acceptance_rate", "coverage", "mean_accepted_length")


def show_texts(options: Options) -> None:
    """Measure every condition on the texts, and print what it saves. Raises: as `prepare`."""
    makers, texts = prepare(options)
    with progress(len(makers) * len(texts), "playing") as advance:
        played = {
            condition: replay_texts(
                texts, make, prompt_tokens=options.prompt_tokens, progress=advance
            )
            for condition, make in makers.items()
        }
    result: dict[str, Any] = {
        "target": options.target,
        "draft": options.draft,
        "files": [str(file) for file in options.files],
        "texts": len(texts),
        "conditions": [
            {"name": condition.name, "k": condition.k, **_figures(statistics)}
            for condition, statistics in played.items()
        ],
    }
    verdict = paragraph(_verdict(played))
    names = ("name", "k", *_DECISIVE)
    show(result, lambda: f"{verdict}\n\n{figures_table(names, result['conditions'])}")


def _verdict(played: Mapping[Condition, Statistics]) -> str:
    best = max(played, key=lambda condition: played[condition].tokens_per_round)
    figures = played[best]
    return (
        f"The most tokens per pass come from {best}: {figures.tokens_per_round:.2f}, where plain "
        f"decoding has 1, with {figures.rows_per_round:.2f} rows to verify. A bench without --text "
        "says what that is in time."
    )


def prepare(options: Options) -> tuple[dict[Condition, MakeDrafter], list[list[TargetId]]]:
    """The drafters of every condition, and the ids of the texts. Raises: UsageError without texts,
    or for the draft length `auto`, which needs costs."""
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
    encoded = target.encode_batch(texts)
    if all(len(ids) <= options.prompt_tokens for ids in encoded):
        raise UsageError(
            f"no text is longer than its prompt of {options.prompt_tokens} tokens; give longer "
            "texts, or fewer --prompt-tokens"
        )
    for ids in encoded:
        drafting = drafting.for_prompt(ids)
    pair = None if model is None else (target, model.tokenizer)
    names = options.methods or None
    makers = {
        condition: _maker(drafting_of(drafting, condition), target, model, options.prompt_tokens)
        for condition in conditions_of(drafting, names, lengths=options.lengths, pair=pair)
        if condition.drafts
    }
    return makers, encoded


def _load(options: Options) -> tuple[Tokenizer[TargetId], LanguageModel[DraftId] | None, Drafting]:
    trust = options.trust_remote_code
    target: Resolved[TargetId] = resolve_tokenizer(options.target, trust_remote_code=trust)
    note(target.description)
    model = None
    if options.draft is not None:
        [model] = load_models(
            [options.draft], dtype=options.dtype, trust_remote_code=trust, note=note
        )
        keep_loaded()
    drafting = choose_drafting(
        target.tokenizer,
        None if model is None else model.tokenizer,
        options.drafting,
        model_folder=target.folder,
        note=cache(note),
    )
    return target.tokenizer, model, drafting


def _maker(
    drafting: Drafting,
    target: Tokenizer[TargetId],
    model: LanguageModel[DraftId] | None,
    prompt_tokens: int,
) -> MakeDrafter:
    if model is None or not drafting.options.uses_model:
        return lambda _: make_drafter(drafting)
    from tokalign.runtime.chat import Prompt
    from tokalign.runtime.mlx.draft_session import DraftModelSession

    pair, session = Pair(target, model.tokenizer), DraftModelSession(model.model)

    def make(ids: Sequence[TargetId]) -> Drafter:
        prompt = Prompt(target=ids[:prompt_tokens])
        return make_drafter(drafting, make_model_drafter(drafting, pair, prompt, session))

    return make


def _figures(statistics: Statistics) -> dict[str, Any]:
    return {
        "rounds": statistics.rounds,
        "generation_tokens": statistics.generation_tokens,
        **{name: getattr(statistics, name) for name in _FIGURES},
        "host_ms_per_round": statistics.host_ms_per_round,
        "translation_counts": dict(sorted(statistics.counts.items())),
    }
