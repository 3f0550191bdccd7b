"""A model for mlx-lm whose answer is the user's last message, id for id.

Its cache holds the ids themselves, as keys. So an answer shows which context a server gave it, and
a test can have a model say anything, such as a tool call. `served.py` makes a folder with it.
mlx-lm runs this file without making a module of it, so its annotations cannot be postponed.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import BaseModelArgs


@dataclass
class ModelArgs(BaseModelArgs):  # type: ignore[misc]
    """turn_start, turn_end: ids. header: ids of a role's name and the line break after it."""

    model_type: str
    vocab_size: int
    max_position_embeddings: int
    turn_start: int
    turn_end: int
    user_header: int
    assistant_header: int


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.args = args
        self.nothing = mx.zeros((1,))
        self.layers: list[Any] = [nn.Identity()]

    def __call__(self, inputs: Any, cache: Any = None) -> Any:
        rows, count = inputs.shape
        ids = inputs.astype(mx.float32).reshape(rows, 1, count, 1)
        held, _ = cache[0].update_and_fetch(ids, ids)
        padding = [0] * rows
        if hasattr(cache[0], "left_padding"):
            padding = cache[0].left_padding.tolist()
        chosen = []
        for row, padded in zip(held[:, 0, :, 0].astype(mx.int32).tolist(), padding, strict=True):
            ends = range(len(row) - count + 1, len(row) + 1)
            chosen.append([self._next(row[max(0, padded) : end]) for end in ends])
        return 30.0 * (mx.arange(self.args.vocab_size) == mx.array(chosen)[..., None])

    def _next(self, ids: list[int]) -> int:
        """The id after these, which end with an unfinished turn of the assistant."""
        args = self.args
        starts = [index for index, token in enumerate(ids) if token == args.turn_start]
        if len(starts) < 2 or args.turn_end not in ids[starts[-2] :]:
            return args.turn_end
        user = ids[starts[-2] : starts[-1]]
        if args.turn_end not in user:  # in a drafted row, which nothing leads to
            return args.turn_end
        message = user[1 + args.user_header : user.index(args.turn_end)]
        place = len(ids) - (starts[-1] + 1 + args.assistant_header)
        return message[place] if 0 <= place < len(message) else args.turn_end
