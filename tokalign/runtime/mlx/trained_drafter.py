"""What is asked of a drafter that was trained for one target, whatever its format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import mlx.nn as nn

from tokalign.runtime.mlx.taps import KeptRows, state_rows
from tokalign.runtime.mlx.weights import weight_bytes

if TYPE_CHECKING:
    from tokalign.runtime.mlx.beam_search import BeamSession
    from tokalign.runtime.mlx.dflash_session import DFlashSession
    from tokalign.runtime.mlx.recurrent_drafter import TargetEnds
    from tokalign.runtime.mlx.session import TargetModelSession


class TrainedDrafter(nn.Module, ABC):  # type: ignore[misc]
    """A network that guesses from what its target computed. The target's ends are not part of it.
    in_one_pass: whether a pass guesses all the ids of a draft, not one more."""

    in_one_pass = False
    _ends: TargetEnds

    def watch(self, model: Any) -> KeptRows:
        """Keep what it reads of the passes of its target, such as the last hidden states. Raises:
        IncompatibleError."""
        return state_rows(model)

    @abstractmethod
    def session(self, target: TargetModelSession) -> BeamSession | DFlashSession:
        """Itself for one request, beside the target's session, which was opened with `watch`."""

    @property
    def dtype(self) -> Any:
        """The number format of the target's ends."""
        return self._ends.dtype

    @property
    def has_head(self) -> bool:
        """Whether its logits do not come from the target's head."""
        return "lm_head" in self

    @property
    def step_bytes(self) -> int:
        """How many bytes of weights a pass reads, those of the target's head included."""
        return weight_bytes(self) + (0 if self.has_head else self._ends.head_bytes)
