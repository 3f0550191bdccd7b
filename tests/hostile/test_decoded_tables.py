"""Tables that break no rule and predict nonsense: the output stays the target's own, id for id.

The models are padded: they have more ids than their tokenizers. Every attack is a table, a method
and a way to choose; its generations are compared with plain decoding. In every run each table is
decoded with in one of its six ways; the other ways are in the long lane.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forged_tables import alignment_bundle, backoff_bundle
from random_models import random_model
from small_tokenizers import trained_tokenizer
from written_tables import write_bundle

import tokalign
from tokalign.errors import BundleError, IncompatibleError
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.tables.bundle import Bundle
from tokalign.tables.opening import verify_table
from tokalign.tokenizer.tokenizer import Tokenizer

TOKENS, PADDING = 10, 37
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(temperature=0.9, seed=11)}


@pytest.fixture(scope="module")
def pair() -> dict[str, Any]:
    """Two padded random models with two tokenizers, as keyword arguments."""
    target, draft = trained_tokenizer(400), trained_tokenizer(330)
    return {
        "model": random_model(3, vocabulary=len(target.vocabulary) + PADDING),
        "tokenizer": target,
        "draft_model": random_model(4, vocabulary=len(draft.vocabulary) + PADDING),
        "draft_tokenizer": draft,
    }


# -- dictionaries ----------------------------------------------------------------------------------

Answer = Callable[[int, int], tuple[int, float]]
"""What a dictionary of so many ids expects after an id: an id, and its probability."""

RANDOM = np.random.default_rng(5)
ANSWERS: dict[str, Answer] = {
    "first-id": lambda i, n: (0, 1.0),
    "last-id": lambda i, n: (n - 1, 1.0),
    "end-of-text": lambda i, n: (0, 254 / 255),  # the only special token of these tokenizers
    "itself": lambda i, n: (i, 1.0),
    "cycle-of-two": lambda i, n: (i ^ 1 if i ^ 1 < n else 0, 1.0),
    "cycle-of-all": lambda i, n: ((i + 1) % n, 0.5),
    "backwards": lambda i, n: (n - 1 - i, 0.9),
    "probability-0": lambda i, n: ((i * 7) % n, 0.0),
    "probability-1/255": lambda i, n: ((i * 7) % n, 1 / 255),
    "random": lambda i, n: (int(RANDOM.integers(n)), float(RANDOM.random())),
}


def dictionary(kind: str, answer: Answer, target: Tokenizer[Any]) -> Bundle:
    size = len(target.vocabulary)
    answers = {i: answer(i, size) for i in range(size)}
    return backoff_bundle(target, answers, p_min=float(kind.removeprefix("backoff-")))


def noise(target: Tokenizer[Any], section: str) -> Bundle:
    """A back-off table with one section of random bytes of the same length."""
    bundle = dictionary("backoff-0", ANSWERS["cycle-of-all"], target)
    data = RANDOM.bytes(len(bundle.sections[section]))
    return replace(bundle, sections={**bundle.sections, section: data})


NOISY = ("backoff.fingerprints", "backoff.numbers", "backoff.predictions.probabilities")
DICTIONARIES: dict[str, Callable[[Tokenizer[Any]], Bundle]] = {
    **{
        f"{kind}-{name}": lambda target, kind=kind, answer=answer: dictionary(kind, answer, target)  # type: ignore[misc]
        for kind in ("backoff-0", "backoff-1")
        for name, answer in ANSWERS.items()
    },
    **{f"noise-{name}": lambda target, name=name: noise(target, name) for name in NOISY},  # type: ignore[misc]
}

# -- alignments ------------------------------------------------------------------------------------


def sections_of(bundle: Bundle, name: str, dtype: str) -> Any:
    return np.frombuffer(bundle.sections[name], dtype=dtype).copy()


def aligned(draft: Tokenizer[Any], target: Tokenizer[Any], name: str) -> Bundle:
    """The alignment of a pair with one thing forged."""
    random = np.random.default_rng(len(name))
    size = len(target.vocabulary)
    tokens = [bytes([byte]) for byte in range(256)]
    sites: dict[int, list[bytes]] = {
        "no-sites": {},
        "all-bytes-absorbed": dict.fromkeys(range(size), tokens),
        "random-sites": {
            i: sorted({random.bytes(random.integers(1, 4)) for _ in range(9)})
            for i in range(0, size, 2)
        },
    }.get(name, {})
    bundle = alignment_bundle(draft, target, sites)
    to_target = sections_of(bundle, "intersection.draft_to_target", "<i4")
    to_draft = sections_of(bundle, "intersection.target_to_draft", "<i4")
    match name:
        case "permuted":
            random.shuffle(to_target)
            random.shuffle(to_draft)
        case "permuted-one-way":
            random.shuffle(to_draft)
        case "all-to-one":
            to_target[:], to_draft[:] = 7, 7
        case "eight-to-one":
            to_target[:], to_draft[:] = np.arange(len(to_target)) // 8, len(to_target) - 1
        case "eight-to-the-end-of-text":
            to_target[:], to_draft[:] = -1, 0
            to_target[-8:] = 0
        case "nothing-in-common":
            to_target[:], to_draft[:] = -1, -1
        case "one-in-common":
            to_target[5:], to_draft[5:] = -1, -1
        case "random-pairs":
            to_target[:] = random.integers(-1, len(to_draft), len(to_target))
            to_draft[:] = random.integers(-1, len(to_target), len(to_draft))
    forged = {
        "intersection.draft_to_target": to_target.tobytes(),
        "intersection.target_to_draft": to_draft.tobytes(),
    }
    return replace(bundle, sections={**bundle.sections, **forged})


ALIGNMENTS = (
    *("no-sites", "all-bytes-absorbed", "random-sites", "permuted", "permuted-one-way"),
    *("eight-to-one", "eight-to-the-end-of-text", "nothing-in-common", "one-in-common"),
    "random-pairs",
)

# -- decoding --------------------------------------------------------------------------------------

METHODS: dict[str, dict[str, Any]] = {
    "dictionary": {"method": "dictionary", "num_draft_tokens": 8},
    "hybrid": {"method": "hybrid", "num_draft_tokens": 4},
    "auto": {},
    "exact": {"method": "draft", "translation": "exact", "num_draft_tokens": 3},
    "intersection": {"method": "draft", "translation": "intersection", "num_draft_tokens": 3},
}
ATTACKS = {
    f"{name}-{method}-{sampling}": (name, method, sampling)
    for names, methods in (
        (DICTIONARIES, ("dictionary", "hybrid", "auto")),
        (ALIGNMENTS, ("exact", "intersection", "auto")),
    )
    for name in names
    for method in methods
    for sampling in SAMPLINGS
}


def emitted(pair: dict[str, Any], prompt: Any, **how: Any) -> list[int]:
    responses = tokalign.stream_generate(prompt=prompt, max_tokens=TOKENS, **pair, **how)
    return [response.token for response in responses]


@pytest.fixture(scope="module")
def plain(pair: dict[str, Any]) -> Callable[[str], list[tuple[Any, list[int]]]]:
    """Prompts, and what plain decoding gives for each; computed once per way to choose.

    The last prompts have ids that only the padded model has; the draft has no text for the last.
    """
    size = len(pair["tokenizer"].vocabulary)
    prompts = ["Wisła jest", [5, size, 9, size + PADDING - 1], [size + 1]]

    def compute(sampling: str) -> list[tuple[Any, list[int]]]:
        how = {"method": "plain", "sampling": SAMPLINGS[sampling]}
        return [(prompt, emitted(pair, prompt, **how)) for prompt in prompts]

    return cache(compute)


def lane(number: int) -> list[pytest.MarkDecorator]:
    """The first way of the first table, the second of the second, and so on are in every run."""
    table, way = divmod(number, 6)
    return [] if way == table % 6 else [pytest.mark.long]


@pytest.mark.parametrize(
    "attack",
    [pytest.param(name, marks=lane(number)) for number, name in enumerate(ATTACKS)],
)
def test_nonsense_changes_no_output(
    pair: dict[str, Any],
    plain: Callable[[str], list[tuple[Any, list[int]]]],
    tmp_path: Path,
    attack: str,
) -> None:
    name, method, sampling = ATTACKS[attack]
    how = dict(METHODS[method])
    if name in DICTIONARIES:
        how["dictionary"] = path = tmp_path / "pl.dictionary.tok"
        write_bundle(path, DICTIONARIES[name](pair["tokenizer"]))
    else:
        how["alignment"] = path = tmp_path / "pair.alignment.tok"
        write_bundle(path, aligned(pair["draft_tokenizer"], pair["tokenizer"], name))
    verify_table(path)
    for prompt, expected in plain(sampling):
        assert emitted(pair, prompt, sampling=SAMPLINGS[sampling], **how) == expected


def test_an_alignment_that_would_take_long_is_refused(pair: dict[str, Any], tmp_path: Path) -> None:
    """Probabilities of draft ids that stand for one target id are added up step by step; eight are
    allowed above."""
    path = tmp_path / "pair.alignment.tok"
    write_bundle(path, aligned(pair["draft_tokenizer"], pair["tokenizer"], "all-to-one"))
    with pytest.raises(BundleError, match=r"more than 8 draft ids.*tokalign build"):
        verify_table(path)


@pytest.mark.parametrize("method", ["exact", "hybrid"])
@pytest.mark.parametrize("prompt", ["w", "we", " ", [0], [5, 9]])
def test_a_prompt_of_a_token_or_two_is_enough(
    pair: dict[str, Any], prompt: Any, method: str
) -> None:
    """Also if the draft model could take back all of them: it keeps one to go on from."""
    assert emitted(pair, prompt, **METHODS[method]) == emitted(pair, prompt, method="plain")


@pytest.mark.parametrize("translation", ["exact", "intersection"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_draft_tokenizer_with_more_ids_than_its_model_is_no_danger(
    pair: dict[str, Any], translation: str, sampling: str
) -> None:
    """Where the text needs such an id, the pair is refused; nothing is read beyond the logits."""
    size = len(pair["draft_tokenizer"].vocabulary) - 30
    short = pair | {"draft_model": random_model(4, vocabulary=size)}
    how = {"sampling": SAMPLINGS[sampling], "num_draft_tokens": 3, "translation": translation}
    agreed = 0
    for prompt in ([5, 9, 70], [11, 12, 13], [40]):
        expected = emitted(pair, prompt, method="plain", sampling=SAMPLINGS[sampling])
        with suppress(IncompatibleError):
            assert emitted(short, prompt, method="draft", **how) == expected
            agreed += 1
    assert agreed


def test_a_dictionary_of_narrow_ids_is_asked_about_wide_ones(
    pair: dict[str, Any], tmp_path: Path
) -> None:
    """A tokenizer of fewer than 65,536 ids, and a padded model that has more."""
    wide = random_model(5, vocabulary=(1 << 16) + 64)
    one = {"model": wide, "tokenizer": pair["tokenizer"]}
    prompt = [7, (1 << 16) + 63, 7, (1 << 16) + 1]
    expected = emitted(one, prompt, method="plain")
    path = tmp_path / "wide.dictionary.tok"
    write_bundle(path, dictionary("backoff-0", ANSWERS["cycle-of-all"], pair["tokenizer"]))
    assert emitted(one, prompt, method="dictionary", dictionary=path) == expected
