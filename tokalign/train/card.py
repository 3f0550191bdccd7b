"""The model card that is written beside a drafter: what it is, how it was made, what it accepts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokalign.storage import write_file
from tokalign.train.options import OWN_LOSSES, DrafterKind

_ABOUT = {
    "dflash": "A block drafter in the format of DFlash: in one pass it guesses the next {depth} "
    "tokens. `dflash` and `mlx-dspark` read the same folder.",
    "eagle3": "A drafter in the format of EAGLE-3, packaged as by speculators. vLLM, `speculators` "
    "and, without EAGLE 3.1's norms, `mlx-vlm` read the same folder.",
    "redrafter": "A recurrent drafter (ReDrafter): it goes on from the target's last hidden state.",
}


def write_card(folder: Path, kind: DrafterKind, target: str, record: Mapping[str, Any]) -> None:
    """Write README.md, as `card.md` has it, into a trained drafter's folder. target: its name, of
    which a path's last part is written. record: of its training."""
    is_local = Path(target).exists()
    by_depth, options, own = (record[k] for k in ("accepted_by_depth", "options", "own_text"))
    card = Path(__file__).with_name("card.md").read_text("utf-8")
    filled = card.format(
        base="" if is_local else f"base_model: {json.dumps(target)}\n",
        name=Path(target).name if is_local else target,
        kind=kind,
        about=_ABOUT[kind].format(depth=len(by_depth)),
        accepted=sum(by_depth),
        rows="\n".join(f"| {depth} | {share:.3f} |" for depth, share in enumerate(by_depth, 1)),
        positions=record["positions"],
        files=", ".join(Path(str(file[0])).name for file in record["corpus"]),
        labels=record["labelling"]["kind"],
        losses=", ".join(options["losses"]),
        step=record["step"],
        own=f" Two of five steps learned what the target wrote at temperature "
        f"{own['temperature']:g}; losses: {', '.join(OWN_LOSSES)}."
        if own
        else "",
    )
    write_file(folder / "README.md", filled)
