"""Tool calls as models write them, which is not always as they were told to."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from tokalign.arguments import shown

ToolParser = Callable[[str, Any], Any]
"""mlx-lm's: the text of a call, and the tools of the request -> one call or several."""


def checked(parser: ToolParser | None) -> ToolParser | None:
    """A tool parser that raises nothing but ValueError, for which mlx-lm leaves out the call.

    Whatever else it raised, and a call without a name or arguments, would end in an error in the
    place of the whole answer.
    """
    if parser is None:
        return None

    @wraps(parser)
    def parse(text: str, tools: Any) -> Any:
        try:
            parsed = parser(text, tools)
        except Exception as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        for call in parsed if isinstance(parsed, list) else [parsed]:
            fits = isinstance(call, dict) and isinstance(call.get("name"), str)
            if not fits or "arguments" not in call:
                raise ValueError(f"not a call with a name and arguments: {shown(call)}")
        return parsed

    return parse
