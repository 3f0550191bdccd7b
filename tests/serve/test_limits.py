"""A body is read within its limits, whatever a client sends and however slowly."""

from __future__ import annotations

from io import BytesIO
from itertools import count

import pytest

from tokalign.serve.limits import Limits, read_body
from tokalign.serve.refusal import Refusal

LIMITS = Limits(body_bytes=100, read_seconds=10)


def read(data: bytes, length: object, seconds: float = 0) -> bytes:
    """seconds: that pass with every look at the clock."""
    clock = (number * seconds for number in count())
    headers = {} if length is None else {"Content-Length": str(length)}
    return read_body(BytesIO(data), headers, LIMITS, lambda: next(clock))


@pytest.mark.parametrize("length", [0, 1, 99, 100])
def test_a_body_of_a_known_length(length: int) -> None:
    assert read(b"x" * 100, length) == b"x" * length


@pytest.mark.parametrize(
    ("data", "length", "seconds", "status"),
    [
        (b"", None, 0, 411),
        (b"", "1e2", 0, 400),
        (b"", "-1", 0, 400),
        (b"", "+1", 0, 400),
        (b"", "١", 0, 400),
        (b"", "9" * 30, 0, 400),
        (b"x" * 101, 101, 0, 413),
        (b"x", 10**15, 0, 413),
        (b"x" * 50, 100, 0, 400),
        (b"x" * 100, 100, 20, 408),
    ],
)
def test_a_body_that_is_refused(data: bytes, length: object, seconds: float, status: int) -> None:
    with pytest.raises(Refusal) as refused:
        read(data, length, seconds)
    assert refused.value.status == status


def test_a_body_that_is_too_long_is_read_all_the_same() -> None:
    """Else the client's connection is reset before it has read the answer."""
    stream = BytesIO(b"x" * 1000)
    with pytest.raises(Refusal):
        read_body(stream, {"Content-Length": "1000"}, LIMITS)
    assert stream.read() == b""
