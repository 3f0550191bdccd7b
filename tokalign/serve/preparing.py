"""Reading requests while others are decoded: a prompt as ids, and what the answer has to match.

All of it is pure: it reads what is loaded, and touches no cache and no array. A long prompt or a
large grammar takes seconds, so threads of two lanes prepare requests: what may take long does not
delay what is short. Read next: `scheduler.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from threading import Thread

from mlx_lm.sample_utils import make_logits_processors

from tokalign.conversation.answer_form import TEXT_ONLY, AnswerForm
from tokalign.errors import ContextLengthError, require
from tokalign.runtime.draft.context_copy import predicted
from tokalign.runtime.grammar import Grammar
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.weights import vocabulary_size
from tokalign.serve.admission import Refusal
from tokalign.serve.job import Job, State
from tokalign.serve.models import Loaded
from tokalign.serve.request import ApiRequest
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_SLICE = 1 << 16
"""Characters of a very long prompt that are counted together."""

_CUT_IDS = 16
"""Ids that a cut between two slices may add to their number."""

_TRUSTED = 4
"""Prompts of at most this many characters for each id of the context are encoded uncounted."""

_STRIDE = 4096
"""Ids after which a cache that cannot be cut back is kept on disk, besides at the ends of turns."""

_THREADS = 2
"""In each lane."""

_SHORT = 1 << 16
"""Bytes of a body whose prompt is encoded in some hundredths of a second."""

_Lane = SimpleQueue["tuple[Job, Loaded] | None"]


class Preparing:
    """Two lanes of threads. ready: called after each request."""

    def __init__(self, ready: Callable[[], None]) -> None:
        self._ready = ready
        self._lanes: tuple[_Lane, _Lane] = (SimpleQueue(), SimpleQueue())
        for lane in self._lanes * _THREADS:
            # A daemon, so that the longest prompt does not keep a server from ending.
            Thread(target=self._serve, args=(lane,), name="preparing", daemon=True).start()

    def submit(self, job: Job, loaded: Loaded) -> None:
        """Have a request prepared for the models that are loaded."""
        job.enter(State.PREPARING)
        self._lanes[_may_take_long(job.request)].put((job, loaded))

    def stop(self) -> None:
        """End the threads; nobody waits for them."""
        for lane in self._lanes * _THREADS:
            lane.put(None)

    def _serve(self, lane: _Lane) -> None:
        while (work := lane.get()) is not None:
            job, loaded = work
            try:
                if job.request.abandoned.is_set():
                    raise Refusal(499, "the client has left")
                prepare(loaded, job)
            except Exception as error:  # the client gets it, whatever it is
                job.failure = error
            except BaseException as error:  # a panic in Rust
                job.failure = RuntimeError(f"a library gave up: {type(error).__name__}")
            job.enter(State.PREPARED)
            del work, loaded, job  # no model outlives its use
            self._ready()


def _may_take_long(request: ApiRequest) -> bool:
    """The thread that decodes asks this for every choice, so it looks at no content."""
    is_large = request.size > _SHORT
    return is_large or request.grammar is not None or request.tool_choice is not None


# -- what is read ----------------------------------------------------------------------------------


def prepare(loaded: Loaded, job: Job) -> None:
    """Fill in what a job's prompt decides.

    Raises: Refusal or another TokalignError for a request that cannot be honoured.
    """
    request, decoder, length = job.request, loaded.decoder, loaded.context_length
    target, size = decoder.target, vocabulary_size(decoder.target.model)
    check = partial(_require_room, loaded, request)
    if request.messages is None:
        beginning = loaded.prompts.of_text(request.prompt, request.suffix, size, check)
    else:
        variables = {**request.template_variables, "tools": [*request.tools] or None}
        beginning = loaded.prompts.of_chat(request.messages, variables, request.effort, check)
    job.tokenizer, job.prompt, job.opens_in = target.tokenizer, beginning.prompt, beginning.opens_in
    job.ids = ids = list(job.prompt.target)
    require(bool(ids), "the prompt is empty")
    if request.only_counts:
        return
    if len(ids) >= length:
        raise ContextLengthError(len(ids), length)
    for token in request.logit_bias:
        wrong = f"logit_bias names the id {{}}, but ids are from 0 to {size - 1}"
        require(0 <= token < size, wrong, token)
    marks: dict[int, bool | None] = dict(beginning.marks)
    if loaded.forgets:  # other caches are cut back to wherever a later prompt leaves this one
        marks = dict.fromkeys(range(_STRIDE, len(ids), _STRIDE)) | marks
        marks.setdefault(len(ids) - 1, False)
    job.marks = {mark: is_shared for mark, is_shared in marks.items() if 0 < mark < len(ids)}
    own = loaded.fill_in_ends if request.suffix else target.stop_ids
    job.ends = request.stop_token_ids | (frozenset() if request.ignore_eos else own)
    job.form = loaded.prompts.form if request.messages is not None else TEXT_ONLY
    if not request.tools and request.tool_choice is None:
        job.form = job.form.without_calls()
    room = length - len(ids)
    job.max_tokens = room if request.max_tokens is None else min(room, request.max_tokens)
    job.not_enforced = request.not_enforced
    if request.tools and job.form.calls is None:
        job.not_enforced += ("tools",)
    if (grammar := _grammar(target.tokenizer, request, job.form)) is not None:
        require(not request.ignore_eos, "what an answer has to match ends it; leave out ignore_eos")
        job.constraint = decoder.constrain(grammar, ids)
        job.not_enforced += grammar.ignored
    if beginning.ignores_effort and "reasoning_effort" in request.effort:
        job.not_enforced += ("reasoning_effort",)
    if request.prediction:
        job.prediction = predicted(target.tokenizer, ids, request.prediction, room)


def sampling_of(loaded: Loaded, request: ApiRequest) -> Sampling:
    """How a request's ids are chosen by the models that are loaded."""
    exempt = loaded.decoder.target.xtc_exempt if request.sampling.xtc_probability else ()
    processors = make_logits_processors(dict(request.logit_bias) or None, **request.penalties)
    return replace(request.sampling, xtc_exempt=exempt, processors=tuple(processors))


def _require_room(loaded: Loaded, request: ApiRequest, text: str) -> None:
    """Refuse a text that cannot fit the context, before all of it is encoded.

    A very long text is counted in slices, until there are too many ids. So the time is that of a
    full context, whatever the text. Raises: Refusal.
    """
    tokenizer, length = loaded.decoder.target.tokenizer, loaded.context_length
    if len(text) <= _TRUSTED * length + _SLICE:
        return
    count = 0
    for begin in range(0, len(text), _SLICE):
        if request.abandoned.is_set():
            raise Refusal(499, "the client has left")
        part = tokenizer.encode(text[begin : begin + _SLICE], specials=True)
        count += max(0, len(part) - _CUT_IDS)
        if count >= length:
            estimate = round(count * len(text) / min(len(text), begin + _SLICE))
            raise Refusal(
                400,  # with both numbers, see `refusal_of`
                f"prompt is too long: about {estimate} tokens > {length - 1} maximum; "
                f"{ContextLengthError.remedy}",
                code="context_length_exceeded",
            )


def _grammar(target: Tokenizer[TargetId], request: ApiRequest, form: AnswerForm) -> Grammar | None:
    """What the answer has to match. Raises: UsageError, Refusal where that cannot be enforced."""
    grammar = form.grammar(
        request.grammar,
        target.vocabulary,
        tools=request.tools,
        choice=request.tool_choice,
        several=bool(request.several_calls),
    )
    if grammar is not None and target.level is Level.IDS_ONLY:
        raise Refusal(
            400,
            f"no grammar can be enforced: the model's tokenizer is used by its ids only "
            f"({target.spec.why})",
            code="unsupported_parameter",
        )
    return grammar
