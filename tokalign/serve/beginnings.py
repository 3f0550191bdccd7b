"""How a request begins: its prompt as ids, what it has to match, what is kept of it.

All of it is pure: it reads what is loaded, touches no cache and no array, and takes seconds for
some bodies. So it is done in threads of its own. Read next: `scheduler.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from secrets import randbits
from typing import Any, cast

from mlx_lm.sample_utils import make_logits_processors

from tokalign.conversation.blocks import TEXT_ONLY, AnswerForm
from tokalign.conversation.fill_in import fill_in_prompt
from tokalign.conversation.rendering import Message, rendered
from tokalign.conversation.tools import ANY_TOOL, calls_grammar, can_call, with_call_ids
from tokalign.errors import ContextLengthError, TokalignError, UsageError
from tokalign.runtime.chat import ChatTemplate, Prompt, encode_prompt, plain_text, with_bos
from tokalign.runtime.draft.context_copy import SuffixAutomaton
from tokalign.runtime.grammar import Grammar
from tokalign.runtime.mlx.cache import common_prefix
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.weights import vocabulary_size
from tokalign.serve.admission import Refusal, require
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

_SEED_BITS = (1 << 32) - 1

_LEAD = 8
"""Ids of the prompt before a predicted text, so that its beginning is found."""


def prepare(loaded: Loaded, asked: Asked) -> Answer:
    """Read a request. Raises: Refusal or another TokalignError for one that cannot be honoured."""
    decoder, length = loaded.decoder, loaded.context_length
    if asked.is_chat:
        prompt, marks, opens = _chat(loaded, asked)
    else:
        prompt, marks, opens = Prompt(target=_completion(loaded, asked)), {}, False
    ids = list(prompt.target)
    require(bool(ids), "the prompt is empty")
    if asked.only_counts:
        return Answer(tokenizer=decoder.target.tokenizer, prompt=prompt)
    if len(ids) >= length:
        raise ContextLengthError(len(ids), length)
    size = vocabulary_size(decoder.target.model)
    for token in asked.choosing.logit_bias or ():
        told = f"logit_bias names the id {{}}, but ids are from 0 to {size - 1}"
        require(0 <= token < size, told, token)
    room = length - len(ids)
    form = _form(loaded, asked)
    grammar = _grammar(loaded, asked, form)
    if loaded.forgets:  # other caches are cut back to wherever a later prompt leaves this one
        marks.setdefault(len(ids) - 1, False)
    return Answer(
        tokenizer=decoder.target.tokenizer,
        prompt=prompt,
        marks={mark: is_shared for mark, is_shared in marks.items() if 0 < mark < len(ids)},
        ends=loaded.fill_in_ends if asked.suffix else decoder.target.stop_ids,
        form=form,
        opens_in="thought" if opens else "text",
        max_tokens=min(room, room if asked.max_tokens is None else asked.max_tokens),
        constraint=None if grammar is None else decoder.constrain(grammar, ids),
        not_enforced=() if grammar is None else grammar.ignored,
        prediction=_prediction(decoder.target.tokenizer, ids, asked.prediction, room),
    )


def sampling_of(loaded: Loaded, asked: Asked) -> Sampling:
    """How a request's ids are chosen; a seed is drawn if it gives none. Raises: UsageError."""
    choosing, exempt = asked.choosing, list[int]()
    if choosing.xtc_probability:  # as in mlx-lm's server
        target = loaded.decoder.target
        exempt = [*target.tokenizer.encode("\n"), *target.stop_ids]
    return Sampling(
        temperature=choosing.temperature,
        top_p=choosing.top_p,
        top_k=choosing.top_k,
        min_p=choosing.min_p,
        xtc_probability=choosing.xtc_probability,
        xtc_threshold=choosing.xtc_threshold,
        xtc_exempt=tuple(exempt),
        seed=randbits(32) if choosing.seed is None else choosing.seed & _SEED_BITS,
        processors=tuple(
            make_logits_processors(dict(choosing.logit_bias or {}), **choosing.penalties)
        ),
    )


# -- prompts ---------------------------------------------------------------------------------------


def _chat(loaded: Loaded, asked: Asked) -> tuple[Prompt, dict[int, bool], bool]:
    """A conversation's prompt, the marks in it, and whether it leaves a thought open."""
    messages = [dict(message) for message in asked.messages or ()]
    if loaded.form.calls is not None and loaded.form.calls.has_short_ids:
        messages = with_call_ids(messages)
    tokenizer, template = loaded.decoder.target.tokenizer, loaded.template
    if template is None:
        text = plain_text(messages)
        _require_room(loaded, asked, text)
        return Prompt(target=encode_prompt(tokenizer, text)), {}, False
    tools = [dict(tool) for tool in asked.tools] or None
    variables = {**asked.template_variables, "tools": tools}
    text = rendered(template, messages, variables)
    _require_room(loaded, asked, text)
    ids = tokenizer.encode(text, specials=True)
    marks: dict[int, bool] = {}
    for other, is_shared in _others(messages, every=loaded.forgets):
        mark = _agreed(tokenizer, template, other, variables, ids)
        # The id at the end may be a part of another one, where a letter follows.
        marks.setdefault(min(mark, len(ids)) - 1, is_shared)
    marker = loaded.tokenizer
    opens = marker.response_initial_state == "reasoning"
    if marker.has_thinking:
        opens = opens or marker.rfind_think_start(ids) > marker.rfind_think_end(ids)
    return Prompt(target=ids, draft=_draft_ids(loaded, messages, variables)), marks, opens


def _others(messages: Sequence[Message], *, every: bool) -> Iterator[tuple[list[Message], bool]]:
    """Conversations that begin like this one, and whether any chat may begin so.

    One has the system's message in common. Where `every` one is asked for, one more has another
    last question, and one is the next turn, after an answer.
    """
    question: Message = {"role": "user", "content": ""}
    begin = next((i for i, one in enumerate(messages) if one["role"] != "system"), 0)
    last = max((i for i, one in enumerate(messages) if one["role"] == "user"), default=0)
    if begin:
        yield [*messages[:begin], question], True
    if every and last > begin:
        yield [*messages[:last], question], False
    if every and messages[-1]["role"] != "assistant":
        yield [*messages, {"role": "assistant", "content": "Yes."}, question], False


def _agreed(
    tokenizer: Tokenizer[TargetId],
    template: ChatTemplate,
    messages: Sequence[Message],
    variables: Mapping[str, Any],
    ids: list[TargetId],
) -> int:
    """How many of a prompt's ids another conversation begins with; 0 if it has no rendering."""
    try:
        text = rendered(template, messages, variables)
    except TokalignError:  # a template may want other messages
        return 0
    return common_prefix(tokenizer.encode(text, specials=True), ids)


def _draft_ids(
    loaded: Loaded, messages: Sequence[Message], variables: Mapping[str, Any]
) -> Sequence[Any] | None:
    """The draft's own rendering of a conversation; None if it reads the target's."""
    draft = loaded.decoder.draft
    template = None if draft is None else draft.template
    if draft is None or template is None or messages[-1].get("role") == "assistant":
        return None
    try:
        text = rendered(template, messages, variables)
    except TokalignError:
        return None  # a template that is stricter than the target's
    return draft.tokenizer.encode(text, specials=True)


def _completion(loaded: Loaded, asked: Asked) -> list[TargetId]:
    """The ids of a text, or of two with a gap between them; or the ids that were given."""
    prompt, tokenizer = asked.prompt, loaded.decoder.target.tokenizer
    if isinstance(prompt, str):
        text = fill_in_prompt(loaded.tokenizer, prompt, asked.suffix) if asked.suffix else prompt
        _require_room(loaded, asked, text)
        return encode_prompt(tokenizer, text) if text else with_bos(tokenizer, [])
    if asked.suffix:
        raise Refusal(400, "suffix needs a prompt that is a text, not ids")
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


def _form(loaded: Loaded, asked: Asked) -> AnswerForm:
    """What is looked for in the answer's text: calls only if there are tools."""
    if not asked.is_chat:
        return TEXT_ONLY
    has_tools = bool(asked.tools) or asked.tool_choice is not None
    return loaded.form if has_tools else loaded.form.without_calls()


def _grammar(loaded: Loaded, asked: Asked, form: AnswerForm) -> Grammar | None:
    """What the answer has to match. Raises: Refusal where that cannot be enforced."""
    target = loaded.decoder.target.tokenizer
    grammar, tools = asked.grammar, [dict(tool) for tool in asked.tools]
    choice, several = asked.tool_choice, asked.several_calls
    if grammar is not None:
        grammar = form.placed(grammar, target.vocabulary)
    if choice is not None or (grammar is not None and tools and can_call(form.calls)):
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
