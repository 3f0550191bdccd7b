"""Rows of the likeliest ids as the device gives them, in no order, put in order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def ranked(likely: NDArray[Any], logprobs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The same rows, the likeliest id of each first; ties stay in their order.

    likely: i[rows, width]. logprobs: f[rows, width].
    """
    order = np.argsort(-logprobs, axis=-1, kind="stable")
    return (
        np.take_along_axis(likely, order, axis=-1),
        np.take_along_axis(logprobs, order, axis=-1),
    )
