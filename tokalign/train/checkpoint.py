"""A training run on disk: the state that it goes on from, one file, whole or not at all."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from tokalign.atomic_file import appearing
from tokalign.errors import BundleError
from tokalign.train.fit import TrainingState


@dataclass(frozen=True, slots=True)
class Course:
    """How the evaluations of a run went.

    best: the most guesses accepted per round so far. since_best: evaluations since then.
    """

    best: float = -1.0
    since_best: int = 0

    def after(self, accepted: float) -> Course:
        """The course after one more evaluation."""
        if accepted > self.best:
            return Course(accepted, 0)
        return replace(self, since_best=self.since_best + 1)

    def is_over(self, patience: int | None) -> bool:
        """Whether so many evaluations have brought nothing better. patience: None for never.

        A run in which no guess has been right yet has not begun to learn, so it goes on.
        """
        return patience is not None and self.best > 0 and self.since_best >= patience


def write_checkpoint(path: Path, progress: TrainingState, course: Course) -> None:
    """Write the state of a run. Raises: UsageError or OutputError if it cannot be written."""
    arrays = dict(_flat(progress))
    told = {
        "step": json.dumps(progress.step),
        "course": json.dumps(asdict(course)),
        "sha256": _digest(progress),
    }
    # An open file, not a path: mlx would hide why a write failed.
    with appearing(path, parents=True) as temporary, temporary.open("wb") as file:
        mx.save_safetensors(file, arrays, told)


def read_checkpoint(path: Path, fresh: TrainingState) -> tuple[TrainingState, Course]:
    """The state that was written; `fresh` if nothing was.

    Raises: BundleError for a file that is damaged or of another run.
    """
    if not path.is_file():
        return fresh, Course()
    try:
        arrays, told = cast("tuple[Any, Any]", mx.load(str(path), return_metadata=True))
        # In the order of a fresh state, in which the norm of the gradients is summed up.
        state: Any = tree_unflatten([(name, arrays.pop(name)) for name, _ in _flat(fresh)])
        progress = TrainingState(json.loads(told["step"]), state["weights"], state["optimizer"])
        course = Course(**json.loads(told["course"]))
        mx.eval(progress.weights, progress.optimizer)
        sound = not arrays and _shapes(progress) == _shapes(fresh)
        sound = sound and _digest(progress) == told["sha256"]
    except Exception as error:  # in a damaged file anything may fail inside mlx
        raise _damaged(path) from error
    if not sound:
        raise _damaged(path)
    return progress, course


def _flat(progress: TrainingState) -> list[tuple[str, Any]]:
    state = {"weights": progress.weights, "optimizer": progress.optimizer}
    return cast("list[tuple[str, Any]]", tree_flatten(state))


def _shapes(progress: TrainingState) -> list[tuple[Any, Any]]:
    return [(array.shape, array.dtype) for _, array in _flat(progress)]


def _digest(progress: TrainingState) -> str:
    digest = sha256()
    for name, array in _flat(progress):
        digest.update(name.encode() + np.array(array).tobytes())
    return digest.hexdigest()


def _damaged(path: Path) -> BundleError:
    return BundleError(f"the checkpoint {path} is damaged; remove it, and training starts again")
