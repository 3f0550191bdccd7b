"""What a study measures: prompts, conditions, draft lengths and temperatures of each preset.

The protocol is that of the Polish study (arXiv 2604.16368, section 4): three sets of prompts, every
translation at draft lengths of 2 and 4 and the context window at 6 on instructions alone. Added to
it are intersection and `exact`, drafting without a model, chosen draft lengths, and sampling.

The preset `tasks` has the seven tasks of Spec-Bench, which UniSpec is evaluated on, with prompts of
tokalign's own in Polish, and the published ways to draft without a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lab.baselines import PUBLISHED_METHODS
from lab.study.conditions import BASELINES, Condition, PromptBlock
from tokalign.errors import UsageError
from tokalign.runtime.options import check_translation

ENCYCLOPEDIC, INSTRUCTIONS, QUESTIONS = "encyclopedic", "instructions", "questions"
SETS = (ENCYCLOPEDIC, INSTRUCTIONS, QUESTIONS)
TASKS = (
    "translation", "summarization", "questions", "mathematics", "retrieval", "conversation", "code",
)  # fmt: skip

_WINDOW = "context:5"
"""The study's window."""

DRIFT = 0.1
"""A block in which the control differs by more than this share from plain decoding is disturbed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """A preset, and what was changed in it.

    sets: of prompts, by name. prompts: at most so many of each set. max_tokens: of each output.
    temperatures: the first one is for every condition, the others for some of each kind.
    window, stride: target tokens of an encyclopedic prompt, and from the beginning of one to that
    of the next. attempts: how often a disturbed block is measured at most. curve_seconds: about how
    long a cost curve is measured. explained: prompts of each set of which an oracle says why
    guesses failed.
    """

    preset: str
    sets: tuple[str, ...]
    prompts: int
    max_tokens: int
    temperatures: tuple[float, ...]
    window: int
    stride: int
    attempts: int
    curve_seconds: float
    explained: int
    seed: int = 0


PRESETS = {
    "quick": Protocol(
        preset="quick",
        sets=SETS,
        prompts=4,
        max_tokens=48,
        temperatures=(0.0, 0.7),
        window=256,
        stride=128,
        attempts=2,
        curve_seconds=10.0,
        explained=1,
    ),
    "paper": Protocol(
        preset="paper",
        sets=SETS,
        prompts=50,
        max_tokens=128,
        temperatures=(0.0, 0.7),
        window=1024,
        stride=512,
        attempts=3,
        curve_seconds=60.0,
        explained=4,
    ),
    "tasks": Protocol(
        preset="tasks",
        sets=TASKS,
        prompts=8,
        max_tokens=128,
        temperatures=(0.0, 0.7),
        window=1024,
        stride=512,
        attempts=2,
        curve_seconds=30.0,
        explained=1,
    ),
}


@dataclass(frozen=True, slots=True)
class Arm:
    """A condition, and where it is measured. sets: empty for all. sampled: at every temperature."""

    condition: Condition
    sets: tuple[str, ...] = ()
    sampled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """What there is to draft with.

    models: for each draft model by its name, whether it has the target's tokenizer. drafters: names
    of recurrent drafters. methods: that need no draft model, such as `dictionary`, besides those
    that are always there.
    """

    models: tuple[tuple[str, bool], ...] = ()
    drafters: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()


def arms(protocol: Protocol, drafts: Drafts) -> list[Arm]:
    """Every condition of a preset for the models and tables at hand; plain decoding comes first."""
    quick, tasks = protocol.preset == "quick", protocol.preset == "tasks"
    found = [Arm(condition, sampled=True) for condition in BASELINES]
    for name, same_tokenizer in drafts.models:
        if tasks:
            translation = "none" if same_tokenizer else "exact"
            found += [Arm(Condition(translation, k, name)) for k in (2, 4, "auto")]
        else:
            found += _of_one_tokenizer(name) if same_tokenizer else _of_two_tokenizers(name, quick)
        found.append(Arm(Condition("hybrid", "auto", name), sampled=True))
    for name in drafts.drafters:
        found += [Arm(Condition("drafter", k, name), sampled=k == "auto") for k in (4, "auto")]
        found.append(Arm(Condition("hybrid", "auto", name), sampled=True))
    for method in (*drafts.methods, "copy"):
        found += [Arm(Condition(method, k)) for k in ((4,) if quick or tasks else (4, "auto"))]
    if tasks:
        found += [
            Arm(Condition(name, "auto"), sampled=name == "unispec") for name in PUBLISHED_METHODS
        ]
    found.append(Arm(Condition("hybrid", "auto"), sampled=True))
    return found


def _of_one_tokenizer(draft: str) -> list[Arm]:
    return [Arm(Condition("none", k, draft), sampled=k == 2) for k in (2, 4, 6, "auto")]


def _of_two_tokenizers(draft: str, quick: bool) -> list[Arm]:
    found = []
    for name, chain in (("raw", False), ("naive", False), ("intersection", True)):
        found += [Arm(Condition(name, k, draft, chain)) for k in ((2,) if quick else (2, 4))]
    for name, chain in ((_WINDOW, False), ("exact", True), ("exact", False)):
        for k in (2, 4):
            found.append(Arm(Condition(name, k, draft, chain), sampled=k == 2 and not chain))
        if not quick:
            found.append(Arm(Condition(name, 6, draft, chain), sets=(INSTRUCTIONS,)))
    found.append(Arm(Condition("exact", "auto", draft)))
    return found


def only(found: Sequence[Arm], names: Sequence[str]) -> list[Arm]:
    """The arms whose condition has one of these names, and the baselines; all without names.

    `context:P` is measured for any window P where `context:5` is.
    Raises: UsageError for a name that no condition has.
    """
    found = [*found, *(arm for name in names for arm in _of_window(found, name))]
    known = dict.fromkeys(arm.condition.name for arm in found if arm.condition.drafts)
    if unknown := [name for name in names if name not in known]:
        raise UsageError(
            f"this study has no condition {unknown[0]!r}; choose from {', '.join(known)}"
        )
    return [
        arm for arm in found if not names or not arm.condition.drafts or arm.condition.name in names
    ]


def _of_window(found: Sequence[Arm], name: str) -> list[Arm]:
    """The arms of the context window, with another window."""
    if name == _WINDOW or not name.startswith("context:"):
        return []
    check_translation(name)
    usual = [arm for arm in found if arm.condition.name == _WINDOW]
    return [replace(arm, condition=replace(arm.condition, name=name)) for arm in usual]


def is_measured(arm: Arm, block: PromptBlock, protocol: Protocol) -> bool:
    """Whether an arm belongs to a block."""
    if arm.sets and block.prompt_set not in arm.sets:
        return False
    return arm.sampled or block.temperature == protocol.temperatures[0]


def is_disturbed(plain: float, control: float) -> bool:
    """Whether two speeds of plain decoding differ by more than `DRIFT`; not where one is 0.

    A speed is 0 where the output ended in its first round, which is not timed.
    """
    return plain > 0 and control > 0 and abs(control / plain - 1) > DRIFT


def windows(ids: Sequence[int], *, size: int, stride: int) -> Iterator[tuple[int, int]]:
    """The windows that slide over a text of these ids, each as [start, end), the last one whole.

    A text that is shorter than a window has one of its own length.
    """
    starts = range(0, max(1, len(ids) - size + 1), stride)
    return ((start, min(start + size, len(ids))) for start in starts)
