"""Labels and shapes for tests of training, made of random models in milliseconds."""

from __future__ import annotations

from typing import Any

import numpy as np
from random_models import random_model

from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig
from tokalign.runtime.mlx.trained_drafter import TargetEnds
from tokalign.train.labelled_corpus import Labeller
from tokalign.train.labels import Labels
from tokalign.train.options import Labelling


def small_config(model: Any, width: int = 16) -> DrafterConfig:
    ends = TargetEnds.of(model)
    return DrafterConfig(
        hidden_size=ends.hidden_size,
        vocabulary_size=ends.vocabulary_size,
        width=width,
        exit_width=24,
        blocks=1,
    )


def random_labels(
    windows: int = 4, length: int = 24, *, layers: int = 2, **labelling: Any
) -> Labels:
    """What `random_model()` says of random ids."""
    labeller = Labeller(random_model(layers=layers), Labelling(**labelling))
    drawn = np.random.default_rng(3).integers(0, 96, (windows, length)).tolist()
    found = [labeller.label(window, number) for number, window in enumerate(drawn)]
    return Labels(
        np.concatenate([labels.values for labels in found]),
        np.concatenate([labels.ids for labels in found]),
    )
