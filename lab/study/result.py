"""A result: what one study measured on one machine, in a file that others can check.

The file holds what was measured (samples, cost curves, causes of rounds), what it was measured
with, and the figures computed from it. Nothing else is in it, and nothing is written by hand: a
digest covers the whole file, and `check.py` computes the figures again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any, Self

from lab.study.causes import Attribution, shares_of
from lab.study.conditions import Condition, order_of
from lab.study.cost_model import CostFit, Expected, expectations, fit_costs
from lab.study.figures import Group, groups_of
from lab.study.protocol import Protocol
from lab.study.samples import Sample, Trial, trials
from lab.study.waterfall import Waterfall, waterfalls
from tokalign.errors import UsageError
from tokalign.runtime.cost import CostCurve
from tokalign.storage import POLISH, parse_json

FORMAT, VERSION = "tokalign-study", 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that was measured. weights, tokenizer: fingerprints. bits: of most weights."""

    name: str
    weights: str
    tokenizer: str
    bytes: int
    bits: int
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a study was made on and with; measurements may be joined where it is equal.

    chip: as mlx names the device. drafts: by the name in conditions. dictionaries: SHA-256 of each
    dictionary and each table of logits in use, by the file's name. prompts: digest of each set of
    prompts. own_prompts: whether all of them come with tokalign, so that others measured the same.
    prompt_language: of those that come with tokalign.
    """

    chip: str
    system: str
    memory_gb: float
    python: str
    mlx: str
    mlx_lm: str
    tokalign: str
    power: str
    energy: bool
    target: Model
    drafts: Mapping[str, Model]
    dictionaries: Mapping[str, str]
    prompts: Mapping[str, str]
    own_prompts: bool
    prompt_language: str = POLISH
    protocol: Protocol

    @property
    def prompts_of(self) -> str:
        """Whose prompts were given, and in which language if they come with tokalign."""
        return f"tokalign, {self.prompt_language}" if self.own_prompts else "the contributor"

    @property
    def lossless(self) -> bool:
        """Whether outputs have to be equal to plain decoding, id by id: weights in float32."""
        return self.target.dtype == "float32"

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Self:
        """Read what `asdict` wrote. Raises: KeyError or TypeError for anything else."""
        protocol = saved["protocol"]
        return cls(
            **dict(saved)
            | {
                "target": Model(**saved["target"]),
                "drafts": {name: Model(**one) for name, one in saved["drafts"].items()},
                "protocol": Protocol(
                    **protocol | {name: tuple(protocol[name]) for name in ("sets", "temperatures")}
                ),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Everything that is computed from a result."""

    groups: tuple[Group, ...]
    fits: tuple[CostFit, ...]
    expected: tuple[Expected, ...]
    waterfalls: tuple[Waterfall, ...]
    causes: Mapping[str, Mapping[str, float]]

    def to_json(self) -> dict[str, Any]:
        """All figures; floats to six places, and None for those that are not finite."""
        found = _plain(asdict(self))
        assert isinstance(found, dict)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A study. curves: by the name of the draft model, empty for the target alone.

    measured: date of the last measurement, as YYYY-MM-DD.
    """

    setting: Setting
    measured: str
    curves: Mapping[str, CostCurve]
    samples: tuple[Sample, ...]
    causes: tuple[Attribution, ...]

    @property
    def trials(self) -> list[Trial]:
        """One per prompt and temperature."""
        return trials(self.samples)

    def figures(self) -> Figures:
        """Compute every figure. Cost: seconds for a study of the preset `paper`."""
        found, target = self.trials, self.setting.target
        ratios = {name: draft.bytes / target.bytes for name, draft in self.setting.drafts.items()}
        return Figures(
            groups=tuple(groups_of(found)),
            fits=tuple(fit_costs(found, ratios)),
            expected=tuple(expectations(found, self.curves)),
            waterfalls=tuple(waterfalls(found, self.curves)),
            causes=shares_of(self.causes),
        )

    def to_json(self) -> dict[str, Any]:
        """One object with all figures and a digest of everything."""
        content: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "measured": self.measured,
            "setting": asdict(self.setting),
            "curves": {name: curve.to_json() for name, curve in self.curves.items()},
            "causes": [one.to_json() for one in self.causes],
            "samples": [one.to_json() for one in self.samples],
        }
        content = json.loads(json.dumps(content))
        # The figures are those of what is written: times are rounded there.
        content["figures"] = Result.from_json(content, name="a new result").figures().to_json()
        content = json.loads(json.dumps(content))
        content["digest"] = digest_of(content)
        return content

    @classmethod
    def from_json(cls, saved: Any, *, name: str) -> Self:
        """Read what `to_json` wrote; its figures and its digest are left to `check.py`.

        Raises: UsageError, with `name`, for anything that is not a result of this version.
        """
        try:
            if (saved["format"], saved["version"]) != (FORMAT, VERSION):
                raise ValueError(f"it is of {saved['format']} version {saved['version']}")
            return cls(
                setting=Setting.from_json(saved["setting"]),
                measured=saved["measured"],
                curves={
                    draft: CostCurve.from_json(one, name=name)
                    for draft, one in saved["curves"].items()
                },
                samples=tuple(map(Sample.from_json, saved["samples"])),
                causes=tuple(map(Attribution.from_json, saved["causes"])),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                f"{name} is not a result of version {VERSION} ({type(error).__name__}: {error}); "
                "make one with: python -m lab study --target TARGET --output FOLDER"
            ) from error


def digest_of(content: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of everything but the digest itself."""
    rest = {name: value for name, value in content.items() if name != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256(text.encode()).hexdigest()


def load_json(path: Path) -> Any:
    """The JSON in a file. Raises: UsageError."""
    try:
        return parse_json(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or f"not JSON: {error}"
        raise UsageError(
            f"{path} cannot be read ({reason}); give a study.json that the study wrote"
        ) from error


def conditions_of(samples: Sequence[Sample]) -> list[Condition]:
    """The conditions of a study, plain decoding first."""
    return sorted({one.condition for one in samples}, key=order_of)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return round(value, 6) if isfinite(value) else None
    return value
