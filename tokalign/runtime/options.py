"""How to draft and to cache, as a caller asks for it: methods, translations and all options.

Every option is declared once, as a field of `DraftingOptions` or `CacheOptions`. The command line
makes an option of a field, the Python API a keyword, and the class a check; the server takes the
whole value, and a decoder keeps it. This imports neither models nor mlx, so the command line can do
without them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import Field, dataclass, field, fields
from math import inf
from os import PathLike
from typing import Any, TypeVar

from tokalign.errors import (
    MissingAssetError,
    UsageError,
    require,
    require_integer,
    require_number,
    require_text,
    require_texts,
    shown,
)
from tokalign.storage import FilePath
from tokalign.tables.dictionary import HOW_TO_BUILD

T = TypeVar("T")

AUTO = "auto"
"""Asks for the method that fits what there is; see `choose_method`."""

METHODS = ("plain", "dictionary", "copy", "draft", "drafter", "hybrid")

MODEL_METHODS, DRAFTER_METHODS = ("draft", "hybrid"), ("drafter", "hybrid")
TABLE_METHODS = ("dictionary", "hybrid")
"""Methods that use a draft model, a trained drafter, a dictionary; the hybrid does without."""

TRANSLATIONS = ("none", "context:P", "intersection", "exact")

ALL_ENDS, MLX_LM_ENDS = "all", "mlx-lm"
"""Where an output ends: at every token that ends a text or a turn, or only where mlx-lm ends it."""

NO_DICTIONARY = (
    "no dictionary fits the target's tokenizer; give the file of one, or build one with: "
    f"{HOW_TO_BUILD}"
)

DEFAULT_DRAFT_TOKENS = 2
"""How many ids a draft model proposes in a round, as in mlx-lm's speculative_generate_step."""

DEFAULT_ALTERNATIVES = 4
"""How many ids a draft model proposes besides one for each of its passes."""


def choose_method(method: str, *, draft: bool, dictionary: bool, drafter: bool) -> str:
    """What a method stands for, by what there is.

    draft, dictionary, drafter: whether there is a draft model, a dictionary, a trained drafter.
    `auto` stands for the hybrid of all sources that there are, ranked by expected gain.
    Raises: UsageError or MissingAssetError for a method that is unknown or lacks what it needs.
    """
    if method not in (AUTO, *METHODS):
        raise UsageError(f"there is no method {method!r}; choose one of auto, {', '.join(METHODS)}")
    if method == AUTO:
        return "hybrid"
    if method == "draft" and not draft:
        raise UsageError("method draft needs a draft model; give one")
    if method == "drafter" and not drafter:
        raise MissingAssetError(
            "method drafter needs a trained drafter of this target, and none is named or found "
            "beside it; give the folder of one, or train one with: tokalign train"
        )
    if method == "dictionary" and not dictionary:
        raise MissingAssetError(NO_DICTIONARY)
    return method


def as_count(typed: str) -> int | None:
    """The number that some digits write; None for what is none, or a longer one than any count."""
    return int(typed) if typed.isdecimal() and len(typed) <= _MOST_DIGITS else None


_MOST_DIGITS = 15
"""JSON and tables hold such numbers exactly."""


def read_draft_tokens(given: str) -> int | None:
    """The number of draft tokens as typed; None for `auto`. Raises: UsageError."""
    if given == AUTO:
        return None
    if (count := as_count(given)) is None:
        raise UsageError(
            f"--num-draft-tokens {shown(given)} is not a count; give a number, or auto"
        )
    if not count:
        raise UsageError(f"--num-draft-tokens {given} drafts nothing; use --method plain for that")
    return count


def check_translation(name: str | None) -> None:
    """Raises: UsageError for a name of no translation; None leaves the choice open."""
    if name is None or (name in TRANSLATIONS and ":" not in name):
        return
    kind, _, window = name.partition(":")
    if kind != "context" or not as_count(window):
        known = ", ".join(TRANSLATIONS)
        raise UsageError(f"there is no translation {name!r}; choose one of {known}")


# -- options ---------------------------------------------------------------------------------------


def declared(default: Any, about: str = "", **facts: Any) -> Any:
    """A field of options, with what help and checks have to know of it.

    about: its help on the command line, which offers no field without one.
    facts: "takes", "FILE" or "FOLDER" for a path, else what its value is called; "among", the
    values that there are; "least" and "most", and "open", which of both is no value; "several";
    "shown" and "reads", the default as typed and what makes a value of what is typed; "flag", if it
    is not called as the field; "rare", for an option that only --help-all shows.
    """
    return field(default=default, metadata={"about": about, **facts})


def take(kind: type[T], given: dict[str, Any]) -> T:
    """Make a dataclass of the values for its fields, and take these out of `given`."""
    known = [option.name for option in fields(kind) if option.name in given]  # type: ignore[arg-type]
    return kind(**{name: given.pop(name) for name in known})


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingOptions:
    """How to draft, as asked for, from the command line to the decoder.

    What is left open is chosen when a decoder is assembled. The help of each field says what it is.

    num_draft_tokens: None to have every round choose by expected gain; 0, as in mlx-lm, stands for
    the method plain.
    alternatives: ids that a draft model proposes in a tree besides one for each of its passes; 0
    for chains. A draft that has to stay a chain has them in the place of its first id.
    draft_rows: how many ids the hybrid proposes in every round; None to have costs decide.
    dictionary: a file or several. language: one or several, also in one text, as in "pl,en"; with
    neither, every language, and that of each prompt if there is a pack of it.
    Raises: UsageError for a name or number that cannot be honoured.
    """

    method: str = declared(
        AUTO,
        f"How to draft: {AUTO} (every source there is), {', '.join(METHODS)}.",
        takes="NAME",
        among=(AUTO, *METHODS),
    )
    translation: str | None = declared(
        None,
        "How draft ids become target ids: none, context:P, intersection or exact. "
        "Default: none for one tokenizer, exact for two.",
        takes="NAME",
        rare=True,
    )
    num_draft_tokens: int | None = declared(
        None,
        "Tokens drafted in a round; auto: as many as pay, or none.",
        takes="N",
        least=0,
        shown=AUTO,
        reads=read_draft_tokens,
    )
    alternatives: int = declared(DEFAULT_ALTERNATIVES, least=0, most=1024)
    draft_rows: int | None = declared(None, least=1, most=256)

    drafter: FilePath | None = declared(
        None,
        f"A trained drafter: a folder, a Hub repository, or {AUTO}, the one published for the "
        "target. Default: the one found here.",
        takes="FOLDER",
    )
    dictionary: FilePath | Sequence[FilePath] | None = declared(
        None,
        "A .dictionary.tok file; repeatable. Default: those found.",
        takes="FILE",
        several=True,
    )
    language: str | Sequence[str] | None = declared(
        None,
        "Use only these dictionaries, such as en,code. Default: all, and the packs that fit the "
        "prompt.",
        takes="CODES",
        several=True,
    )
    alignment: FilePath | None = declared(
        None, "An .alignment.tok file. Default: the one that is found.", takes="FILE", rare=True
    )
    remember: bool = declared(
        False,
        "Keep the target's top-k logits for later runs; tables forget --remembered deletes it.",
    )

    def __post_init__(self) -> None:
        check_declared(self)
        if not all(self.languages):
            given = ",".join(several(self.language))
            raise UsageError(
                f"language {shown(given)} has an empty name; give names such as pl or "
                "pl,en, or leave it out for every language"
            )
        choose_method(self.method, draft=True, dictionary=True, drafter=True)
        check_translation(self.translation)
        if self.draft_rows is not None and self.method not in (AUTO, "hybrid"):
            raise UsageError("draft_rows is of the hybrid; give num_draft_tokens, or method hybrid")
        if self.num_draft_tokens == 0:
            object.__setattr__(self, "method", "plain")
            object.__setattr__(self, "num_draft_tokens", None)

    @property
    def dictionaries(self) -> tuple[FilePath, ...]:
        return several(self.dictionary)

    @property
    def languages(self) -> tuple[str, ...]:
        given = several(self.language)
        return tuple(name.strip() for names in given for name in names.split(","))

    @property
    def uses_model(self) -> bool:
        """Whether a draft model is used if there is one."""
        return self.method in (AUTO, *MODEL_METHODS)

    @property
    def uses_drafter(self) -> bool:
        """Whether a trained drafter is used if there is one."""
        return self.method in (AUTO, *DRAFTER_METHODS)

    @property
    def uses_dictionary(self) -> bool:
        """Whether a dictionary is used if there is one."""
        return self.method in (AUTO, *TABLE_METHODS)

    @property
    def chooses_lengths(self) -> bool:
        """Whether what a round drafts is chosen by gain, as nothing gives it."""
        given = self.num_draft_tokens is not None or self.draft_rows is not None
        return self.method != "plain" and not given


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """How the KV cache is filled and stored; mlx-lm's flags and defaults. Raises: UsageError."""

    max_kv_size: int | None = declared(
        None,
        "Keep at most this many tokens of the context, the first four and the latest. Once they "
        "are full nothing is drafted, because such a cache cannot be rewound.",
        least=8,
        rare=True,
    )
    kv_bits: int | None = declared(
        None,
        "Quantize the KV cache to this many bits: 1 to 6, or 8.",
        takes="N",
        among=(1, 2, 3, 4, 5, 6, 8),
        least=1,
        most=8,
        rare=True,
    )
    kv_group_size: int = declared(
        64,
        "Group size of the quantized KV cache: 32, 64 or 128.",
        takes="N",
        among=(32, 64, 128),
        least=32,
        most=128,
        rare=True,
    )
    quantized_kv_start: int = declared(
        5000, "Quantize the KV cache from this position on.", least=0, rare=True
    )
    prefill_step_size: int = declared(2048, "Prompt tokens read in one pass.", least=1, rare=True)

    def __post_init__(self) -> None:
        check_declared(self)
        if self.max_kv_size is not None and self.kv_bits is not None:
            raise UsageError(
                "max_kv_size and kv_bits exclude each other, because a rotating cache "
                "cannot be quantized; leave one of them out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How the target samples: on a command line, in a server where a request does not say, and in
    `Sampling`; mlx-lm's flags. 0 switches off top-p, too."""

    temperature: float = declared(
        0.0, "Sampling temperature; 0 is greedy.", least=0, flag="--temp temperature"
    )
    top_p: float = declared(
        1.0, "Sample among the most probable tokens of this sum; 1 is off.", least=0, most=1
    )
    top_k: int = declared(0, "Sample among this many most probable tokens; 0 is off.", least=0)
    min_p: float = declared(
        0.0, "Leave out tokens below this share of the best; 0 is off.", least=0, most=1
    )
    xtc_probability: float = declared(
        0.0, "How often to leave out likely tokens; 0 is off.", least=0, most=1, rare=True
    )
    xtc_threshold: float = declared(
        0.1, "Likely tokens have this probability or more.", least=0, most=0.5, rare=True
    )


def check_declared(options: Any) -> None:
    """Raises: UsageError for a field with a value that it cannot have, whatever the others are.
    Fields that are not declared are left out."""
    for option in fields(options):
        if option.metadata:
            _check(option, getattr(options, option.name))


def _check(option: Field[Any], given: Any) -> None:
    name, facts = option.name, option.metadata
    if facts.get("takes") in ("FILE", "FOLDER"):
        single = () if given is None else (given,)
        for file in several(given) if facts.get("several") else single:
            if not isinstance(file, str | PathLike):
                raise UsageError(f"{name} has to be a path, not {shown(file)}")
            if file == "":
                raise UsageError(f"{name} is empty; give a path, or leave it out")
    elif given is None and option.default is None:
        return
    elif "least" in facts:
        called = f"{name}, if not None," if option.default is None else name
        check = require_number if isinstance(option.default, float) else require_integer
        check(called, given, least=facts["least"], most=facts.get("most", inf))
        known = facts.get("among", (given,))
        require(
            given in known, f"{name} has to be one of {', '.join(map(str, known))}, not {{}}", given
        )
    elif isinstance(option.default, bool):
        if not isinstance(given, bool):
            raise UsageError(f"{name} has to be True or False, not {shown(given)}")
    elif facts.get("several") and isinstance(given, Iterable) and not isinstance(given, str):
        require_texts(name, given)
    else:
        require_text(name, given)


def several(given: Any) -> tuple[Any, ...]:
    """One value or several as a tuple; None stands for none."""
    single = given is None or isinstance(given, str | PathLike) or not isinstance(given, Collection)
    return (() if given is None else (given,)) if single else tuple(given)
