"""How to draft, as a caller asks for it: names of methods and translations, and what they need.

The command line, the Python API and the server all hand over `DraftingOptions`, of which
`api/assemble.py` makes a decoder, so that equal options mean the same everywhere.
It imports neither models nor mlx, so that the command line can parse its options without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from tokalign.errors import (
    MissingAssetError,
    UsageError,
    require_integer,
    require_text,
    require_texts,
    shown,
)
from tokalign.storage import FilePath
from tokalign.tables.dictionary import HOW_TO_BUILD

if TYPE_CHECKING:
    from tokalign.tokenizer.tokenizer import Tokenizer
    from tokalign.tokenizer.vocabulary import DraftId, TargetId

AUTO = "auto"
"""Asks for the method that fits what there is; see `choose_method`."""

METHODS = ("plain", "dictionary", "copy", "draft", "drafter", "hybrid")

MODEL_METHODS = ("draft", "hybrid")
"""Methods that draft with a model. The hybrid also works without one."""

DRAFTER_METHODS = ("drafter", "hybrid")
"""Methods that draft with a recurrent drafter. The hybrid also works without one."""

TABLE_METHODS = ("dictionary", "hybrid")
"""Methods that use a dictionary. The hybrid also works without one."""

TRANSLATIONS = ("none", "context:P", "intersection", "exact")

NO_DICTIONARY = (
    "no dictionary fits the target's tokenizer; give --dictionary FILE, or build one with: "
    f"{HOW_TO_BUILD}"
)

DEFAULT_DRAFT_TOKENS = 2
"""How many ids a draft model proposes in a round, as in mlx-lm's speculative_generate_step."""

DEFAULT_ALTERNATIVES = 4
"""How many ids a draft model proposes besides one for each of its passes."""


def choose_method(asked: str, *, draft: bool, dictionary: bool, drafter: bool) -> str:
    """The method that `asked` stands for, by what there is.

    draft, dictionary, drafter: whether there is a draft model, a dictionary, a recurrent drafter.

    `auto` stands for the hybrid of all sources that there are, ranked by expected gain.
    Raises: UsageError or MissingAssetError for a method that is unknown or lacks what it needs.
    """
    if asked not in (AUTO, *METHODS):
        raise UsageError(f"there is no method {asked!r}; choose one of auto, {', '.join(METHODS)}")
    if asked == AUTO:
        return "hybrid"
    if asked == "draft" and not draft:
        raise UsageError("--method draft needs a draft model; give --draft NAME")
    if asked == "drafter" and not drafter:
        raise MissingAssetError(
            "--method drafter needs a recurrent drafter of this target, and none is named or found "
            "beside it; give --drafter FOLDER, or train one with: tokalign train"
        )
    if asked == "dictionary" and not dictionary:
        raise MissingAssetError(NO_DICTIONARY)
    return asked


def check_draft_tokens(count: int | None) -> None:
    """Raises: UsageError for a number of draft tokens below 1; None leaves the choice open."""
    if count is not None and count < 1:
        raise UsageError(f"--num-draft-tokens {count} drafts nothing; use --method plain for that")


def read_draft_tokens(given: str) -> int | None:
    """The number of draft tokens as typed; None for `auto`. Raises: UsageError."""
    if given == AUTO:
        return None
    if not given.isdecimal():
        raise UsageError(f"--num-draft-tokens {given} is not a count; give a number, or auto")
    check_draft_tokens(int(given))
    return int(given)


def choose_translation(
    asked: str | None, target: Tokenizer[TargetId], draft: Tokenizer[DraftId]
) -> str:
    """The translation asked for; by default `none` for one tokenizer and `exact` for two."""
    if asked is not None:
        return asked
    return "none" if target.fingerprint == draft.fingerprint else "exact"


def check_translation(name: str | None) -> None:
    """Raises: UsageError for a name of no translation; None leaves the choice open."""
    if name is None:
        return
    kind, _, window = name.partition(":")
    if name in TRANSLATIONS and not window:
        return
    if kind == "context" and window.isdigit() and int(window) > 0:
        return
    raise UsageError(f"there is no translation {name!r}; choose one of {', '.join(TRANSLATIONS)}")


_MOST_ALTERNATIVES = 1024
_MOST_ROWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingOptions:
    """How to draft, as asked for; what is left open is chosen when a decoder is assembled.

    method: "auto" or one of METHODS.
    translation: one of TRANSLATIONS; None to choose it by the tokenizers.
    num_draft_tokens: None to have every round choose its own by expected gain, zero included.
    alternatives, draft_rows: as in `Drafting`.
    drafter: the folder of a recurrent drafter; None to look for one, unless there is a draft model.
    dictionary: a file or several. language: one or several, also in one text, as in "pl,en"; the
        dictionaries of these languages are looked for besides. With neither, one of every language,
        and of that of each prompt if there is a pack of it.
    alignment: a file; None to look for it.
    exact: whether drafts end where a pass would give other last bits than a pass of a single row.
    remember: whether what the target found likely is kept for later processes.
    Raises: UsageError for a name or number that cannot be honoured.
    """

    method: str = AUTO
    translation: str | None = None
    num_draft_tokens: int | None = None
    alternatives: int = DEFAULT_ALTERNATIVES
    draft_rows: int | None = None
    drafter: FilePath | None = None
    dictionary: FilePath | Sequence[FilePath] | None = None
    language: str | Sequence[str] | None = None
    alignment: FilePath | None = None
    exact: bool = False
    remember: bool = False

    def __post_init__(self) -> None:
        require_text("method", self.method)
        if self.num_draft_tokens is not None:
            require_integer("num_draft_tokens", self.num_draft_tokens, least=0)
        require_integer("alternatives", self.alternatives, least=0, most=_MOST_ALTERNATIVES)
        if self.draft_rows is not None:
            require_integer("draft_rows", self.draft_rows, least=1, most=_MOST_ROWS)
        if self.translation is not None:
            require_text("translation", self.translation)
        require_texts("language", _several(self.language))
        if not all(self.languages):
            given = ",".join(_several(self.language))
            raise UsageError(
                f"language {shown(given)} has an empty name; give names such as pl or "
                "pl,en, or leave it out for every language"
            )
        for name, files in (
            ("dictionary", self.dictionaries),
            ("alignment", (self.alignment,)),
            ("drafter", (self.drafter,)),
        ):
            for file in files:
                if not isinstance(file, str | PathLike | None):
                    raise UsageError(f"{name} has to be a path, not {shown(file)}")
                if file == "":
                    raise UsageError(f"{name} is empty; give a path, or leave it out")
        choose_method(self.method, draft=True, dictionary=True, drafter=True)
        check_translation(self.translation)
        check_draft_tokens(self.num_draft_tokens)

    @property
    def dictionaries(self) -> tuple[FilePath, ...]:
        return _several(self.dictionary)

    @property
    def languages(self) -> tuple[str, ...]:
        given = _several(self.language)
        return tuple(name.strip() for names in given for name in names.split(","))

    @property
    def uses_model(self) -> bool:
        """Whether a draft model is used if there is one."""
        return self.method in (AUTO, *MODEL_METHODS)

    @property
    def uses_drafter(self) -> bool:
        """Whether a recurrent drafter is used if there is one."""
        return self.method in (AUTO, *DRAFTER_METHODS)

    @property
    def fixes_lengths(self) -> bool:
        """Whether what a round drafts is given, so that nothing is left to choose by gain."""
        return self.num_draft_tokens is not None or self.draft_rows is not None

    @property
    def uses_dictionary(self) -> bool:
        return self.method in (AUTO, *TABLE_METHODS)


def _several(given: Any) -> tuple[Any, ...]:
    """One value or several as a tuple; None stands for none."""
    single = given is None or isinstance(given, str | PathLike) or not isinstance(given, Iterable)
    return (() if given is None else (given,)) if single else tuple(given)
