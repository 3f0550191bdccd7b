"""How a request begins: its prompt as ids, what it has to match, what is kept of it.

Read next: `scheduler.py`.
"""

from __future__ import annotations

from dataclasses import replace
from queue import Queue
from re import findall
from secrets import randbits
from typing import Any, cast

from mlx_lm.server import ResponseGenerator, _make_logits_processors

from tokalign.errors import ContextLengthError
from tokalign.runtime.grammar import Grammar
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.weights import vocabulary_size
from tokalign.serve.admission import Refusal, refusal_of, require
from tokalign.serve.blocks import TEXT_ONLY, AnswerForm
from tokalign.serve.job import Answer, Asked, Job
from tokalign.serve.metrics import Metrics
from tokalign.serve.models import Contexts
from tokalign.serve.tools import ANY_TOOL, calls_grammar, can_call, with_call_ids
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.vocabulary import TargetId


class Beginnings(ResponseGenerator):  # type: ignore[misc]
    """The part of the scheduler that starts requests."""

    metrics: Metrics
    _contexts: Contexts

    def _start(self, queue: Queue[Any], asked: Asked) -> Job | None:
        """Read a request. Returns: no job if nothing but its prompt's tokens are asked about.

        Raises: Refusal or UsageError for one that cannot be honoured.
        """
        models = self.model_provider
        prompt, marks, initial_state = self._read(asked)
        answer = Answer(
            models.decoder.target.tokenizer,
            prompt,
            self._form(asked),
            "thought" if initial_state == "reasoning" else "text",
        )
        if asked.only_counts:
            queue.put(answer)
            return None
        length = models.context_length
        if len(prompt) >= length:
            raise ContextLengthError(len(prompt), length)
        size = vocabulary_size(models.decoder.target.model)
        for token in asked.logits.logit_bias or ():
            told = f"logit_bias names the id {{}}, but ids are from 0 to {size - 1}"
            require(0 <= token < size, told, token)
        owner = models.model_key, asked.api_key
        opening = self._contexts.fetch(owner, prompt, layers=models.layers)
        answer.prompt_cache_count = len(opening.ids)
        grammar = self._grammar(asked)
        job = Job(
            queue=queue,
            asked=asked,
            owner=owner,
            answer=answer,
            tokenizer=models.tokenizer,
            sampler=sampling_of(asked, models.tokenizer),
            max_tokens=min(asked.max_tokens, length - len(prompt)),
            opening=opening,
            marks=marks,
            grammar=grammar,
            constraint=None if grammar is None else models.decoder.constrain(grammar, prompt),
        )
        self.metrics.prompt_tokens.inc(len(prompt))
        self.metrics.cached_tokens.inc(len(opening.ids))
        queue.put(answer)
        return job

    def _grammar(self, asked: Asked) -> Grammar | None:
        """What the answer has to match. Raises: Refusal where that cannot be enforced."""
        target = self.model_provider.decoder.target.tokenizer
        form = self._form(asked)
        grammar, tools, choice = asked.grammar, asked.tools or (), asked.tool_choice
        if grammar is not None:
            grammar = form.placed(grammar, target.vocabulary)
        if choice is not None or (grammar is not None and tools and can_call(form.calls)):
            several = asked.several_calls
            calls = calls_grammar(
                form.calls, target.vocabulary, tools, choice or ANY_TOOL, several=several
            )
            grammar = calls if choice is not None or grammar is None else grammar | calls
        if grammar is not None and target.level is Level.IDS_ONLY:
            raise Refusal(
                400,
                f"no grammar can be enforced: the model's tokenizer is used by its ids only "
                f"({target.spec.why})",
                code="unsupported_parameter",
            )
        return grammar

    def _form(self, asked: Asked) -> AnswerForm:
        """What is looked for in the answer."""
        if asked.request_type != "chat":
            return TEXT_ONLY
        form = AnswerForm.of(self.model_provider.tokenizer)
        return form if asked.tools or asked.tool_choice is not None else form.without_calls()

    def _read(self, asked: Asked) -> tuple[list[TargetId], dict[int, str], str]:
        """The prompt's ids, the marks in it, and the text state that the answer begins in."""
        models = self.model_provider
        calls = AnswerForm.of(models.tokenizer).calls
        if calls is not None and calls.has_short_ids:
            asked.messages = with_call_ids(asked.messages)
        try:
            prompt, segments, kinds, state, _ = self._tokenize(models.tokenizer, asked, asked)
        except Exception as error:  # templates raise what they like about a conversation
            raise refusal_of(error, status=400) from error
        require(bool(prompt), "the prompt is empty")
        marks: dict[int, str] = {}
        end = 0
        for segment, kind in zip(segments, kinds, strict=True):
            end += len(segment)
            # What an answer leaves can be trimmed to any prefix, except where nothing can be.
            if kind == "system" or not models.trims:
                marks[min(end, len(prompt) - 1)] = kind
        return list(prompt), marks, state

    def _tokenize(self, tokenizer: Any, asked: Asked, args: Asked) -> Any:
        """See mlx-lm. A completion's prompt may be given as ids, and may have a suffix."""
        ids = asked.prompt
        if asked.suffix:
            asked = replace(asked, prompt=fill_in_prompt(tokenizer, ids, asked.suffix))
        elif not isinstance(ids, str):
            target = self.model_provider.decoder.open_target()
            target.require_ids("prompt", cast("list[TargetId]", ids))
            return ids, [ids], ["assistant"], "normal", None
        return super()._tokenize(tokenizer, asked, args)


def sampling_of(asked: Asked, tokenizer: Any) -> Sampling:
    """How a request's ids are chosen; a seed is drawn if it gives none.

    tokenizer: mlx-lm's. Raises: UsageError.
    """
    exempt: tuple[int, ...] = ()
    if asked.sampling.xtc_probability:  # as in mlx-lm's server
        exempt = (*tokenizer.encode("\n"), *tokenizer.eos_token_ids)
    return Sampling(
        **vars(asked.sampling),
        xtc_exempt=exempt,
        seed=randbits(32) if asked.seed is None else asked.seed,
        processors=tuple(_make_logits_processors(asked)),
    )


_FILL_IN = (
    "<|fim_prefix|>{0}<|fim_suffix|>{1}<|fim_middle|>",  # Qwen, CodeGemma
    "<fim_prefix>{0}<fim_suffix>{1}<fim_middle>",  # StarCoder, Granite
    "<｜fim▁begin｜>{0}<｜fim▁hole｜>{1}<｜fim▁end｜>",  # DeepSeek
    "<|code_prefix|>{0}<|code_suffix|>{1}<|code_middle|>",  # GLM
    "[SUFFIX]{1}[PREFIX]{0}",  # Codestral
)
"""How models are asked for the text between two others."""


def fill_in_prompt(tokenizer: Any, prompt: str | list[int], suffix: str) -> str:
    """The text that asks for what stands between `prompt` and `suffix`.

    tokenizer: mlx-lm's. Raises: Refusal if the model was not made for it.
    """
    if not isinstance(prompt, str):
        raise Refusal(400, "suffix needs a prompt that is a text, not ids")
    tokens = tokenizer.get_added_vocab()
    for form in _FILL_IN:
        if all(mark in tokens for mark in findall(r"<[^>]+>|\[[A-Z]+\]", form)):
            return form.format(prompt, suffix)
    raise Refusal(
        400,
        "suffix is not served: the tokenizer of this model has no tokens that mark a text to be "
        "filled in; leave the field out",
        code="unsupported_parameter",
    )
