"""A job's text and its ends."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from places import DEMO

from tokalign.runtime.chat import Prompt
from tokalign.serve.job import Emitted, Item, Job
from tokalign.serve.request import ApiRequest
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

TOKENIZER: Tokenizer[TargetId] = read_tokenizer(DEMO / "target")
END = TargetId(2)


def job_of(items: list[Item], *, max_tokens: int = 1000, **asked: Any) -> Job:
    prompt = TOKENIZER.encode("Wisła")
    job = Job(request=ApiRequest(**asked), put=items.append, max_tokens=max_tokens)
    job.tokenizer, job.prompt, job.ids = TOKENIZER, Prompt(target=prompt), prompt
    job.ends = frozenset([END])
    return job


def deliver(job: Job, ids: list[TargetId]) -> None:
    for token in ids:
        if job.deliver(token, None):
            return


@settings(deadline=None)
@given(
    st.text("aąb ", min_size=1, max_size=20),
    st.lists(st.text("aąb ", min_size=1, max_size=4), max_size=3),
)
def test_the_text_ends_before_the_first_stop_text_and_says_which(
    text: str, stops: list[str]
) -> None:
    items: list[Item] = []
    job = job_of(items, stop_texts=tuple(stops))
    deliver(job, [*TOKENIZER.encode_parts([text])[0], END])
    found = [one for one in items if isinstance(one, Emitted)]
    told = "".join(one.text for one in found)
    assert found[-1].finish_reason == "stop"
    assert [one.finish_reason for one in found[:-1]] == [None] * (len(found) - 1)
    if job.stop_text is None:
        assert told == text
        assert not any(stop in text for stop in stops)
    else:
        assert text.startswith(told + job.stop_text)
        assert not any(stop in told for stop in stops)


def test_an_answer_ends_with_its_last_token_and_tells_all_of_its_text() -> None:
    items: list[Item] = []
    ids = TOKENIZER.encode_parts([" żółw"])[0]
    job = job_of(items, max_tokens=len(ids), stop_texts=("w rzece",))
    deliver(job, [*ids, END])
    found = [one for one in items if isinstance(one, Emitted)]
    assert "".join(one.text for one in found) == " żółw"
    assert [one.finish_reason for one in found] == [None] * (len(ids) - 1) + ["length"]
