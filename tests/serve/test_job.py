"""A request's own parts: stop texts in an answer that comes in pieces, and its client."""

from __future__ import annotations

import socket

from hypothesis import given
from hypothesis import strategies as st
from served import asked_for

from tokalign.serve.job import StopTexts

texts = st.text("aąb ", min_size=1, max_size=4)


@given(st.lists(st.text("aąb ", max_size=5), max_size=8), st.lists(texts, min_size=1, max_size=3))
def test_a_stop_text_is_found_where_the_whole_text_has_it(
    parts: list[str], stops: list[str]
) -> None:
    whole = "".join(parts)
    ends = [(whole.find(stop) + len(stop), stop) for stop in stops if stop in whole]
    finder, before, found = StopTexts(stops), 0, None
    for part in parts:
        end = finder.end_in(part)
        if end is not None:
            found = before + end[0], end[1]
            break
        before += len(part)
    assert found == min(ends, default=None)


def test_a_client_is_gone_when_it_has_closed_its_end() -> None:
    ours, theirs = socket.socketpair()
    asked = asked_for(connection=ours)
    assert not asked.is_gone
    theirs.sendall(b"more")  # what it sends is not its end
    assert not asked.is_gone
    ours.recv(4)
    theirs.close()
    assert asked.is_gone
    ours.close()
    assert asked.is_gone
    assert not asked_for().is_gone
