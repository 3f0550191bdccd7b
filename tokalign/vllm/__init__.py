"""Drafting for vLLM with tokalign's dictionaries: `tokalign.vllm.DictionaryProposer`.

    vllm serve MODEL --speculative-config \\
        '{"method": "custom_class", "model": "tokalign.vllm.DictionaryProposer",
          "num_speculative_tokens": 8}'

vLLM calls `DictionaryProposer`, which reads its options and opens dictionaries. `BatchDrafter`
drafts a chain of ids for every request of a batch, because vLLM verifies no trees: at each position
the surest source says which id comes next, as long as all ids of the chain together are probable
enough. Where one dictionary is the only source, the chain is that of `BackoffTable.follow`.
`BatchFit` says which dictionaries to ask, and `ContextMatches` copies from the request's own text.
The hybrid of the MLX runtime mixes its sources and learns how far to trust them. Here no text is
kept from step to step, so nothing can be learned from it, and the mixture without learning proposed
more rows for the same tokens. NumPy does all of it; neither mlx nor vLLM is imported. Read next:
`batch_lookup.py`, which asks a table about many texts at once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.errors import IncompatibleError, MissingAssetError, UsageError, shown
from tokalign.names.registry import Resolved, resolve_tokenizer
from tokalign.runtime.draft.context_copy import AGREED, FIRST, LATEST, ONLY, PRIORS
from tokalign.runtime.draft.lookup import (
    FIRST_IDS,
    FIRST_SHARE,
    LEAST_OF_BEST,
    LEAST_SHARE,
    PROMPT_END,
    RATE,
)
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.dictionary import HOW_TO_BUILD, MAX_CONTEXT, SOURCE, Dictionaries, Dictionary
from tokalign.tables.opening import open_dictionary
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.vllm.batch_lookup import NO_ID, BatchLookup, Ids

P_MIN = 0.05
"""The least probability of a whole chain where there is no dictionary to say it."""

LONGEST_MATCH = 16
"""Longer matches count as this long: how often copies are right does not grow any further."""

_SECTION = "tokalign"

_RIGHT = np.array(
    [
        [0.0, *(prior[min(length, len(prior)) - 1] for length in range(1, LONGEST_MATCH + 1))]
        for _, prior in sorted(PRIORS.items())
    ]
)
"""How often a copy is right, by the kind of its match and its length."""

Rows = NDArray[Any]
"""Token ids i[requests, longest context]; what is after the end of a request means nothing."""

Floats = NDArray[np.float64]

logger = logging.getLogger("vllm.tokalign")  # so that vLLM's handlers print it


# -- what vLLM calls -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerOptions:
    """What to propose from: vLLM's `additional_config`, under the key "tokalign".

    dictionary: files; by default the dictionaries that fit the model's tokenizer are looked for,
        as by all commands of tokalign.
    language: of the dictionaries to look for, such as pl.
    copy: whether contexts are copied from.
    p_min: the least probability of a whole proposal; None for the dictionary's own. A higher one
        pays where a large batch makes verified rows expensive.
    """

    dictionary: tuple[str, ...] = ()
    language: tuple[str, ...] = ()
    copy: bool = True
    p_min: float | None = None

    @classmethod
    def from_config(cls, additional_config: object) -> ProposerOptions:
        """The options in a configuration, where one text stands for a list of one.

        Raises: UsageError for an option that is unknown or of a wrong type.
        """
        given = additional_config.get(_SECTION, {}) if isinstance(additional_config, dict) else {}
        _require(isinstance(given, Mapping), _SECTION, "a map", given)
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(given) - set(known)):
            raise UsageError(
                f"there is no option {shown(unknown[0])} under {_SECTION} in additional_config; "
                f"the options are {', '.join(known)}"
            )
        languages = ",".join(_texts("language", given.get("language", [])))
        copy, p_min = given.get("copy", True), given.get("p_min")
        _require(isinstance(copy, bool), "copy", "true or false", copy)
        is_number = isinstance(p_min, int | float) and not isinstance(p_min, bool)
        fits = p_min is None or (is_number and 0 < p_min <= 1)
        _require(fits, "p_min", "a probability over 0", p_min)
        return cls(
            dictionary=_texts("dictionary", given.get("dictionary", [])),
            language=tuple(name.strip() for name in languages.split(",") if name.strip()),
            copy=copy,
            p_min=p_min,
        )


def _texts(name: str, value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    fits = isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts)
    _require(fits, name, "a text or a list of texts", value)
    return tuple(texts)


def _require(fits: bool, name: str, kind: str, value: object) -> None:
    if not fits:
        raise UsageError(f"{name} in additional_config has to be {kind}, not {shown(value)}")


class DictionaryProposer:
    """Proposes what dictionaries and the requests' own contexts suggest; see `ProposerOptions`.

    The contract is that of vLLM 0.32 and 0.33 (`vllm/v1/spec_decode/custom_class_proposer.py` and
    `propose_draft_token_ids` in `vllm/v1/worker/gpu_model_runner.py`): the class is called with the
    `VllmConfig`; `propose` is called after every step, with what was sampled and the ids of all
    requests. vLLM verifies what is proposed, so a wrong guess costs time and changes no output.
    """

    def __init__(self, vllm_config: Any) -> None:
        """Find and open the dictionaries.

        Raises: MissingAssetError if there is none for the model's tokenizer; UsageError for options
            that cannot be honoured; as `open_dictionary`.
        """
        options = ProposerOptions.from_config(vllm_config.additional_config)
        model = vllm_config.model_config
        dictionaries = _open(str(model.tokenizer), options, model.get_vocab_size())
        self._max_model_len = int(model.max_model_len)
        self._drafter = BatchDrafter(
            dictionaries,
            copies=options.copy,
            max_tokens=vllm_config.speculative_config.num_speculative_tokens,
            p_min=options.p_min,
        )

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: NDArray[np.integer],
        token_ids_cpu: NDArray[np.integer],
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """Ids that each request may go on with; see `BatchDrafter`.

        sampled_token_ids: what each request was given in this step; empty while its prompt is read,
            and then nothing is proposed. num_tokens_no_spec: i32[at least requests], how many ids
            each has, those included. token_ids_cpu: i32[at least requests, max_model_len].
            slot_mappings: not used.
        """
        count = len(sampled_token_ids)
        lengths = num_tokens_no_spec[:count].astype(np.int64)
        sampled = np.fromiter(map(bool, sampled_token_ids), dtype=np.bool_, count=count)
        room = np.maximum(self._max_model_len - lengths - 1, 0)
        return self._drafter.propose(token_ids_cpu[:count], lengths, np.where(sampled, room, 0))

    def load_model(self, *args: object, **kwargs: object) -> None:
        """vLLM calls this where other proposers load a model."""


def _open(
    tokenizer: str, options: ProposerOptions, vocabulary_size: int
) -> dict[str, BackoffTable]:
    """The dictionaries that the options name, or those that fit the tokenizer, by source.

    vocabulary_size: of the model. Raises: IncompatibleError for a table with other ids.
    """
    resolved: Resolved[TargetId] = resolve_tokenizer(tokenizer)
    found = open_dictionary(
        resolved.tokenizer,
        files=options.dictionary,
        languages=options.language,
        model_folder=resolved.folder,
        note=logger.info,
    )
    if found is None:
        raise MissingAssetError(
            f"no dictionary fits the tokenizer of {shown(resolved.slug)}; build one with: "
            f"{HOW_TO_BUILD}, or name a file under {_SECTION} in additional_config"
        )
    by_source: Mapping[str, Dictionary] = (
        found.by_source if isinstance(found, Dictionaries) else {SOURCE: found}
    )
    tables: dict[str, BackoffTable] = {}
    for name, table in by_source.items():
        assert isinstance(table, BackoffTable)
        _, ids, _ = table.arrays
        highest = int(ids.max(initial=0))
        if highest >= vocabulary_size:
            raise IncompatibleError(
                f"{name} holds the id {highest}, but the model has only {vocabulary_size} ids; "
                "give the dictionary of this model's tokenizer"
            )
        tables[name] = table
    return tables


# -- a batch ---------------------------------------------------------------------------------------


class BatchDrafter:
    """Proposes a chain of ids for each of many requests.

    dictionaries: by the names of their sources. copies: whether contexts are copied from.
    max_tokens: the longest chain. p_min: the least probability of a whole chain; None for what the
    dictionaries say, the largest where they differ.
    Raises: UsageError if there is nothing to draft with.
    """

    def __init__(
        self,
        dictionaries: Mapping[str, BackoffTable],
        *,
        copies: bool = True,
        max_tokens: int,
        p_min: float | None = None,
    ) -> None:
        if not dictionaries and not copies:
            raise UsageError("there is nothing to draft with; allow copies or give a dictionary")
        self._tables = [BatchLookup(table) for table in dictionaries.values()]
        self._fit = BatchFit(self._tables)
        self._copies, self._max_tokens = copies, max_tokens
        said = [table.parameters.p_min for table in dictionaries.values()]
        self._p_min = p_min if p_min is not None else max(said, default=P_MIN)

    def propose(self, rows: Rows, lengths: Ids, limits: Ids) -> list[list[int]]:
        """The proposals of all requests, in their order.

        rows: i[requests, longest context], the ids of each request, which has `lengths` of them,
        i64[requests]. limits: i64[requests], the most ids to propose, 0 for a request to skip.
        Cost: see lab/results/vllm.md.
        """
        lengths = np.where(limits > 0, lengths, 0)
        limits = np.minimum(limits, self._max_tokens)
        endings = last_ids(rows, np.arange(len(lengths)), lengths)
        fits = self._fit.follow(rows, lengths)
        matches = ContextMatches(rows, lengths) if self._copies else None
        drafted = np.full((len(lengths), self._max_tokens), NO_ID)
        together = np.ones(len(lengths))
        alive = np.flatnonzero(lengths)
        for depth in range(self._max_tokens):
            chosen, probability = self._surest(endings[alive], fits[:, alive], matches, alive)
            together[alive] *= probability
            taken = (chosen != NO_ID) & (together[alive] >= self._p_min) & (limits[alive] > depth)
            alive, chosen = alive[taken], chosen[taken]
            if not len(alive):
                break
            drafted[alive, depth] = chosen
            endings[alive, 1:] = endings[alive, :-1]
            endings[alive, 0] = chosen
            if matches is not None:
                matches.advance(drafted[:, depth])
        counts = (drafted != NO_ID).sum(axis=1)
        return [
            chain[:count] for chain, count in zip(drafted.tolist(), counts.tolist(), strict=True)
        ]

    def _surest(
        self,
        endings: Ids,
        fits: NDArray[np.bool_],
        matches: ContextMatches | None,
        alive: Ids,
    ) -> tuple[Ids, Floats]:
        """The id that the surest source expects of each request, and how probable it says that is.

        alive: the requests that are asked about, to which `endings` and `fits` belong. Returns:
        NO_ID and 0 where no source knows anything. Ties go to the first source, copies first.
        """
        ids, probabilities = np.full(len(alive), NO_ID), np.zeros(len(alive))
        said: list[tuple[Ids, Floats]] = []
        if matches is not None:
            said += [(theirs[alive], right[alive]) for theirs, right in matches.expected()]
        for table, fit in zip(self._tables, fits, strict=True):
            found = table.predict(endings)
            said.append((np.where(fit, found.ids, NO_ID), found.probabilities))
        for theirs, probability in said:
            surer = (theirs != NO_ID) & (probability > probabilities)
            ids = np.where(surer, theirs, ids)
            probabilities = np.where(surer, probability, probabilities)
        return ids, probabilities


def last_ids(rows: Rows, row: Ids, lengths: Ids) -> Ids:
    """i64[texts, MAX_CONTEXT]: the last ids of texts, the very last one first, else NO_ID.

    row, lengths: i64[texts], where in `rows` each text begins, and how many ids of it count.
    """
    places = lengths[:, None] - 1 - np.arange(MAX_CONTEXT)
    inside = places >= 0
    found = rows[row[:, None], np.where(inside, places, 0)]
    return np.where(inside, found, NO_ID).astype(np.int64)


_SETTLED = round(1 / RATE) - FIRST_IDS
"""After so many ids each further one has the weight `RATE`."""

_RATES = np.maximum(RATE, 1 / (FIRST_IDS + np.arange(_SETTLED + PROMPT_END + 1)))
_LEFT = np.cumprod(1 - np.where(np.arange(len(_RATES)), _RATES, 0))
"""By how many ids were compared: the weight of the last one, and what is left of the first share.
"""


class BatchFit:
    """Which dictionaries fit which requests: `DictionaryFit` for all requests of a batch at once.

    For each row it keeps how well each dictionary did on the text so far, and the last ids of the
    text. If a row's text goes on from these ids, only the new ids are read. Otherwise, for example
    because vLLM has given the row to another request, the last `PROMPT_END` ids of the text are
    read again. Two texts with the same last ids at the same place are mistaken for one; the second
    then takes over how well the dictionaries did on the first, and no text.
    """

    def __init__(self, tables: Sequence[BatchLookup]) -> None:
        self._tables = tuple(tables)
        self._lengths = np.zeros(0, dtype=np.int64)
        self._endings = np.zeros((0, MAX_CONTEXT), dtype=np.int64)
        self._shares = np.zeros((len(self._tables), 0))
        self._compared = np.zeros(0, dtype=np.int64)

    def follow(self, rows: Rows, lengths: Ids) -> NDArray[np.bool_]:
        """Read on in all texts; returns which dictionary fits which one, b[dictionaries, requests].

        lengths: i64[requests]. A single dictionary is asked about all of them, because finding out
        whether it fits costs more than asking it.
        Cost: one look-up of each dictionary for each id that is new, all at once.
        """
        every = np.arange(len(lengths))
        if len(self._tables) < 2:
            return np.ones((len(self._tables), len(lengths)), dtype=np.bool_)
        shares, new = self._begin(rows, lengths)
        row = np.repeat(every, new)
        age = np.arange(len(row)) - np.repeat(np.cumsum(new) - new, new)
        place = lengths[row] - 1 - age
        observed, before = rows[row, place], last_ids(rows, row, place)
        now = self._compared + new
        number = now[row] - age  # of ids compared, this one included
        weights = _RATES[number] * _LEFT[now[row]] / _LEFT[number]
        shares *= _LEFT[now] / _LEFT[self._compared]
        self._compared = np.minimum(now, _SETTLED)
        for share, lookup in zip(shares, self._tables, strict=True):
            found = lookup.predict(before)
            right = found.ids == observed
            share += np.bincount(row, weights * right, minlength=len(lengths))
        self._shares, self._lengths = shares, lengths
        self._endings = last_ids(rows, every, lengths)
        least = np.maximum(LEAST_SHARE, LEAST_OF_BEST * shares.max(axis=0, initial=0))
        return np.asarray(shares >= least)

    def _begin(self, rows: Rows, lengths: Ids) -> tuple[Floats, Ids]:
        """The shares so far, f64[dictionaries, requests], and how many ids of each text are new."""
        known = min(len(lengths), len(self._lengths))
        seen, new = self._lengths[:known], lengths[:known] - self._lengths[:known]
        goes_on = (new >= 0) & (new <= PROMPT_END)
        before = last_ids(rows, np.arange(known), np.where(goes_on, seen, 0))
        goes_on &= (before == self._endings[:known]).all(axis=1)
        shares = np.full((len(self._tables), len(lengths)), FIRST_SHARE)
        shares[:, :known] = np.where(goes_on, self._shares[:, :known], FIRST_SHARE)
        compared = np.zeros(len(lengths), dtype=np.int64)
        compared[:known] = np.where(goes_on, self._compared[:known], 0)
        self._compared = compared
        fresh = np.full(len(lengths), PROMPT_END)
        fresh[:known] = np.where(goes_on, new, PROMPT_END)
        return shares, np.clip(fresh, 0, np.maximum(lengths - 1, 0))


class ContextMatches:
    """Earlier occurrences of the ends of all texts, followed as the texts are drafted on.

    `runtime/draft/context_copy.py` keeps a suffix automaton for every request. Here nothing is kept
    from step to step: vLLM hands over the ids of all requests and may move a request to another row
    at any time, and searching all rows anew by comparing arrays takes some ten microseconds. So
    nothing of one request can get into another.
    rows, lengths: the texts, i64[requests] ids long.
    Cost: about 1 ns for each id of the contexts, and 100 µs.
    """

    def __init__(self, rows: Rows, lengths: Ids) -> None:
        self._rows, self._text_lengths = rows, lengths
        self._row, self._next, self._lengths = _longest_matches(rows, lengths)

    def expected(self) -> tuple[tuple[Ids, Floats], tuple[Ids, Floats]]:
        """What followed the latest occurrence, and the first one where that differs.

        Returns: twice i64[requests] ids, NO_ID for none, and f64[requests], how often they are
        right.
        """
        count, row = len(self._text_lengths), self._row
        following = self._following()
        starts = np.flatnonzero(np.diff(row, prepend=NO_ID))
        ends = np.append(starts[1:], len(row))[: len(starts)] - 1
        found = row[starts]
        first, latest = following[starts], following[ends]
        lengths, differ = self._lengths[found], first != latest
        kinds = np.where(starts == ends, ONLY, np.where(differ, LATEST, AGREED))
        ids, right = np.full((2, count), NO_ID), np.zeros((2, count))
        ids[:, found] = latest, np.where(differ, first, NO_ID)
        right[:, found] = _RIGHT[kinds, lengths], _RIGHT[FIRST, lengths]
        return (ids[0], right[0]), (ids[1], right[1])

    def advance(self, chosen: Ids) -> None:
        """The texts go on with these ids, i64[requests]; NO_ID for one that is not followed."""
        goes_on = self._following() == chosen[self._row]
        self._row, self._next = self._row[goes_on], self._next[goes_on] + 1
        self._lengths = np.minimum(self._lengths + 1, LONGEST_MATCH)

    def _following(self) -> Ids:
        """The id after each occurrence; NO_ID after one at the end of the text."""
        within = self._next < self._text_lengths[self._row]
        following = self._rows[self._row, np.where(within, self._next, 0)]
        return np.where(within, following, NO_ID).astype(np.int64)


def _longest_matches(rows: Rows, lengths: Ids) -> tuple[Ids, Ids, Ids]:
    """Where the longest suffix that occurred before did so, and how long it is.

    Returns: for each occurrence its request and the index of the id after it, both i64 and sorted;
    for each request the length of the match, i64[requests].
    """
    count = len(lengths)
    matched = np.zeros(count, dtype=np.int64)
    width = int(lengths.max(initial=0))
    if width < 2:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), matched
    last = lengths - 1
    endings = rows[np.arange(count), np.maximum(last, 0)]
    row, end = np.nonzero(rows[:count, : width - 1] == endings[:, None])
    inside = end < last[row]
    row, end = row[inside], end[inside]
    done_row, done_end = [], []
    for length in range(1, LONGEST_MATCH + 1):
        matched[row] = length
        if not len(row) or length == LONGEST_MATCH:
            break
        goes_on = end >= length
        goes_on &= rows[row, np.maximum(end - length, 0)] == rows[row, last[row] - length]
        grows = np.zeros(count, dtype=np.bool_)
        grows[row[goes_on]] = True
        done = ~grows[row]
        done_row.append(row[done])
        done_end.append(end[done])
        row, end = row[goes_on], end[goes_on]
    row, end = np.concatenate([*done_row, row]), np.concatenate([*done_end, end])
    order = np.argsort(row, kind="stable")
    return row[order], end[order] + 1, matched
