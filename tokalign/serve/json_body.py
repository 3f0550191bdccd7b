"""A body's JSON as the fields of its API, and the OpenAPI document of these fields."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from tokalign import __version__
from tokalign.errors import UsageError, require
from tokalign.serve.admission import unserved
from tokalign.serve.body import OFF, OTHERWISE_OFF, Common

_MOST_NESTING = 128
"""Levels of a body: code that walks through it needs some of Python's stack for each of them."""

_HALF = re.compile(rb"(?i)(\\ud[89ab]\w\w\\ud[c-f]\w\w|\\[^u])|\\ud[89a-f]\w\w")
"""The escape of half a surrogate pair, or in the first group one that JSON's text may have."""
Form = TypeVar("Form", bound=Common)


def read(data: bytes, form: type[Form]) -> Form:
    """A body as its API's fields. Raises: UsageError that names the field's path."""
    try:
        given = _decoded(data.removeprefix(BOM_UTF8))
    except UnicodeDecodeError as error:
        raise UsageError(f"the body is not valid UTF-8: {error}") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"the body is not valid JSON: {error}") from error
    require(isinstance(given, dict), "the body has to be a JSON object")
    require(not _is_deep(given), f"the body is nested too deeply: the most is {_MOST_NESTING}")
    return as_form(given, form)


def _decoded(data: bytes) -> Any:
    """JSON's value. Halves of surrogate pairs, where JavaScript has cut a text in a character, are
    U+FFFD, as JavaScript itself writes them in UTF-8."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return msgspec.json.decode(_HALF.sub(lambda escape: escape[1] or rb"\ufffd", data))


def as_form(given: Mapping[str, Any], form: type[Form]) -> Form:
    """Fields as those of a form; 50.0 is an integer as well. Raises: UsageError, Refusal."""
    for name, remedy in form.unserved.items():
        if (value := given.get(name)) is not None and value not in OTHERWISE_OFF.get(name, OFF):
            raise unserved(name, remedy)
    fields = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in given.items()
        if value is not None
    }
    try:
        return msgspec.convert(fields, form, str_keys=True)
    except msgspec.ValidationError as error:
        raise UsageError(_readable(str(error))) from error


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_MOST_NESTING):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [value for each in inner for value in each if isinstance(value, dict | list)]
    return bool(level)


def _readable(error: str) -> str:
    """msgspec's error with the field's path first, then what was expected."""
    message, _, path = error.replace("`", "").partition(" - at ")
    name = path.replace("$.", "").removeprefix("$")
    missing = message.removeprefix("Object missing required field ")
    if missing != message:
        return f"{f'{name}.' if name else ''}{missing} is missing"
    return f"{name}: {message[:1].lower()}{message[1:]}"


def openapi(forms: Mapping[str, type[Struct]]) -> dict[str, Any]:
    """An OpenAPI document of the bodies that each path takes."""
    kinds = list(dict.fromkeys(forms.values()))
    refs, schemas = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    by_form = dict(zip(kinds, refs, strict=True))
    paths: dict[str, Any] = {}
    for path, form in forms.items():
        content = {"application/json": {"schema": by_form[form]}}
        operation = {
            "summary": (form.__doc__ or "").partition("\n")[0],
            "requestBody": {"required": True, "content": content},
            "responses": {"200": {"description": "The answer, or its events."}},
        }
        paths[path] = {"post": operation}
    info = {"title": "tokalign serve", "version": __version__}
    components = {"schemas": schemas}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}
