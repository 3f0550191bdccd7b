"""What one request makes of the server's decoder: its sampling, its drafting, its prompt."""

from __future__ import annotations

from dataclasses import replace
from secrets import randbits
from typing import Any

from mlx_lm.server import GenerationArguments, _make_logits_processors

from tokalign.errors import TokalignError
from tokalign.runtime.chat import encode_chat
from tokalign.runtime.decoder import Decoder, Prompt
from tokalign.runtime.draft.suffix_automaton import SuffixAutomaton
from tokalign.runtime.mlx.model_arguments import vocabulary_size
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.session_store import OutputStore
from tokalign.runtime.text import opens_segment
from tokalign.runtime.translation.base import Pair
from tokalign.serve.job import Job
from tokalign.serve.refusal import Refusal
from tokalign.serve.settings import Settings
from tokalign.tokenizer.vocabulary import TargetId

_LEAD = 8
"""Ids of the prompt before a predicted text, so that its beginning is found."""


def check_bias(args: GenerationArguments, vocabulary_size: int) -> None:
    """Raises: Refusal for a bias of an id that the model does not have."""
    wrong = [i for i in args.logits.logit_bias or () if not 0 <= i < vocabulary_size]
    if wrong:
        raise Refusal(
            400,
            f"logit_bias names the id {wrong[0]}, but ids are from 0 to {vocabulary_size - 1}",
        )


def sampling_of(args: GenerationArguments, tokenizer: Any) -> Sampling:
    """How a request's ids are chosen; a seed is drawn if it gives none.

    tokenizer: mlx-lm's. Raises: UsageError.
    """
    sampling = args.sampling
    exempt: tuple[int, ...] = ()
    if sampling.xtc_probability:  # as in mlx-lm's server
        exempt = (*tokenizer.encode("\n"), *tokenizer.eos_token_ids)
    return Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        xtc_probability=sampling.xtc_probability,
        xtc_threshold=sampling.xtc_threshold,
        xtc_exempt=exempt,
        seed=randbits(32) if args.seed is None else args.seed,
        processors=tuple(_make_logits_processors(args)),
    )


def decoder_of(
    decoder: Decoder,
    job: Job,
    settings: Settings,
    *,
    drafts: bool,
    earlier: OutputStore | None,
) -> Decoder:
    """The server's decoder with the options of one request.

    drafts: whether anything may be drafted. earlier: what earlier answers to the same API key left
    to draft from, if they may be used.
    """
    drafting, args = decoder.drafting, job.args
    outputs: list[SuffixAutomaton] = []
    if earlier is not None:
        outputs.append(earlier.text)
        width = vocabulary_size(decoder.target.model)
        drafting = replace(drafting, logits=earlier.logits(width))
    if not drafts:
        drafting = replace(drafting, method="plain", knowledge=None)
    elif args.num_draft_tokens != settings.num_draft_tokens:
        drafting = replace(drafting, num_draft_tokens=args.num_draft_tokens, knowledge=None)
    if job.asked.prediction:
        tokenizer, prompt = decoder.target.tokenizer, job.answer.prompt
        if opens_segment(tokenizer, prompt):
            ids = tokenizer.encode(job.asked.prediction)
        else:
            ids = tokenizer.encode_parts([job.asked.prediction])[0]
        outputs.append(SuffixAutomaton([*prompt[-_LEAD:], *ids]))
    return replace(decoder, drafting=replace(drafting, outputs=tuple(outputs)), sampler=job.sampler)


def prompt_of(decoder: Decoder, job: Job, settings: Settings) -> Prompt:
    """The prompt for both models; the draft has its own rendering if it has a template."""
    target: list[TargetId] = list(job.answer.prompt)
    draft, asked, args = decoder.draft, job.asked, job.args
    template = None if draft is None else draft.template
    goes_on = bool(asked.messages) and asked.messages[-1].get("role") == "assistant"
    if draft is None or template is None or not asked.messages or goes_on:
        return Prompt(target=target)
    variables = {**settings.chat_template_args, **(args.chat_template_kwargs or {})}
    try:
        own = encode_chat(
            draft.tokenizer, template, asked.messages, {"tools": asked.tools, **variables}
        )
    except TokalignError:
        return Prompt(target=target)  # a template that is stricter than the target's
    return Prompt(target=target, draft=own)


def draft_ids(decoder: Decoder, prompt: Prompt) -> list[int]:
    """The draft model's ids for a prompt, by which its caches are kept."""
    if decoder.draft is None or not decoder.drafting.uses_model:
        return []
    if decoder.drafting.translation == "none":
        return list(prompt.target)
    if prompt.draft is not None:
        return list(prompt.draft)
    text = prompt.draft_text(Pair(decoder.target.tokenizer, decoder.draft.tokenizer))
    text.follow(prompt.target)
    return list(text.ids)
