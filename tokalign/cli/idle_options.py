"""Options that would change nothing beside the others of a command: they are refused, not ignored.

Each command says which of its own options are idle when. The rules for drafting are here, because
six commands have those options.
"""

from __future__ import annotations

from collections.abc import Collection

import click
from click.core import ParameterSource

from tokalign.errors import UsageError
from tokalign.runtime.methods import AUTO, DRAFTER_METHODS, MODEL_METHODS, TABLE_METHODS

_OF_A_DICTIONARY = ("dictionary", "language")
_OF_A_DRAFT = ("translation", "alignment")
_OF_A_BEAM = ("beam_width", "beam_length")

_ALIGNED = ("intersection", "exact")
"""The translations that use an alignment."""


def refuse_idle(
    names: Collection[str], *, without: str | None = None, beside: str | None = None
) -> None:
    """Refuse options of the running command that were typed and change nothing.

    names: of its parameters. without: what is missing for them to have an effect, as it would be
    typed. beside: what keeps them from having one.
    Raises: UsageError, which names the first of them. One that is off, or typed with its default,
        is let pass.
    """
    context = click.get_current_context()
    for option in context.command.params:
        name, value = option.name or "", context.params.get(option.name or "")
        typed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if name in names and typed and value and value != option.default:
            flag = flag_of(option)
            if without is not None:
                raise UsageError(
                    f"{flag} does nothing without {without}; give that too, or leave {flag} out"
                )
            raise UsageError(f"{flag} does nothing with {beside}; leave one of them out")


def all_but(*kept: str) -> set[str]:
    """The parameters of the running command, except for these."""
    return {option.name or "" for option in click.get_current_context().command.params} - {*kept}


def flag_of(option: click.Parameter) -> str:
    """An option as it is typed in full; an argument by its name in the help."""
    flags = [flag for flag in option.opts if flag.startswith("--")]
    return flags[0] if flags else option.make_metavar(click.get_current_context())


def refuse_idle_drafting() -> None:
    """Refuse drafting options of the running command that its other options leave without effect.

    A recurrent drafter may still be found beside the target, so what needs one is let pass here.
    Raises: UsageError.
    """
    given = click.get_current_context().params
    method = given.get("method", AUTO)
    has_draft = given.get("draft") is not None
    may_have_draft = has_draft or given.get("allow_model_switching", False)
    has_beam = any(given.get(name) is not None for name in _OF_A_BEAM)
    translation = given.get("translation") or "exact"
    by_method = {"beside": f"--method {method}"}
    by_beam = {"beside": "--beam-width and --beam-length"}
    no_draft = {"without": "--draft NAME"}
    for is_idle, names, why in (
        (method not in (AUTO, *TABLE_METHODS), _OF_A_DICTIONARY, by_method),
        (method not in (AUTO, *MODEL_METHODS), _OF_A_DRAFT, by_method),
        (method not in (AUTO, *MODEL_METHODS, *DRAFTER_METHODS), ("alternatives",), by_method),
        (method not in (AUTO, *DRAFTER_METHODS), ("draft_rows", *_OF_A_BEAM), by_method),
        (method == "plain", ("num_draft_tokens",), by_method),
        (not may_have_draft, _OF_A_DRAFT, no_draft),
        (translation not in _ALIGNED, ("alignment",), {"beside": f"--translation {translation}"}),
        (has_draft and method != "drafter", _OF_A_BEAM, {"beside": "--draft"}),
        (has_beam, ("num_draft_tokens",), by_beam),
        (has_beam and method == "drafter", ("draft_rows",), by_beam),
    ):
        if is_idle:
            refuse_idle(names, **why)


def refuse_idle_sampling() -> None:
    """Refuse filters of the running command where nothing is sampled, because no --temp was typed.

    Someone who types `--temp 0` is taken to know what that means. Raises: UsageError.
    """
    context = click.get_current_context()
    if context.get_parameter_source("temp") is ParameterSource.DEFAULT:
        names = ["top_k", "min_p", "xtc_probability"]
        if context.params["top_p"] < 1:
            names.append("top_p")
        refuse_idle(names, without="--temp T")
    if not context.params["xtc_probability"]:
        refuse_idle(("xtc_threshold",), without="--xtc-probability P")


def refuse_idle_template() -> None:
    """Refuse variables of a template that is not used. Raises: UsageError."""
    if click.get_current_context().params["ignore_chat_template"]:
        refuse_idle(("chat_template_config",), beside="--ignore-chat-template")


def refuse_idle_cache() -> None:
    """Refuse options of a quantized cache where none is asked for. Raises: UsageError."""
    if click.get_current_context().params["kv_bits"] is None:
        refuse_idle(("kv_group_size", "quantized_kv_start"), without="--kv-bits N")
