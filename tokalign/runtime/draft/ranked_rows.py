"""Rows of the likeliest ids as the device gives them, in no order, put in order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def ranked(likely: NDArray[Any], logprobs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The same rows, the likeliest id of each first; ties stay in their order.

    likely: i[rows, width]. logprobs: f[rows, width].
    """
    rows = np.arange(len(likely))[:, None]
    order = np.argsort(-logprobs, axis=-1, kind="stable")
    return likely[rows, order], logprobs[rows, order]
