"""Reading requests while others are decoded: a prompt as ids, and what the answer has to match.

All of it is pure: it reads what is loaded, and touches no cache and no array. A long prompt or a
large grammar takes seconds, so threads prepare requests. Read next: `scheduler.py`.
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

_LONG = 8
"""A text of more characters for each id of the context is very long."""

_CUT_IDS = 16
"""Ids that a cut in a text may add to their number."""

_STRIDE = 4096
"""Ids after which a cache that cannot be cut back is kept on disk, besides at the ends of turns."""

_THREADS = 4


class Preparing:
    """Threads that prepare requests. ready: called after each request."""

    def __init__(self, ready: Callable[[], None]) -> None:
        self._ready = ready
        self._queue: SimpleQueue[tuple[Job, Loaded] | None] = SimpleQueue()
        for _ in range(_THREADS):
            # A daemon, so that the longest prompt does not keep a server from ending.
            Thread(target=self._serve, name="preparing", daemon=True).start()

    def submit(self, job: Job, loaded: Loaded) -> None:
        """Have a request prepared for the models that are loaded."""
        job.enter(State.PREPARING)
        self._queue.put((job, loaded))

    def stop(self) -> None:
        """End the threads; nobody waits for them."""
        for _ in range(_THREADS):
            self._queue.put(None)

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
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
    named = {"logit_bias": request.logit_bias, "stop_token_ids": request.stop_token_ids}
    for field, tokens in named.items():
        wrong = f"{field} names the id {{}}, but ids are from 0 to {size - 1}"
        for token in tokens:
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
    job.not_enforced = request.not_enforced + beginning.ignored
    if request.tools and job.form.calls is None:
        job.not_enforced += ("tools",)
    if (grammar := _grammar(target.tokenizer, request, job.form)) is not None:
        require(not request.ignore_eos, "what an answer has to match ends it; leave out ignore_eos")
        job.constraint = decoder.constrain(grammar, ids)
        job.not_enforced += grammar.ignored
    if request.prediction:
        job.prediction = predicted(target.tokenizer, ids, request.prediction, room)


def sampling_of(loaded: Loaded, request: ApiRequest) -> Sampling:
    """How a request's ids are chosen by the models that are loaded."""
    exempt = loaded.decoder.target.xtc_exempt if request.sampling.xtc_probability else ()
    processors = make_logits_processors(dict(request.logit_bias) or None, **request.penalties)
    return replace(request.sampling, xtc_exempt=exempt, processors=tuple(processors))


def _require_room(loaded: Loaded, request: ApiRequest, text: str) -> None:
    """Refuse a very long text that cannot fit the context, by its beginning: a body of 8 MB has
    three million ids. Raises: Refusal."""
    tokenizer, length = loaded.decoder.target.tokenizer, loaded.context_length
    beginning = text[: max(_LONG * length, 1 << 16)]
    if len(beginning) == len(text):
        return
    count = len(tokenizer.encode(beginning, specials=True))
    if count >= length + _CUT_IDS:
        estimate = round(count * len(text) / len(beginning))
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
