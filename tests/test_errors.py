"""Errors as values: they reach another process as they are."""

from __future__ import annotations

import pickle

import pytest

from tokalign import errors
from tokalign.errors import TokalignError

SAMPLES = [
    TokalignError("broken"),
    errors.UsageError("in {braces}"),
    errors.ContextLengthError(5, 3),
    errors.GrammarError(),
    errors.CorpusError("no text", path="a.txt", line=3),
    errors.FingerprintError("a.tok", expected="a" * 64, found="b" * 64, remedy="tokalign build"),
]


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_of_another_process_has_its_message_and_fields(
    error: TokalignError, protocol: int
) -> None:
    arrived = pickle.loads(pickle.dumps(error, protocol))
    assert type(arrived) is type(error)
    assert (str(arrived), vars(arrived)) == (str(error), vars(error))


def test_every_error_with_arguments_of_its_own_is_tried() -> None:
    classes = {one for one in vars(errors).values() if isinstance(one, type)}
    own = {one for one in classes if issubclass(one, TokalignError) and "__init__" in vars(one)}
    assert own <= {type(error) for error in SAMPLES}


def test_a_check_names_the_item_and_the_value_that_are_wrong() -> None:
    with pytest.raises(errors.UsageError, match=r"^stop\[1\] has to be a text .* not 3$"):
        errors.require_texts("stop", ["a", 3])
    with pytest.raises(errors.UsageError, match=r"a sequence of texts, not 'ab'$"):
        errors.require_texts("stop", "ab")
    with pytest.raises(errors.UsageError, match=r"not None$"):
        errors.require_callable("note", None)


def test_a_key_that_is_missing_is_not_all_that_is_said() -> None:
    assert errors.in_one_line(KeyError("model_type")) == "no 'model_type'"
    assert errors.in_one_line(ValueError("a\nb")) == "a b"
