"""vLLM's contract: what it calls the proposer with, and what it gets. See also `test_engine.py`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from batches import Batch, make_batch, two_tables
from places import DEMO
from small_tables import bundle_of_table
from tokenizer_files import write_program
from written_tables import write_bundle

from tokalign.errors import IncompatibleError, MissingAssetError, UsageError
from tokalign.tables.opening import open_dictionary
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.vllm import BatchDrafter, DictionaryProposer

TARGET: Tokenizer[Any] = read_tokenizer(DEMO / "target")
LONGEST = 500
BATCH = make_batch(20)


def config(
    options: Any = None, *, vocabulary: int = 4000, longest: int = LONGEST, **model: Any
) -> Any:
    """The parts of a VllmConfig that are read, by the names that they have in vLLM 0.33."""
    usual = {"tokenizer": str(DEMO / "target"), "trust_remote_code": False}
    usual |= {"max_model_len": longest, "get_vocab_size": lambda: vocabulary}
    return SimpleNamespace(
        model_config=SimpleNamespace(**usual | model),
        speculative_config=SimpleNamespace(num_speculative_tokens=5),
        additional_config={} if options is None else {"tokalign": options},
    )


@pytest.fixture(scope="module")
def dictionary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "pl.dictionary.tok"
    table = two_tables()["dictionary:a"]
    write_bundle(path, bundle_of_table(table, len(TARGET.vocabulary), TARGET.fingerprint, "pl"))
    return path


def step(proposer: DictionaryProposer, batch: Batch, sampled: list[list[int]]) -> list[list[int]]:
    """A step of vLLM, whose arrays have more rows than there are requests."""
    spare = 3
    lengths = np.zeros(len(batch.texts) + spare, dtype=np.int32)
    lengths[: len(batch.texts)] = batch.lengths
    rows = np.zeros((len(lengths), LONGEST), dtype=np.int32)
    rows[: len(batch.texts), : batch.rows.shape[1]] = batch.rows
    return proposer.propose(sampled, lengths, rows, slot_mappings=None)


def test_requests_that_sampled_get_what_the_batch_drafter_proposes(dictionary: Path) -> None:
    proposer = DictionaryProposer(config({"dictionary": str(dictionary)}))
    sampled = [text[-1:] for text in BATCH.texts]
    sampled[3] = []  # its prompt is still being read
    found = step(proposer, BATCH, sampled)
    tables = open_dictionary(TARGET, files=[dictionary])
    assert tables is not None
    drafter = BatchDrafter(tables.by_source, max_tokens=5)  # type: ignore[arg-type]
    limits = np.full(len(BATCH.texts), 5)
    limits[3] = 0
    assert found == drafter.propose(BATCH.rows, BATCH.lengths, limits)
    assert found[3] == []
    assert any(found)
    assert all(type(token) is int for chain in found for token in chain)


def test_nothing_is_proposed_beyond_the_models_context(dictionary: Path) -> None:
    free = DictionaryProposer(config({"dictionary": str(dictionary)}))
    texts = [text for text in BATCH.texts if len(text) > 1]
    sampled = [text[-1:] for text in texts]
    longest = max(range(len(texts)), key=lambda i: len(step(free, Batch(texts), sampled)[i]))
    room = len(texts[longest]) + 3
    bound = DictionaryProposer(config({"dictionary": str(dictionary)}, longest=room))
    batch = Batch([texts[longest]])
    assert len(step(bound, batch, [[1]])[0]) == 2
    full = DictionaryProposer(config({"dictionary": str(dictionary)}, longest=room - 3))
    assert step(full, batch, [[1]]) == [[]]


def test_options_are_honoured(dictionary: Path) -> None:
    sampled = [text[-1:] for text in BATCH.texts]

    def drafted(**options: object) -> int:
        proposer = DictionaryProposer(config({"dictionary": str(dictionary), **options}))
        return sum(map(len, step(proposer, BATCH, sampled)))

    assert drafted(copy=False) < drafted()
    assert drafted(p_min=0.5) < drafted()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dictionaries": "a"}, "the options are dictionary, language, copy, p_min"),
        ({"dictionary": 3}, r"got `int` - at `\$.dictionary`"),
        ({"copy": "yes"}, r"Expected `bool`, got `str` - at `\$.copy`"),
        ({"p_min": 2}, r"Expected `float` <= 1.0 - at `\$.p_min`"),
        ([], "tokalign in additional_config is wrong .Expected `object`"),
    ],
)
def test_wrong_options_are_refused(options: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        DictionaryProposer(config(options))


def test_a_dictionary_that_does_not_fit_is_refused(
    dictionary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("TOKALIGN_TABLES", str(tmp_path))
    monkeypatch.setattr("tokalign.tables.finding._user_data", lambda: tmp_path)
    with pytest.raises(MissingAssetError, match="no dictionary fits the tokenizer of"):
        DictionaryProposer(config())
    with pytest.raises(IncompatibleError, match="but the model has only 50 ids"):
        DictionaryProposer(config({"dictionary": str(dictionary)}, vocabulary=50))


def test_a_tokenizer_that_is_a_program_is_run_where_vllm_was_told_to_trust_it(
    tmp_path: Path,
) -> None:
    write_program(tmp_path)
    program = read_tokenizer(tmp_path, trust_remote_code=True)
    path, table = tmp_path / "x.dictionary.tok", two_tables()["dictionary:a"]
    write_bundle(path, bundle_of_table(table, len(program.vocabulary), program.fingerprint))
    model = {"tokenizer": str(tmp_path), "trust_remote_code": True}
    assert DictionaryProposer(config({"dictionary": str(path)}, **model))
    with pytest.raises(UsageError, match="trust-remote-code"):
        DictionaryProposer(config({"dictionary": str(path)}, tokenizer=str(tmp_path)))
