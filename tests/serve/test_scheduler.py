"""Whatever happens, a request gets an end; and what one body asks for keeps no other waiting."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Queue
from random import Random
from threading import Event
from types import SimpleNamespace
from typing import Any, cast
from weakref import ref

import pytest
from block_drafters import block_config, random_block_drafter, write_block_drafter
from eagle_drafters import eagle_config, random_eagle, write_eagle
from places import DEMO
from processes import wait_for
from served import LOOP, demo_settings

from tokalign.conversation.prompts import fill_in_ends
from tokalign.errors import UsageError
from tokalign.names.memory import working_set
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.grammar import Grammar
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.rounds import Reading
from tokalign.serve import Settings, keeping, preparing
from tokalign.serve import models as served_models
from tokalign.serve import scheduler as schedulers
from tokalign.serve.admission import Refusal
from tokalign.serve.job import Emitted, Item, Job, State
from tokalign.serve.metrics import Metrics
from tokalign.serve.models import Models
from tokalign.serve.request import ApiRequest
from tokalign.serve.scheduler import Scheduler

FREELY: Any = {"logit_bias": {int(token): bias for token, bias in LOOP["logit_bias"].items()}}
"""No id ends such an answer."""


@contextmanager
def scheduling(**settings: Any) -> Iterator[Scheduler]:
    asked: Settings = demo_settings(**{"draft_model": None, **settings})
    scheduler = Scheduler(Models(asked, lambda _: None), asked, Metrics())
    try:
        yield scheduler
    finally:
        scheduler.stop_and_join()


def submit(scheduler: Scheduler, prompt: str = "Wisła", **more: Any) -> Queue[Item]:
    items: Queue[Item] = Queue()
    scheduler.submit(ApiRequest(prompt=prompt, **more), items.put)
    return items


def end_of(items: Queue[Item]) -> Exception | None:
    """What a request ends with; all of its items are in the queue, or will be."""
    while (item := items.get(timeout=60)) is not None:
        if isinstance(item, Exception):
            return item
    return None


def is_refused(items: Queue[Item]) -> bool:
    error = end_of(items)
    return isinstance(error, Refusal) and error.status == 503 and items.empty()


def held_back(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> tuple[Event, Event]:
    """Have a function wait; two events: it is called, and it may go on."""
    called, release = Event(), Event()
    function: Callable[..., Any] = getattr(module, name)

    def wait(*given: Any, **named: Any) -> Any:
        called.set()
        assert release.wait(60)
        return function(*given, **named)

    monkeypatch.setattr(module, name, wait)
    return called, release


def test_an_answer_its_tokens_and_its_end_come_in_this_order() -> None:
    with scheduling() as scheduler:
        items = submit(scheduler, max_tokens=5)
        scheduler.wait_until_ready()
        assert scheduler.is_healthy
        assert end_of(submit(scheduler, only_counts=True)) is None
        found = []
        while (item := items.get(timeout=60)) is not None:
            found.append(item)
    answer, *rest = found
    tokens = [item for item in rest if isinstance(item, Emitted)]
    assert isinstance(answer, Job)
    assert [token.finish_reason for token in tokens] == [None] * 4 + ["length"]
    assert answer.put is schedulers._unheard  # client and job no longer hold each other


def test_the_end_of_the_server_ends_what_runs_waits_and_is_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with scheduling(decode_concurrency=2) as scheduler:
        scheduler.wait_until_ready()
        advance = scheduler._advance
        monkeypatch.setattr(scheduler, "_advance", lambda: (time.sleep(0.1), advance()))
        running = [submit(scheduler, **FREELY) for _ in range(2)]
        for items in running:
            assert isinstance(items.get(timeout=60), Job)
        running.append(submit(scheduler, **FREELY))
        called, release = held_back(monkeypatch, preparing, "prepare")
        prepared = submit(scheduler)
        assert called.wait(60)
        scheduler.stop()
        assert all(map(is_refused, [*running, prepared]))
        release.set()
        with pytest.raises(Refusal, match="shutting down"):
            submit(scheduler)


def test_the_end_of_the_server_is_told_while_models_are_loading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called, release = held_back(monkeypatch, served_models, "load_decoder")
    with scheduling() as scheduler:
        waiting = [submit(scheduler) for _ in range(3)]
        assert called.wait(60)
        assert not scheduler.is_healthy
        scheduler.stop()
        assert all(map(is_refused, waiting))
        release.set()


def test_a_model_that_cannot_be_loaded_is_said_and_ends_what_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called, release = held_back(monkeypatch, served_models, "resolve_model")
    with scheduling(model="/nowhere") as scheduler:
        assert called.wait(60)
        waiting = submit(scheduler)
        release.set()
        with pytest.raises(Exception, match="nowhere"):
            scheduler.wait_until_ready()
        assert is_refused(waiting)
        assert not scheduler.is_healthy


class Panic(BaseException):
    """What a library in Rust raises where it gives up."""


@pytest.mark.parametrize("error", [UsageError("no"), ValueError("no"), Panic("no")])
def test_a_request_that_cannot_be_prepared_gets_an_error(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    with scheduling() as scheduler:
        for _ in range(2 * preparing._THREADS):  # no thread dies of it

            def fail(*_: Any) -> Any:
                raise error

            monkeypatch.setattr(preparing, "prepare", fail)
            assert isinstance(end_of(submit(scheduler)), Exception)
        monkeypatch.undo()
        assert end_of(submit(scheduler, max_tokens=2)) is None


def test_a_text_that_cannot_fit_the_context_is_not_encoded_to_its_end() -> None:
    with scheduling() as scheduler:
        scheduler.wait_until_ready()
        tokenizer = scheduler.models.loaded.decoder.target.tokenizer
        encode, read = tokenizer.encode, []

        def count(text: str, **named: Any) -> Any:
            read.append(len(text))
            return encode(text, **named)

        cast("Any", tokenizer).encode = count
        for text in ("a" * 3_000_000, "Zażółć gęślą jaźń. " * 150_000):
            error = end_of(submit(scheduler, text))
            assert isinstance(error, Refusal)
            assert (error.status, error.code) == (400, "context_length_exceeded")
        assert sum(read) < 1_000_000


def begun_at_once(
    monkeypatch: pytest.MonkeyPatch, memory: float, prompts: Sequence[str]
) -> tuple[int, float, float]:
    """How many requests had caches at the same time; bytes of the models, and of the caches that
    one request was expected to have at most."""
    monkeypatch.setattr(keeping, "working_set", lambda: memory)
    with scheduling() as scheduler:
        scheduler.wait_until_ready()
        advance, kept, begun, expected = scheduler._advance, scheduler._kept, [0], [0.0]

        def count() -> None:
            advance()
            begun.append(sum(job.answering is not None for job in scheduler._jobs))
            expected.extend(kept._expected_bytes([job]) for job in scheduler._jobs)

        monkeypatch.setattr(scheduler, "_advance", count)
        asked: Any = {"max_tokens": 250, "num_draft_tokens": 0, **FREELY}  # they fill their arrays
        answers = [submit(scheduler, text, **asked) for text in prompts]
        assert all(end_of(items) is None for items in answers)
        return max(begun), scheduler.models.loaded.nbytes, max(expected)


def test_caches_that_find_no_room_in_memory_wait_for_those_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts = ["Wisła"] * 4
    begun, _, _ = begun_at_once(monkeypatch, working_set(), prompts)
    assert begun > 2
    begun, models, one = begun_at_once(monkeypatch, 0, prompts)
    assert begun == 1
    begun, _, _ = begun_at_once(monkeypatch, models + 2.5 * one, prompts)
    assert begun == 2


def expected_at_first(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> float:
    """What an answer is expected to take before anything of it is read."""
    with scheduling(**settings) as scheduler:
        scheduler.wait_until_ready()
        advance, expected = scheduler._advance, list[float]()

        def record() -> None:
            expected.append(scheduler._kept._expected_bytes(scheduler._jobs))
            advance()

        monkeypatch.setattr(scheduler, "_advance", record)
        assert end_of(submit(scheduler, max_tokens=40)) is None
    return expected[0]


def test_a_draft_model_s_cache_and_bits_are_known_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = expected_at_first(monkeypatch)
    together = expected_at_first(monkeypatch, draft_model=str(DEMO / "draft"))
    assert 0 < alone < together
    assert 0 < expected_at_first(monkeypatch, kv_bits=4, quantized_kv_start=0) < alone / 4


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_a_trained_drafter_s_cache_is_expected_too(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = LanguageModel.from_folder(DEMO / "target", dtype="float32").model
    if kind == "eagle3":
        write_eagle(tmp_path, random_eagle(model, eagle_config(model)), eagle_config(model))
    else:
        write_block_drafter(tmp_path, random_block_drafter(model), block_config(model))
    alone = expected_at_first(monkeypatch)
    drafting = DraftingOptions(method="drafter", drafter=tmp_path)
    assert expected_at_first(monkeypatch, drafting=drafting) > 1.05 * alone


def test_kept_contexts_make_way_for_a_single_answer_that_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (keeping, schedulers):
        monkeypatch.setattr(module, "GROWTH", 256)
    with scheduling() as scheduler:
        scheduler.wait_until_ready()
        kept, advance = scheduler._kept.contexts, scheduler._advance
        assert end_of(submit(scheduler, "Kraków", max_tokens=300, **FREELY)) is None
        wait_for(lambda: kept.nbytes > 0)
        one, sizes = kept.nbytes, list[tuple[int, int]]()
        room = 2.2 * one
        memory = scheduler.models.loaded.nbytes + room
        monkeypatch.setattr(keeping, "working_set", lambda: memory)

        def record() -> None:
            advance()
            sizes.extend((kept.nbytes, job.answering.nbytes) for job in scheduler._begun)

        monkeypatch.setattr(scheduler, "_advance", record)
        assert end_of(submit(scheduler, max_tokens=500, num_draft_tokens=0, **FREELY)) is None
    assert sizes[0][0] == one
    assert all(kept + held <= room for kept, held in sizes)


def test_a_grammar_that_fails_while_decoding_ends_its_own_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with scheduling() as scheduler:
        scheduler.wait_until_ready()
        model = type(scheduler.models.loaded.decoder)
        constrain = model.constrain

        def failing(*given: Any) -> Any:
            constraint = constrain(*given)
            masks, calls = constraint.masks, iter(range(1000))

            def fail(*asked: Any) -> Any:
                if next(calls) > 8:
                    raise UsageError("the grammar is too complex here")
                return masks(*asked)

            cast("Any", constraint).masks = fail
            return constraint

        monkeypatch.setattr(model, "constrain", failing)
        others = [submit(scheduler, **FREELY, max_tokens=100) for _ in range(2)]
        for items in others:
            assert isinstance(items.get(timeout=60), Job)
        wait_for(lambda: len(scheduler._jobs) == 2)
        failed = submit(scheduler, grammar=Grammar.regex("[a-z ]{500}"), max_tokens=90)
        assert isinstance(end_of(failed), UsageError)
        assert [end_of(items) for items in others] == [None, None]


def test_the_choices_of_one_body_leave_places_for_others() -> None:
    with scheduling(decode_concurrency=4) as scheduler:
        asked = ApiRequest(prompt="Wisła", **FREELY)
        choices = [Queue[Item]() for _ in range(6)]
        for items in choices:
            scheduler.submit(replace(asked), items.put)
        wait_for(lambda: sum(not items.empty() for items in choices) >= 3)
        assert end_of(submit(scheduler, "Odra", max_tokens=1)) is None
        assert sum(not items.empty() for items in choices) == 3
        asked.abandoned.set()


def test_a_body_of_many_choices_waits_as_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no more of its choices are prepared than are started: their prompts may be long."""
    with scheduling(decode_concurrency=8, max_waiting=3) as scheduler:
        scheduler.wait_until_ready()
        advance, most = scheduler._advance, [0]

        def count() -> None:
            states = [job.state for job in scheduler._waiting.all()]
            most.append(sum(state is not State.ARRIVED for state in states))
            advance()

        monkeypatch.setattr(scheduler, "_advance", count)
        bodies = [Event(), Event()]
        for body in bodies * 20:
            submit(scheduler, abandoned=body, **FREELY)
        assert end_of(submit(scheduler, max_tokens=1)) is None
        assert len(scheduler._waiting) >= 32
        for body in bodies:
            body.set()
    assert 0 < max(most) <= 3


def test_a_client_that_has_left_is_not_answered() -> None:
    with scheduling(decode_concurrency=1) as scheduler:
        asked = [ApiRequest(prompt="Wisła", **FREELY) for _ in range(2)]
        queues: list[Queue[Item]] = [Queue(), Queue()]
        scheduler.submit(asked[0], queues[0].put)
        assert isinstance(queues[0].get(timeout=60), Job)
        scheduler.submit(asked[1], queues[1].put)
        began = time.monotonic()
        asked[1].abandoned.set()
        assert isinstance(end_of(queues[1]), Refusal)
        asked[0].abandoned.set()
        assert end_of(queues[0]) is None
        assert time.monotonic() - began < 30


@pytest.mark.parametrize("last_seen", [Reading, Emitted])
def test_what_a_client_leaves_is_freed_at_once(last_seen: type[Item]) -> None:
    """While its prompt is read, or in its first round. An answer's caches are large, and Python
    seldom looks for objects that hold each other."""
    asked = ApiRequest(prompt="Wisła " * 40, **FREELY)
    items: Queue[Item] = Queue()
    jobs: list[Job] = []
    answering: list[ref[Any]] = []

    def leave(item: Item) -> None:
        if isinstance(item, Job):
            jobs.append(item)
        elif isinstance(item, last_seen) and not answering:
            answering.append(ref(jobs[0].answering))
            asked.abandoned.set()
        items.put(item)

    gc.disable()
    try:
        with scheduling(prefill_step_size=16) as scheduler:
            scheduler.submit(asked, leave)
            assert end_of(items) is None
            assert end_of(submit(scheduler, max_tokens=1)) is None  # the thread goes on
            assert answering[0]() is None
    finally:
        gc.enable()


def test_an_answer_whose_reader_has_enough_of_it_ends() -> None:
    """As after the only call that a request takes."""
    found: list[Job] = []
    items: Queue[Item] = Queue()

    def read(item: Item) -> None:
        if isinstance(item, Job):
            found.append(item)
        elif isinstance(item, Emitted):
            found[0].is_enough = True
        items.put(item)

    with scheduling() as scheduler:
        scheduler.submit(ApiRequest(prompt="Wisła", max_tokens=500, **FREELY), read)
        assert end_of(items) is None
    assert found[0].statistics.generation_tokens < 50


def test_a_fill_in_ends_at_marks_and_not_at_added_tokens_that_are_text() -> None:
    """As those of Qwen, which calls its marks no special tokens, or Gemma, which adds `<h1>`."""
    tokens = ["", "", "<|fim_pad|>", "<|file_sep|>", "<file_sep>", "   ", "<h1>", "[SUFFIX]"]
    vocabulary = SimpleNamespace(specials={0: "<s>", 1: "<|endoftext|>"})
    vocabulary.tokens = [token.encode() for token in tokens]
    tokenizer: Any = SimpleNamespace(vocabulary=vocabulary)
    tokenizer.spec = SimpleNamespace(text_tokens=frozenset(range(2, 8)))
    assert fill_in_ends(tokenizer) == {0, 1, 2, 3, 4, 7}


PLAYED: tuple[dict[str, Any], ...] = (
    {"prompt": "Wisła jest", "max_tokens": 40},
    {"prompt": "Wisła jest najdłuższą rzeką. " * 20, "max_tokens": 12},
    {"prompt": "Wisła jest najdłuższą rzeką. " * 20 + "Odra", "max_tokens": 25},
    {"prompt": "W roku 1410", "max_tokens": 60, "sampling": Sampling(temperature=0.9, seed=7)},
    {"prompt": "Zima", "max_tokens": 30, "penalties": {"repetition_penalty": 1.3}},
    {"prompt": "Kraków", "max_tokens": 30, "grammar": Grammar.regex("[a-z]{3,9}( [a-z]{2,7}){9}")},
    {"prompt": "Rzeka Odra", "max_tokens": 50, "stop_texts": ("a", "e")},
    {"prompt": "Lato", "max_tokens": 20, "num_draft_tokens": 0},
    {"prompt": "Lato", "max_tokens": 20, "num_draft_tokens": 4},
)


def read(items: Queue[Item], seconds: float = 600) -> tuple[list[int], Exception | None]:
    """The ids of an answer, and what it ended with; nothing follows its end."""
    ids: list[int] = []
    while (item := items.get(timeout=seconds)) is not None:
        if isinstance(item, Exception):
            break
        if isinstance(item, Emitted) and item.token >= 0:
            ids.append(item.token)
    assert items.empty()
    return ids, item


def watch(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have what must hold between two turns of the loop checked. Returns: how many ran, each."""
    advance, running = scheduler._advance, list[int]()

    def check() -> None:
        advance()
        running.append(len(scheduler._jobs))
        assert len(set(map(id, scheduler._jobs))) == len(scheduler._jobs) <= 4
        for job in scheduler._jobs:
            assert job.state in (State.READING, State.DECODING)
            assert job.ended is None
            assert job not in scheduler._waiting.all()
            if job.answering is not None:
                assert list(job.answering.generation.context.ids) == job.ids
                is_held = list(job.answering.target.held) == job.ids[: len(job.ids) - 1]
                assert is_held or job.statistics.rounds

    monkeypatch.setattr(scheduler, "_advance", check)
    return running


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *[pytest.param(n, marks=pytest.mark.long) for n in (1, 2, 3)]])
def test_requests_that_come_leave_and_fail_at_random_get_what_they_get_alone(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The device fails, too, which ends those in the pass; the server ends amid answers."""
    chance, lost, begun = Random(seed), Event(), list[tuple[ApiRequest, int, Queue[Item]]]()
    with scheduling(decode_concurrency=4, prefill_step_size=32) as scheduler:
        scheduler.wait_until_ready()
        alone = [read(submit(scheduler, **given)) for given in PLAYED]
        assert all(error is None for _, error in alone)
        running = watch(scheduler, monkeypatch)
        model = type(scheduler.models.loaded.decoder.target.model)
        call = model.__call__

        def fail(*given: Any, **named: Any) -> Any:
            if lost.is_set():
                lost.clear()
                raise RuntimeError("the device is lost")
            return call(*given, **named)

        monkeypatch.setattr(model, "__call__", fail)
        for _ in range(60):
            which = chance.randrange(len(PLAYED))
            wrong = {"logit_bias": {10**6: 1.0}} if chance.random() < 0.1 else {}
            asked, items = ApiRequest(**PLAYED[which], **wrong), Queue[Item]()
            scheduler.submit(asked, items.put)
            begun.append((asked, which, items))
            time.sleep(chance.choice([0.0, 0.0, 0.02, 0.1]))
            if chance.random() < 0.15:
                chance.choice(begun)[0].abandoned.set()
            if chance.random() < 0.05:
                lost.set()
        answered = begun[: chance.randint(40, 58)]
        found = [(asked, which, *read(items)) for asked, which, items in answered]
        assert scheduler.is_healthy
        scheduler.stop()
        found += [(asked, which, *read(items)) for asked, which, items in begun[len(answered) :]]
    whole = 0
    for asked, which, ids, error in found:
        assert ids == alone[which][0][: len(ids)]
        if error is None and not asked.abandoned.is_set():
            assert ids == alone[which][0]
            whole += 1
        else:
            assert error is None or isinstance(error, RuntimeError | Refusal | UsageError)
    assert whole > 15
    assert max(running) == 4


KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"sampling": Sampling(temperature=0.8, top_p=0.95, seed=11)},
    {"penalties": {"repetition_penalty": 1.2}},
    {"grammar": Grammar.regex("[a-z]{2,9}( [a-z]{2,9}){4,30}")},
    {"stop_texts": ("ż", "18")},
    {"logit_bias": {2: -100.0, 4: -100.0}, "num_draft_tokens": 3},
)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [700, pytest.param(10_000, marks=pytest.mark.long)])
def test_answers_of_up_to_eight_requests_together_are_those_of_plain_decoding(tokens: int) -> None:
    """Everything that needs no model drafts for them; they come and go at any round."""
    chance, asked, total = Random(tokens), list[dict[str, Any]](), 0
    prompts = ("Wisła jest", "W roku 1920 Kraków", "Zima w górach i lato nad morzem", "Rzeka")
    with scheduling(decode_concurrency=8) as scheduler:
        plain: list[list[int]] = []
        while total < tokens:
            text = " ".join(chance.sample(prompts, 2)) * chance.randint(1, 4)
            asked.append({**chance.choice(KINDS), "prompt": text})
            asked[-1]["max_tokens"] = chance.randint(1, 120)
            ids, error = read(submit(scheduler, **{**asked[-1], "num_draft_tokens": 0}))
            assert error is None
            plain.append(ids)
            total += len(ids)
        waiting, found = deque[Queue[Item]](), list[tuple[list[int], Exception | None]]()
        for given in asked:
            waiting.append(submit(scheduler, **given))
            if len(waiting) > chance.randint(0, 8):
                found.append(read(waiting.popleft()))
        found += map(read, waiting)
        text = scheduler.metrics.text().decode()
    assert not any(error for _, error in found)
    differing = sum(ids != alone for (ids, _), alone in zip(found, plain, strict=True))
    assert differing <= total // 5_000  # OpenBLAS sums rows of a batch otherwise: a near tie turns
    for decoding in ("batch", "speculation"):
        assert f'tokalign_output_tokens_total{{decoding="{decoding}"}}' in text
    accepted = [line for line in text.splitlines() if line.startswith("tokalign_accepted")]
    assert (
        sum(float(line.rpartition(" ")[2]) for line in accepted) > tokens / 100
    )  # of the kind that always drafts


def test_an_idle_scheduler_checks_what_it_keeps(caplog: pytest.LogCaptureFixture) -> None:
    with scheduling() as scheduler:
        assert end_of(submit(scheduler, max_tokens=5)) is None
        wait_for(lambda: not scheduler._jobs)
        assert scheduler.is_healthy
        (chain,) = scheduler._kept.contexts._chains
        (state,) = chain.states.values()
        state.layers[0].trim(1)
        wait_for(lambda: scheduler.failure is not None)
    assert isinstance(scheduler.failure, AssertionError)
