"""What the page of a repository says about the tables and drafters in it."""

from __future__ import annotations

from collections.abc import Sequence

from tokalign.arguments import shown_path
from tokalign.tables.verified import Verified


def model_card(tables: Sequence[Verified], repository: str) -> str:
    """A section for the README of a repository: what its tables are, and how to use them."""
    rows = "\n".join(
        f"| `{_cell(one['path'])}` | {one['kind']} | {_cell(one['language'] or '')} | "
        f"{one['bytes']:,} | {_cell(', '.join(one['corpus']))} | `{one['sha256']}` |"
        for one in (table.described() for table in tables)
    )
    targets = sorted({table.tokenizer for table in tables})
    fitting = ", ".join(f"`{target[:12]}…`" for target in targets)
    return f"""\
## Tables for tokalign

[tokalign](https://github.com/tokalign/tokalign) decodes faster with these tables. They change the
speed, never the output. They fit every model whose tokenizer has the fingerprint {fitting}; a
drafter fits only the model that it was trained on.

```sh
tokalign tables pull {repository}
tokalign decode --target MODEL --prompt "..."
```

| file | kind | language | bytes | counted texts | SHA-256 |
|---|---|---|---|---|---|
{rows}
"""


def _cell(text: str) -> str:
    """A text out of a table's header as a cell of a Markdown table, made harmless."""
    return shown_path(text).replace("|", "\\|").replace("<", "&lt;")
