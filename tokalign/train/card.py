"""The model card that is written beside a drafter: what it is, how it was made, what it accepts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokalign.storage import parse_json, write_file
from tokalign.tables.finding import read_drafter_config
from tokalign.train.options import OWN_LOSSES, DrafterKind

RECORD = "training.json"
"""How a drafter or a draft model was trained, for people to read."""

_ABOUT = {
    "dflash": "A block drafter in the format of DFlash: in one pass it guesses the next {depth} "
    "tokens. `dflash` and `mlx-dspark` read the same folder.",
    "eagle3": "A drafter in the format of EAGLE-3, packaged as by speculators. `mlx-vlm` reads the "
    "same folder.",
    "redrafter": "A recurrent drafter (ReDrafter): it goes on from the target's last hidden state.",
}


def write_card(folder: Path, kind: DrafterKind, target: str) -> None:
    """Write README.md into a trained drafter's folder. target: the name that users load."""
    if kind == "redrafter":
        record = read_drafter_config(folder)["training"]
    else:
        record = parse_json((folder / RECORD).read_bytes())
    write_file(folder / "README.md", model_card(kind, target, record))


def model_card(kind: DrafterKind, target: str, record: Mapping[str, Any]) -> str:
    """The card, with the head that the Hub reads."""
    by_depth, labelling, options = (
        record[name] for name in ("accepted_by_depth", "labelling", "options")
    )
    own = record["own_text"] and (
        f" Two of five steps learned what the target wrote at temperature "
        f"{record['own_text']['temperature']:g}; losses: {', '.join(OWN_LOSSES)}."
    )
    files = [Path(str(file[0])).name for file in record["corpus"]]
    head = ["---", f"base_model: {json.dumps(target)}", "tags:", "- speculative-decoding"]
    rows = [f"| {depth} | {share:.3f} |" for depth, share in enumerate(by_depth, 1)]
    return "\n".join(
        [
            *head,
            f"- {kind}",
            "---",
            f"# A drafter for {target}",
            "",
            _ABOUT[kind].format(depth=len(by_depth)) + " The target's output does not change.",
            "",
            '    tokalign decode --target TARGET --drafter FOLDER -p "..."',
            "",
            "## What it accepts",
            "",
            f"On text held out of its corpus, {sum(by_depth):.3f} guesses of a chain are accepted "
            "in a round. The share of positions at which the first d guesses are all right:",
            "",
            "| d | share |",
            "|---|---|",
            *rows,
            "",
            "## How it was trained",
            "",
            f"By `tokalign train` on {record['positions']:,} positions of {', '.join(files)}, with "
            f"{labelling['kind']} labels; losses: {', '.join(options['losses'])}; the best of "
            f"{options['evaluations']} evaluations, at step {record['step']}.{own or ''}",
            "",
        ]
    )
