"""The kinds of drafter that are trained on windows, and what tells them apart in a folder."""

from __future__ import annotations

from collections.abc import Mapping

from tokalign.train.blocks import BlockLearner
from tokalign.train.drafters import DrafterLearner
from tokalign.train.eagles import EagleLearner
from tokalign.train.options import DrafterKind
from tokalign.train.recurrent import RecurrentLearner

LEARNERS: Mapping[DrafterKind, type[DrafterLearner]] = {
    "redrafter": RecurrentLearner,
    "dflash": BlockLearner,
    "eagle3": EagleLearner,
}
