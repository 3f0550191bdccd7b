"""The reference of the Python API, made of signatures and docstrings.

    python docs/python_reference.py > docs/python-reference.md

A test compares the file with what this program prints.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields

import tokalign
from tokalign import errors
from tokalign.runtime.options import CacheOptions, DraftingOptions

_OPENING = """\
# Python reference

Made by `python docs/python_reference.py > docs/python-reference.md`.
[How these are used](python.md). Keywords that are not described here are mlx-lm's.
"""


def reference() -> str:
    """The functions and classes of `tokalign`, their options and errors, as Markdown."""
    parts = [_OPENING]
    for name in tokalign.__all__:
        parts += _described(f"tokalign.{name}", getattr(tokalign, name), call=name == "Sampling")
    for options in (DraftingOptions, CacheOptions):
        parts += _described(options.__name__, options)
        parts += _fields(options)
    parts.append("\n## Errors\n\n| `tokalign.errors` | |\n|---|---|\n")
    parts += _errors()
    return "".join(parts)


def _described(name: str, thing: object, *, call: bool = False) -> Iterator[str]:
    """call: show how a class is called, too."""
    yield f"\n## {name}\n\n"
    if call or not inspect.isclass(thing):
        yield f"```python\n{_signature(name, thing)}\n```\n\n"
    yield _text(thing) + "\n"
    for method, function in _methods(thing):
        yield f"\n### {name}.{method}\n\n"
        yield f"```python\n{_signature(f'{name}.{method}', function)}\n```\n\n{_text(function)}\n"


def _methods(thing: object) -> Iterator[tuple[str, object]]:
    """The public methods that make or change something, of a class of our own."""
    if not inspect.isclass(thing):
        return
    for name, value in vars(thing).items():
        if not name.startswith("_") and isinstance(value, classmethod | staticmethod):
            yield name, getattr(thing, name)


def _fields(options: type) -> Iterator[str]:
    """The help of each field that has one, in Python's words where the command line has others."""
    yield "\n| keyword | |\n|---|---|\n"
    for option in fields(options):
        if about := option.metadata["about"]:
            if "shown" in option.metadata:
                about = about.replace(f"{option.metadata['shown']}:", f"{option.default}:")
            yield f"| `{option.name}` | {about.replace('; repeatable', ', or several')} |\n"


def _signature(name: str, thing: object) -> str:
    """A call with its parameters, one a line where there are many."""
    assert callable(thing)
    given = inspect.signature(thing)
    shown = [_parameter(parameter) for parameter in given.parameters.values()]
    kinds = [parameter.kind for parameter in given.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        shown.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    returned = given.return_annotation
    arrow = "" if returned in (None, inspect.Signature.empty) else f" -> {returned}"
    line = f"{name}({', '.join(shown)}){arrow}"
    if len(line) > 100:
        inner = "".join(f"    {one},\n" for one in shown)
        line = f"{name}(\n{inner}){arrow}"
    return line


def _parameter(parameter: inspect.Parameter) -> str:
    """As in the source: annotations are texts, whose quotes `str` would show."""
    bare = parameter.replace(annotation=parameter.empty, default=parameter.empty)
    annotated = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
    equals = " = " if annotated else "="
    default = "..." if inspect.isfunction(parameter.default) else repr(parameter.default)
    return f"{bare}{annotated}{'' if parameter.default is parameter.empty else equals + default}"


def _text(thing: object) -> str:
    return inspect.cleandoc(thing.__doc__ or "")


def _errors() -> Iterator[str]:
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, errors.TokalignError):
            first = re.split(r"\n\n", _text(value))[0]
            yield f"| `{name}` | {' '.join(first.split())} |\n"


if __name__ == "__main__":
    print(reference(), end="")
