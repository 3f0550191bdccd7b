"""The OpenAPI document: the fields of every API's body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tokalign import __version__
from tokalign.serve.body import Common


def openapi(forms: Mapping[str, type[Common]]) -> dict[str, Any]:
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
