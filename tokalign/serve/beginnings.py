"""How a request begins: its prompt as ids, what it has to match, what is kept of it.

All of it is pure: it reads what is loaded, touches no cache and no array, and takes seconds for
some bodies. So it is done in threads of its own. Read next: `scheduler.py`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import cast

from mlx_lm.sample_utils import make_logits_processors

from tokalign.conversation.blocks import TEXT_ONLY, AnswerForm
from tokalign.conversation.fill_in import fill_in_prompt
from tokalign.conversation.prompts import ChatPrompt
from tokalign.errors import ContextLengthError, UsageError, require
from tokalign.runtime.chat import Prompt, encode_prompt, with_bos
from tokalign.runtime.draft.context_copy import SuffixAutomaton
from tokalign.runtime.grammar import Grammar
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.weights import vocabulary_size
from tokalign.serve.admission import Refusal
from tokalign.serve.job import Answer
from tokalign.serve.models import Loaded
from tokalign.serve.request import Asked
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_SLICE = 1 << 16
"""Characters of a very long prompt that are counted together."""

_CUT_IDS = 16
"""Ids that a cut between two slices may add to their number."""

_TRUSTED = 4
"""Prompts of at most so many characters for each id of the context are encoded uncounted."""

_LEAD = 8
"""Ids of the prompt before a predicted text, so that its beginning is found."""


def prepare(loaded: Loaded, asked: Asked) -> Answer:
    """Read a request. Raises: Refusal or another TokalignError for one that cannot be honoured."""
    decoder, length = loaded.decoder, loaded.context_length
    if asked.messages is not None:
        variables = {**asked.template_variables, "tools": [*asked.tools] or None}
        check = partial(_require_room, loaded, asked)
        prompt, known, opens_in = loaded.prompts.write(asked.messages, variables, check)
    else:
        prompt, known, opens_in = ChatPrompt(Prompt(target=_completion(loaded, asked)))
    ids, marks = list(prompt.target), dict(known)
    require(bool(ids), "the prompt is empty")
    if asked.only_counts:
        return Answer(tokenizer=decoder.target.tokenizer, prompt=prompt)
    if len(ids) >= length:
        raise ContextLengthError(len(ids), length)
    size = vocabulary_size(decoder.target.model)
    for token in asked.logit_bias:
        told = f"logit_bias names the id {{}}, but ids are from 0 to {size - 1}"
        require(0 <= token < size, told, token)
    room = length - len(ids)
    form = loaded.prompts.form if asked.is_chat else TEXT_ONLY
    if not asked.tools and asked.tool_choice is None:
        form = form.without_calls()
    grammar = _grammar(decoder.target.tokenizer, asked, form)
    if loaded.forgets:  # other caches are cut back to wherever a later prompt leaves this one
        marks.setdefault(len(ids) - 1, False)
    return Answer(
        tokenizer=decoder.target.tokenizer,
        prompt=prompt,
        marks={mark: is_shared for mark, is_shared in marks.items() if 0 < mark < len(ids)},
        ends=loaded.fill_in_ends if asked.suffix else decoder.target.stop_ids,
        form=form,
        opens_in=opens_in,
        max_tokens=min(room, room if asked.max_tokens is None else asked.max_tokens),
        constraint=None if grammar is None else decoder.constrain(grammar, ids),
        not_enforced=() if grammar is None else grammar.ignored,
        prediction=_prediction(decoder.target.tokenizer, ids, asked.prediction, room),
    )


def sampling_of(loaded: Loaded, asked: Asked) -> Sampling:
    """How a request's ids are chosen by the models that are loaded."""
    exempt, target = list[int](), loaded.decoder.target
    if asked.sampling.xtc_probability:  # as in mlx-lm's server
        exempt = [*target.tokenizer.encode("\n"), *target.stop_ids]
    processors = make_logits_processors(dict(asked.logit_bias) or None, **asked.penalties)
    return replace(asked.sampling, xtc_exempt=tuple(exempt), processors=tuple(processors))


# -- prompts ---------------------------------------------------------------------------------------


def _completion(loaded: Loaded, asked: Asked) -> list[TargetId]:
    """The ids of a text, or of two with a gap between them; or the ids that were given."""
    prompt, tokenizer = asked.prompt, loaded.decoder.target.tokenizer
    if isinstance(prompt, str):
        text = (
            fill_in_prompt(loaded.prompts.library, prompt, asked.suffix) if asked.suffix else prompt
        )
        _require_room(loaded, asked, text)
        return encode_prompt(tokenizer, text) if text else with_bos(tokenizer, [])
    if asked.suffix:
        raise UsageError("suffix needs a prompt that is a text, not ids")
    size = vocabulary_size(loaded.decoder.target.model)
    for place, token in enumerate(prompt):
        if not 0 <= token < size:
            raise UsageError(
                f"prompt[{place}] is {token}, but the model's ids are from 0 to {size - 1}"
            )
    return cast("list[TargetId]", list(prompt))


def _require_room(loaded: Loaded, asked: Asked, text: str) -> None:
    """Refuse a text that cannot fit the context, before all of it is encoded.

    A very long text is counted in slices, until there are too many ids. So the time is that of a
    full context, whatever the text. Raises: Refusal.
    """
    tokenizer, length = loaded.decoder.target.tokenizer, loaded.context_length
    if len(text) <= _TRUSTED * length + _SLICE:
        return
    count = 0
    for begin in range(0, len(text), _SLICE):
        if asked.abandoned.is_set():
            raise Refusal(499, "the client has left")
        part = tokenizer.encode(text[begin : begin + _SLICE], specials=True)
        count += max(0, len(part) - _CUT_IDS)
        if count >= length:
            raise Refusal(
                400,
                f"prompt is too long: its {len(text):,} characters have more than {length:,} "
                "tokens, and no more fit the model's context; shorten it",
                code="context_length_exceeded",
            )


# -- what an answer has to match, and may repeat ---------------------------------------------------


def _grammar(target: Tokenizer[TargetId], asked: Asked, form: AnswerForm) -> Grammar | None:
    """What the answer has to match. Raises: UsageError, Refusal where that cannot be enforced."""
    grammar = form.grammar(
        asked.grammar,
        target.vocabulary,
        tools=asked.tools,
        choice=asked.tool_choice,
        several=asked.several_calls,
    )
    if grammar is not None and target.level is Level.IDS_ONLY:
        raise Refusal(
            400,
            f"no grammar can be enforced: the model's tokenizer is used by its ids only "
            f"({target.spec.why})",
            code="unsupported_parameter",
        )
    return grammar


def _prediction(
    tokenizer: Tokenizer[TargetId], prompt: list[TargetId], text: str | None, room: int
) -> SuffixAutomaton | None:
    """An index of a text that the answer may repeat, as far as there is room for it."""
    if not text:
        return None
    text = text[: room * _TRUSTED]
    if tokenizer.opens_segment(prompt):
        ids = tokenizer.encode(text)
    else:
        ids = tokenizer.encode_parts([text])[0]
    return SuffixAutomaton([*prompt[-_LEAD:], *ids[:room]])
