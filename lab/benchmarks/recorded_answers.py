"""Answers of real models with the target's top-k logits, recorded once for replays without a model.

    python -m lab.benchmarks.recorded_answers MODEL OUT [--temp 0.7] [--kind KIND] [--numbers 1-4]

The prompts are those of `lab/prompts/free/`, twelve of each kind; `polish` ones are openings, for a
base model. All answers of a call are decoded in one batch of mlx-lm. A sampled id is drawn with the
noise of the prompt's own seed, as `Sampling` draws it. One file holds the answers of a call; rows
of ids that were not chosen are not recorded, so stores that are told of a replay learn nothing from
rejected ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from lab.benchmarks.real_prompts import EVERY_KIND, KINDS
from tokalign.api.assemble import assemble, load_models
from tokalign.cli.output import progress
from tokalign.cli.texts import read_texts
from tokalign.runtime.draft.lookup import KEPT
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.options import DraftingOptions
from tokalign.tokenizer.vocabulary import TargetId

PROMPTS = Path(__file__).resolve().parents[1] / "prompts" / "free"
POLISH = "polish"
TOKENS = {"editing": 224}
"""Tokens of an answer by kind; of the others `_TOKENS`."""

_TOKENS = 144


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer of `ids` to `prompt`.

    likely: i[ids, KEPT], the most probable ids of the row that each id was chosen from, the most
    probable first. logprobs: their log-probabilities, of the same shape.
    """

    model: str
    kind: str
    number: int
    temp: float
    prompt: list[TargetId]
    ids: list[TargetId]
    likely: NDArray[np.uint32]
    logprobs: NDArray[np.float32]

    @property
    def name(self) -> str:
        return f"{self.kind} {self.number}"


def read_answers(folder: Path) -> list[Answer]:
    """All recorded answers of a folder, in the order of their files."""
    return [answer for path in sorted(folder.glob("*.npz")) for answer in _read(path)]


def numbers_of(text: str) -> range:
    """The numbers of prompts that an option names: "5-8", or "5"."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def chosen_answers(
    folder: Path, numbers: str, *, temp: float = 0.0, kinds: Sequence[str] = KINDS
) -> list[Answer]:
    """The recorded answers of these prompts and kinds, at this temperature."""
    wanted = numbers_of(numbers)
    return [
        answer
        for answer in read_answers(folder)
        if answer.temp == temp and answer.kind in kinds and answer.number in wanted
    ]


def _read(path: Path) -> Iterator[Answer]:
    with np.load(path) as file:
        model, temp = str(file["model"]), float(file["temp"])
        for name in sorted({key.partition("/")[0] for key in file if "/" in key}):
            kind, number = name.split()
            yield Answer(
                model=model,
                kind=kind,
                number=int(number),
                temp=temp,
                prompt=file[f"{name}/prompt"].tolist(),
                ids=file[f"{name}/ids"].tolist(),
                likely=file[f"{name}/likely"],
                logprobs=file[f"{name}/logprobs"].astype(np.float32),
            )


def seed_of(kind: str, number: int) -> int:
    """The seed of a prompt's noise."""
    return 100 * EVERY_KIND.index(kind) + number


def _sampler(kind: str, number: int, temp: float, first: int) -> Callable[[Any], Any]:
    """Chooses as the target would whose prompt has `first` ids; called once for each position."""
    sampling, position = Sampling(temperature=temp, seed=seed_of(kind, number)), first - 1

    def sample(logprobs: Any) -> Any:
        nonlocal position
        position += 1
        return sampling.pick(logprobs, [position])

    return sample


def record(
    name: str, temp: float, kinds: Sequence[str], numbers: Sequence[int]
) -> dict[str, NDArray[Any]]:
    """Decode the answers of all these prompts. Returns: the arrays of their file."""
    from mlx_lm.generate import BatchGenerator

    [model] = load_models([name], dtype="float32")
    decoder = assemble(model, None, DraftingOptions(method="plain"))
    wanted = []
    for kind in kinds:
        texts = read_texts(PROMPTS / f"{kind}.txt")
        for number in numbers:
            text = texts[number - 1].replace("\\n", "\n")
            asked = decoder.prompt(text, use_template=kind != POLISH)
            wanted.append((kind, number, list(asked.target)))
    stops = [[token] for token in model.stop_ids]
    generator = BatchGenerator(model.model, stop_tokens=stops, completion_batch_size=len(wanted))
    of_uid = generator.insert(
        [prompt for _, _, prompt in wanted],
        max_tokens=[TOKENS.get(kind, _TOKENS) for kind, _, _ in wanted],
        samplers=[_sampler(kind, number, temp, len(ids)) for kind, number, ids in wanted],
    )
    rows: dict[int, list[tuple[int, Any, Any]]] = {uid: [] for uid in of_uid}
    with progress(sum(TOKENS.get(kind, _TOKENS) for kind, _, _ in wanted), "decoding") as advance:
        while responses := generator.next_generated():
            for one in responses:
                rows[one.uid].append((one.token, *_most_probable(np.array(one.logprobs))))
            advance(len(responses))
            mx.clear_cache()
    arrays: dict[str, Any] = {"model": np.array(Path(name).name), "temp": np.array(temp)}
    for uid, (kind, number, prompt) in zip(of_uid, wanted, strict=True):
        ids, likely, logprobs = zip(*rows[uid], strict=True)
        for what, values, dtype in (
            ("prompt", prompt, np.uint32),
            ("ids", ids, np.uint32),
            ("likely", likely, np.uint32),
            ("logprobs", logprobs, np.float16),
        ):
            arrays[f"{kind} {number}/{what}"] = np.array(values, dtype=dtype)
    return arrays


def _most_probable(row: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    among = np.argpartition(row, -KEPT)[-KEPT:]
    ranked = among[np.argsort(-row[among], kind="stable")]
    return ranked, row[ranked]


@click.command()
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--temp", default=0.0, show_default=True)
@click.option("--kind", "kinds", multiple=True, type=click.Choice(EVERY_KIND), default=KINDS[:-1])
@click.option("--numbers", default="1-12", show_default=True, help="Of the prompts of each kind.")
def main(model: str, out: Path, temp: float, kinds: Sequence[str], numbers: str) -> None:
    """Record answers, in one file for the call."""
    arrays = record(model, temp, kinds, numbers_of(numbers))
    out.mkdir(parents=True, exist_ok=True)
    about = f"{'polish-' if tuple(kinds) == (POLISH,) else ''}{Path(model).name}-{temp:g}"
    np.savez_compressed(out / f"{about}-{numbers}.npz", **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
