"""JSON from files that others wrote."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """What `json.loads` makes of a text, or of bytes in UTF-8, UTF-16 or UTF-32.

    Raises: ValueError for what is no JSON, and for JSON that is nested too deeply, which
        `json.loads` answers with a RecursionError.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
