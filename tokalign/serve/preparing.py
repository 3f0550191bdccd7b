"""Reading requests while others are decoded: a prompt as ids, and what the answer has to match.

All of it is pure: it reads what is loaded, and touches no cache and no array. A long prompt or a
large grammar takes seconds, so it is done in threads of its own, in two lanes: what may take long
does not keep what is short waiting. Read next: `scheduler.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from threading import Thread

from mlx_lm.sample_utils import make_logits_processors

from tokalign.conversation.blocks import TEXT_ONLY, AnswerForm
from tokalign.errors import ContextLengthError, require
from tokalign.runtime.draft.context_copy import predicted
from tokalign.runtime.grammar import Grammar
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.weights import vocabulary_size
from tokalign.serve.admission import Refusal
from tokalign.serve.job import Answer
from tokalign.serve.models import Loaded
from tokalign.serve.request import Asked
from tokalign.serve.waiting import Waiting
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_SLICE = 1 << 16
"""Characters of a very long prompt that are counted together."""

_CUT_IDS = 16
"""Ids that a cut between two slices may add to their number."""

_TRUSTED = 4
"""Prompts of at most so many characters for each id of the context are encoded uncounted."""

_THREADS = 2
"""In each lane."""

_SHORT = 1 << 16
"""Characters of a prompt that is encoded in some hundredths of a second."""

_Lane = SimpleQueue["tuple[Waiting, Loaded] | None"]


class Preparing:
    """Two lanes of threads. ready: called after each request."""

    def __init__(self, ready: Callable[[], None]) -> None:
        self._ready = ready
        self._lanes: tuple[_Lane, _Lane] = (SimpleQueue(), SimpleQueue())
        for lane in self._lanes * _THREADS:
            # A daemon, so that the longest prompt does not keep a server from ending.
            Thread(target=self._serve, args=(lane,), name="preparing", daemon=True).start()

    def submit(self, one: Waiting, loaded: Loaded) -> None:
        """Have a request prepared for the models that are loaded."""
        one.is_submitted = True
        self._lanes[_may_take_long(one.asked)].put((one, loaded))

    def stop(self) -> None:
        """End the threads; nobody waits for them."""
        for lane in self._lanes * _THREADS:
            lane.put(None)

    def _serve(self, lane: _Lane) -> None:
        while (work := lane.get()) is not None:
            one, loaded = work
            try:
                if one.asked.abandoned.is_set():
                    raise Refusal(499, "the client has left")
                one.result = prepare(loaded, one.asked)
            except Exception as error:  # it is told to the client, whatever it is
                one.result = error
            except BaseException as error:  # a panic in Rust
                one.result = RuntimeError(f"a library gave up: {type(error).__name__}")
            del work, loaded, one  # no model outlives its use
            self._ready()


def _may_take_long(asked: Asked) -> bool:
    size = len(asked.prompt) + len(asked.suffix) + len(asked.prediction or "")
    size += sum(len(str(part)) for part in (*(asked.messages or ()), *asked.tools))
    return size > _SHORT or asked.grammar is not None or asked.tool_choice is not None


# -- what is read ----------------------------------------------------------------------------------


def prepare(loaded: Loaded, asked: Asked) -> Answer:
    """Read a request. Raises: Refusal or another TokalignError for one that cannot be honoured."""
    decoder, length, said = loaded.decoder, loaded.context_length, asked.prediction
    target, size = decoder.target, vocabulary_size(decoder.target.model)
    check = partial(_require_room, loaded, asked)
    if asked.messages is None:
        given = loaded.prompts.of_text(asked.prompt, asked.suffix, size, check)
    else:
        variables = {**asked.template_variables, "tools": [*asked.tools] or None}
        given = loaded.prompts.of_chat(asked.messages, variables, check)
    prompt, known, opens_in = given
    ids, marks = list(prompt.target), dict(known)
    require(bool(ids), "the prompt is empty")
    if asked.only_counts:
        return Answer(tokenizer=target.tokenizer, prompt=prompt)
    if len(ids) >= length:
        raise ContextLengthError(len(ids), length)
    for token in asked.logit_bias:
        told = f"logit_bias names the id {{}}, but ids are from 0 to {size - 1}"
        require(0 <= token < size, told, token)
    room = length - len(ids)
    form = loaded.prompts.form if asked.messages is not None else TEXT_ONLY
    if not asked.tools and asked.tool_choice is None:
        form = form.without_calls()
    grammar = _grammar(target.tokenizer, asked, form)
    if loaded.forgets:  # other caches are cut back to wherever a later prompt leaves this one
        marks.setdefault(len(ids) - 1, False)
    return Answer(
        tokenizer=target.tokenizer,
        prompt=prompt,
        marks={mark: is_shared for mark, is_shared in marks.items() if 0 < mark < len(ids)},
        ends=loaded.fill_in_ends if asked.suffix else target.stop_ids,
        form=form,
        opens_in=opens_in,
        max_tokens=min(room, room if asked.max_tokens is None else asked.max_tokens),
        constraint=None if grammar is None else decoder.constrain(grammar, ids),
        not_enforced=() if grammar is None else grammar.ignored,
        prediction=predicted(target.tokenizer, ids, said, room) if said else None,
    )


def sampling_of(loaded: Loaded, asked: Asked) -> Sampling:
    """How a request's ids are chosen by the models that are loaded."""
    exempt, target = list[int](), loaded.decoder.target
    if asked.sampling.xtc_probability:  # as in mlx-lm's server
        exempt = [*target.tokenizer.encode("\n"), *target.stop_ids]
    processors = make_logits_processors(dict(asked.logit_bias) or None, **asked.penalties)
    return replace(asked.sampling, xtc_exempt=tuple(exempt), processors=tuple(processors))


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
