"""The class that vLLM loads as its custom proposer, and how it is configured.

The contract is that of vLLM 0.32 and 0.33 (`vllm/v1/spec_decode/custom_class_proposer.py` and
`propose_draft_token_ids` in `vllm/v1/worker/gpu_model_runner.py`): the class is called with the
`VllmConfig`; `propose` is called after every step, with what was sampled and the ids of all
requests. vLLM verifies what is proposed, so a wrong guess costs time and changes no output.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.arguments import shown
from tokalign.errors import IncompatibleError, MissingAssetError
from tokalign.names.registry import Resolved, resolve_tokenizer
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.dictionary import HOW_TO_BUILD, SOURCE, Dictionaries, Dictionary
from tokalign.tables.opening import open_dictionary
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.vllm.batch_drafter import BatchDrafter
from tokalign.vllm.options import SECTION, ProposerOptions

logger = logging.getLogger("vllm.tokalign")  # so that vLLM's handlers print it


class DictionaryProposer:
    """Proposes what dictionaries and the requests' own contexts suggest; see `ProposerOptions`."""

    def __init__(self, vllm_config: Any) -> None:
        """Find and open the dictionaries.

        Raises: MissingAssetError if there is none for the model's tokenizer; UsageError for options
            that cannot be honoured; as `open_dictionary`.
        """
        options = ProposerOptions.from_config(vllm_config.additional_config)
        model = vllm_config.model_config
        resolved: Resolved[TargetId] = resolve_tokenizer(str(model.tokenizer))
        dictionaries = _open(resolved, options)
        _check_ids(dictionaries, model.get_vocab_size())
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


def _open(resolved: Resolved[TargetId], options: ProposerOptions) -> dict[str, BackoffTable]:
    """The dictionaries that the options name, or those that fit the tokenizer, by source."""
    found = open_dictionary(
        resolved.tokenizer,
        files=options.dictionary,
        languages=options.language,
        beside=resolved.folder,
        note=logger.info,
    )
    if found is None:
        raise MissingAssetError(
            f"no dictionary fits the tokenizer of {shown(resolved.slug)}; build one with: "
            f"{HOW_TO_BUILD}, or name a file under {SECTION} in additional_config"
        )
    tables: Mapping[str, Dictionary] = (
        found.by_source if isinstance(found, Dictionaries) else {SOURCE: found}
    )
    return {name: _backoff(name, table) for name, table in tables.items()}


def _backoff(name: str, table: Dictionary) -> BackoffTable:
    if not isinstance(table, BackoffTable):
        raise IncompatibleError(
            f"{name} is a DictSpec dictionary, which is looked up request by request; build a "
            f"back-off dictionary with: {HOW_TO_BUILD}"
        )
    return table


def _check_ids(dictionaries: Mapping[str, BackoffTable], vocabulary_size: int) -> None:
    """Raises: IncompatibleError if a table knows ids for which the model has no row."""
    for name, table in dictionaries.items():
        _, _, ids, _ = table.arrays
        highest = int(ids.max(initial=0))
        if highest >= vocabulary_size:
            raise IncompatibleError(
                f"{name} holds the id {highest}, but the model has only {vocabulary_size} ids; "
                "give the dictionary of this model's tokenizer"
            )
