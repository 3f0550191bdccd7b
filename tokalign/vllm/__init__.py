"""Drafting for vLLM with tokalign's dictionaries: `tokalign.vllm.DictionaryProposer`.

    vllm serve MODEL --speculative-config \\
        '{"method": "custom_class", "model": "tokalign.vllm.DictionaryProposer",
          "num_speculative_tokens": 8}'

Here options are read and dictionaries opened; `batch_drafter.py` drafts, a chain for each request,
because vLLM verifies no trees. Neither mlx nor vLLM is imported.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokalign.errors import IncompatibleError, MissingAssetError, UsageError, shown
from tokalign.names.registry import Resolved, resolve_tokenizer
from tokalign.runtime.options import several
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.dictionary import HOW_TO_BUILD
from tokalign.tables.opening import open_dictionary
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.vllm.batch_drafter import BatchDrafter

_SECTION = "tokalign"

logger = logging.getLogger("vllm.tokalign")  # so that vLLM's handlers print it


class ProposerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See `DictionaryProposer`; one text stands for a list of one."""

    dictionary: str | tuple[str, ...] = ()
    language: str | tuple[str, ...] = ()
    copy: bool = True
    p_min: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None


def _read_options(additional_config: object) -> ProposerOptions:
    """The options in a configuration. Raises: UsageError for an unknown one or a wrong value."""
    section = additional_config.get(_SECTION, {}) if isinstance(additional_config, dict) else {}
    try:
        return msgspec.convert(section, ProposerOptions)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{_SECTION} in additional_config is wrong ({error}); "
            f"the options are {', '.join(ProposerOptions.__struct_fields__)}"
        ) from error


class DictionaryProposer:
    """Proposes what dictionaries and the requests' own contexts suggest.

    Options, in vLLM's `additional_config` under the key "tokalign":
    dictionary: files; by default the dictionaries that fit the model's tokenizer are looked for,
        as by all commands of tokalign.
    language: of the dictionaries to look for, such as pl.
    copy: whether contexts are copied from.
    p_min: the least probability of a whole proposal; None for the dictionary's own. A higher one
        pays where a large batch makes verified rows expensive.

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
        options = _read_options(vllm_config.additional_config)
        model = vllm_config.model_config
        self._max_model_len = int(model.max_model_len)
        self._drafter = BatchDrafter(
            _open(model, options),
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


def _open(model: Any, options: ProposerOptions) -> dict[str, BackoffTable]:
    """The dictionaries that the options name, or those that fit the tokenizer, by source. model:
    vLLM's `ModelConfig`. Raises: IncompatibleError for a table with other ids."""
    resolved: Resolved[TargetId] = resolve_tokenizer(
        str(model.tokenizer), trust_remote_code=model.trust_remote_code
    )
    vocabulary_size = model.get_vocab_size()
    languages = ",".join(several(options.language)).split(",")
    found = open_dictionary(
        resolved.tokenizer,
        files=several(options.dictionary),
        languages=[name.strip() for name in languages if name.strip()],
        model_folder=resolved.folder,
        note=logger.info,
    )
    if found is None:
        raise MissingAssetError(
            f"no dictionary fits the tokenizer of {shown(resolved.slug)}; build one with: "
            f"{HOW_TO_BUILD}, or name a file under {_SECTION} in additional_config"
        )
    tables: dict[str, BackoffTable] = {}
    for name, table in found.by_source.items():
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
