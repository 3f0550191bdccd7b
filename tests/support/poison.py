"""A folder that somebody else filled with Python files that bear the names of libraries."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import packages_distributions
from pathlib import Path

EVERY_NAME = {
    name
    for name in {*sys.stdlib_module_names, *packages_distributions()}
    if name.isidentifier() and name != "tokalign"
}


@contextmanager
def poisoned(folder: Path, names: Iterable[str] = EVERY_NAME) -> Iterator[Path]:
    """Put a module of each name into the folder; afterwards none of them may have been run."""
    log = folder / "was-run.log"
    for name in names:
        program = f"open({str(log)!r}, 'a').write(__name__ + ' ')\nraise ImportError(__name__)\n"
        (folder / f"{name}.py").write_text(program)
    yield folder
    assert not log.exists(), log.read_text()
