"""Which options have an effect only beside others: one table for all commands.

An option that would change nothing is refused before anything is loaded, not ignored. A condition
is written as it is typed: "--draft" holds if that option was given, "--method copy" if it has this
value, "--translation context:*" if the value fits the pattern, "FILE" if that argument was given.
A condition on an option that a command does not have says nothing there. What is needed may be in
the user's file of defaults; what is in its way there gives way.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple

import click
from click.core import ParameterSource

from tokalign.errors import UsageError
from tokalign.runtime.options import METHODS, MODEL_METHODS, TABLE_METHODS


class Rule(NamedTuple):
    """One of `needs` must hold, none of `excludes` may. only_in: the commands it applies to."""

    options: str
    needs: str = ""
    excludes: str = ""
    only_in: str = ""


def _all_but(*used: str) -> str:
    """The conditions that exclude all methods but those that use an option."""
    return " | ".join(f"--method {name}" for name in METHODS if name not in used)


_COUNTS = "--dictionary-bytes --memory --weight --p-min --workspace"

TABLE = (
    # models and drafting
    Rule("--adapter-path --draft --drafter", needs="--target"),
    Rule("--translation --alignment", needs="--draft | --allow-model-switching"),
    Rule("--translation --alignment", excludes=_all_but(*MODEL_METHODS)),
    Rule("--alignment", excludes="--translation none | --translation context:*"),
    Rule("--dictionary --language", excludes=_all_but(*TABLE_METHODS)),
    Rule("--num-draft-tokens", excludes="--method plain", only_in="decode chat serve"),
    Rule("--remember", excludes=_all_but("hybrid")),
    Rule("--drafter", excludes="--text"),
    Rule("--drafter", excludes="--draft", only_in="check calibrate"),
    # sampling, templates and caches
    Rule("--top-p --top-k --min-p --xtc-probability", needs="--temp", only_in="decode"),
    Rule("--xtc-threshold", needs="--xtc-probability", only_in="decode chat"),
    Rule("--chat-template-config", excludes="--ignore-chat-template"),
    Rule("--use-default-chat-template", excludes="--chat-template"),
    Rule("--kv-group-size --quantized-kv-start", needs="--kv-bits"),
    # what is read and shown
    Rule("--field", needs="FILE"),
    Rule("--language", excludes="FILE", only_in="check"),
    Rule("--color --markdown --verbose", excludes="--json"),
    Rule("--verbose", excludes="--quiet"),
    # bench
    Rule("--prompt-tokens", needs="--text"),
    Rule("--max-tokens --temp --seed --html --publish", excludes="--text", only_in="bench"),
    # build
    Rule("--draft", excludes="--dictionary-only | --from-model", only_in="build"),
    Rule("--alignment-only", excludes="--from-model"),
    Rule(f"--language --dictionary-only --on-invalid {_COUNTS}", excludes="--alignment-only"),
    Rule(_COUNTS, needs="--dictionary-only | --draft | --pack | --from-pack", only_in="build"),
    Rule("--pack", excludes="--draft | --dictionary-only | --alignment-only | --from-model"),
    Rule("--pack", needs="FILE", excludes="--target"),
    Rule("--from-pack", excludes="--draft | --dictionary-only | --alignment-only | --from-model"),
    Rule("--from-pack", excludes="--pack | --language | --engine datatrove | FILE"),
    Rule("--memory --on-invalid --weight", excludes="--from-pack"),
    Rule("--weight", excludes="--from-model", only_in="build"),
    Rule("--p-min", excludes="--pack"),
    Rule("--from-model", excludes="--engine datatrove"),
    Rule("--prompts --temp --seed --positions", needs="--from-model", only_in="build"),
    Rule("--prompts", needs="--from-model", only_in="train"),
    Rule("--prompts --temp --seed", needs="--dictionary-only", only_in="build"),
    Rule("--engine", needs="--dictionary-only | --pack"),
    Rule("--tasks --workers --local-tasks --local-rank-offset", needs="--engine datatrove"),
    # train
    Rule("--width --blocks", excludes="--draft | --kind dflash | --kind eagle3"),
    Rule("--layers --causal --width --blocks", excludes="--begin-with"),
    Rule("--begin-with", excludes="--draft"),
    Rule("--draft", excludes="--kind redrafter | --kind dflash | --kind eagle3"),
    Rule("--layers --causal", needs="--kind dflash"),
    Rule("--block", needs="--kind dflash | --kind eagle3"),
    Rule("--states", needs="--begin-with | --kind dflash | --kind eagle3"),
    Rule("--draft-vocabulary", needs="--begin-with | --kind eagle3"),
    Rule("--lora --keep", needs="--draft"),
    Rule("--label-temp", needs="--labels sampled | --from-model"),
    Rule("--from-model", excludes="--field", only_in="train"),
    # learn
    Rule("--name --target --exclude --dictionary-bytes", excludes="--list"),
    Rule("--list", excludes="FOLDER"),
)


def conditions(
    context: click.Context, option: click.Parameter
) -> tuple[list[list[str]], list[str]]:
    """What an option of a command needs, one of each list, and what excludes it."""
    needs, excludes = list[list[str]](), list[str]()
    for rule in TABLE:
        is_here = not rule.only_in or context.command.name in rule.only_in.split()
        if is_here and flag_of(option) in rule.options.split():
            needs.append(_known(context, rule.needs))
            excludes += _known(context, rule.excludes)
    return [alternatives for alternatives in needs if alternatives], excludes


def _known(context: click.Context, conditions: str) -> list[str]:
    return [text for text in conditions.split(" | ") if _find(context, text) is not None]


def refuse_idle(context: click.Context, option: click.Parameter) -> None:
    """Raises: UsageError. An option that is off, or typed with its default, is let pass, and one of
    the user's file that has no effect beside what is typed is left out."""
    value, stated = context.params.get(option.name or ""), is_stated(context, option)
    if not (stated or was_typed(context, option)) or not value or value == option.default:
        return
    flag, (needs, excludes) = flag_of(option), conditions(context, option)
    for alternatives in needs:
        if not any(_holds(context, condition) for condition in alternatives):
            if stated:
                return _leave_out(context, option)
            missing = " or ".join(_in_full(context, condition) for condition in alternatives)
            raise UsageError(
                f"{flag} does nothing without {missing}; give that too, or leave {flag} out"
            )
    for condition in excludes:
        if _holds(context, condition):
            other = _find(context, condition)
            assert other is not None, "only conditions on known options are checked"
            if stated:
                return _leave_out(context, option)
            if not is_stated(context, other):
                raise UsageError(f"{flag} does nothing with {condition}; leave one of them out")
            _leave_out(context, other)


def is_stated(context: click.Context, option: click.Parameter) -> bool:
    """Whether an option has its value from the user's file."""
    return context.get_parameter_source(option.name or "") is ParameterSource.DEFAULT_MAP


def _leave_out(context: click.Context, option: click.Parameter) -> None:
    """Have an option its own default."""
    fresh = context.command.make_context(context.info_name, [], resilient_parsing=True)
    name = option.name or ""
    context.params[name] = fresh.params[name]
    context.set_parameter_source(name, ParameterSource.DEFAULT)


def flag_of(option: click.Parameter) -> str:
    """An option as it is typed in full; an argument by its name in the help."""
    flags = [flag for flag in option.opts if flag.startswith("--")]
    return flags[0] if flags else option.human_readable_name.strip("[].")


def was_typed(context: click.Context, option: click.Parameter) -> bool:
    """Whether an option has its value from the command line."""
    return context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE


def _find(context: click.Context, condition: str) -> click.Parameter | None:
    flag = condition.partition(" ")[0]
    return next((known for known in context.command.params if flag == flag_of(known)), None)


def _holds(context: click.Context, condition: str) -> bool:
    option, wanted = _find(context, condition), condition.partition(" ")[2]
    assert option is not None, "only conditions on known options are checked"
    value = context.params.get(option.name or "")
    if wanted:
        return fnmatchcase(str(value), wanted)
    is_given = was_typed(context, option) or is_stated(context, option)
    return is_given and value not in (None, False, ())


def _in_full(context: click.Context, condition: str) -> str:
    """A condition as it is typed, with what the option takes."""
    option = _find(context, condition)
    if not isinstance(option, click.Option) or option.is_flag or " " in condition:
        return condition
    return f"{condition} {option.make_metavar(context)}"
