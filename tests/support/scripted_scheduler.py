"""A server whose answers are written by a test, in the place of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest

from tokalign.runtime.chat import Prompt
from tokalign.serve import Settings
from tokalign.serve import server as served
from tokalign.serve.job import Emitted, Job
from tokalign.serve.metrics import Metrics
from tokalign.serve.request import ApiRequest
from tokalign.serve.server import Server

Script = Callable[[ApiRequest, Callable[[Any], None]], None]
"""What becomes of a request, put item by item; it runs in a thread of its own."""


class ScriptedScheduler:
    """Takes requests as `Scheduler` does."""

    failure = None
    is_healthy = True
    is_loading = False

    def __init__(self, script: Script, settings: Settings, metrics: Metrics) -> None:
        self.settings, self.metrics, self._script = settings, metrics, script
        self.models = self
        self.asked: list[ApiRequest] = []

    def submit(self, asked: ApiRequest, put: Callable[[Any], None]) -> None:
        self.asked.append(asked)
        Thread(target=self._script, args=(asked, put), daemon=True).start()

    def require_served(self, names: Any) -> None:
        """Every name is served."""

    def model_list(self) -> list[dict[str, Any]]:
        return [{"id": "model"}]

    def wait_until_ready(self) -> None:
        """There is no model to wait for."""

    def stop_and_join(self) -> None:
        for asked in self.asked:
            asked.abandoned.set()


@contextmanager
def scripted(
    monkeypatch: pytest.MonkeyPatch, script: Script, **settings: Any
) -> Iterator[tuple[Server, ScriptedScheduler]]:
    made: list[ScriptedScheduler] = []

    def scheduler(_models: Any, settings: Settings, metrics: Metrics) -> ScriptedScheduler:
        made.append(ScriptedScheduler(script, settings, metrics))
        return made[0]

    monkeypatch.setattr(served, "Scheduler", scheduler)
    monkeypatch.setattr(served, "Models", lambda *_: None)
    with Server(Settings(model="model", **settings), port=0) as server:
        yield server, made[0]


def begun(asked: ApiRequest, put: Callable[[Any], None], prompt: int = 3) -> Job:
    """The beginning of an answer."""
    ids: Any = list(range(prompt))
    job = Job(request=asked, put=put)
    job.prompt = Prompt(target=ids)
    put(job)
    return job


def say(job: Job, *words: str) -> None:
    """An answer of these words, and its end."""
    put = job.put
    for index, word in enumerate(words):
        job.statistics.generation_tokens += 1
        reason = "stop" if index == len(words) - 1 else None
        put(Emitted(text=word, token=5, logprob=0.0, finish_reason=reason, top_tokens=()))
    put(None)
