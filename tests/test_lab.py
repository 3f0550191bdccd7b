"""Every module of the laboratory can be imported; what it measures is tested by `make lab-test`."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import pytest
from places import ROOT

from lab.baselines.decoder import BaselineDecoder
from tokalign.runtime.decoder import Decoder

NEEDS = {"lab/benchmarks/peers": "torch", "lab/study": "jsonschema"}
"""What the modules of a folder need besides tokalign and its extra `mlx`."""


@pytest.mark.slow
def test_every_module_is_imported() -> None:
    files = [*(ROOT / "lab").rglob("*.py")]
    assert len(files) > 40
    for path in files:
        name = path.relative_to(ROOT)
        needed = [needs for folder, needs in NEEDS.items() if str(name).startswith(folder)]
        if "tests" not in name.parts and name.name != "__main__.py" and all(map(find_spec, needed)):
            import_module(".".join(name.with_suffix("").parts))


def test_the_decoder_of_the_baselines_replaces_what_there_is() -> None:
    own = {name for name in vars(BaselineDecoder) if not name.startswith("__")} - {"like"}
    assert own <= set(dir(Decoder))
