"""The texts that several benchmarks decode: a target's own outputs, or texts that play them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from lab.benchmarks.remembered_target import Text, given_text, load_texts, sampled_text, save_texts
from tokalign.cli.texts import read_texts
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.tokenizer.vocabulary import TargetId


@dataclass(frozen=True)
class OwnOutputs:
    """A target, what it is to emit, and how conditions are run on that.

    every: all texts of the file. texts: the first ones, which are measured. tokens: of each text.
    empty: whether every request begins with an empty store. only: a regular expression for the
    names that are asked for; None for all. cache: the file of remembered rows.
    """

    model: LanguageModel[TargetId]
    every: Sequence[Text]
    texts: Sequence[Text]
    tokens: int
    empty: bool
    only: str | None
    cache: Path | None

    def wants(self, name: str) -> bool:
        """Whether a condition of this name is asked for."""
        return self.only is None or re.search(self.only, name) is not None

    def save(self) -> None:
        """Keep the rows that the target has computed for further runs, where a file is given."""
        save_texts(self.every, self.cache)


def own_outputs(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name the texts, and OwnOutputs as its first argument."""

    @wraps(command)
    def with_outputs(
        *,
        target: Path,
        limit: int,
        tokens: int,
        empty: bool,
        only: str | None,
        cache: Path | None,
        prompts: Path | None,
        reference: Path | None,
        field: str,
        given: int,
        temp: float,
        **others: Any,
    ) -> None:
        model: LanguageModel[TargetId] = LanguageModel.from_folder(target, dtype="float32")
        every = load_texts(cache)
        if not every and reference is not None:
            every = _given(model, read_texts(reference, field=field), given, tokens)
        elif not every:
            if prompts is None:
                raise click.UsageError("give --prompts or --text")
            every = _sampled(model, read_texts(prompts, field=field), tokens, temp)
        outputs = OwnOutputs(model, every, every[:limit], tokens, empty, only, cache)
        outputs.save()
        command(outputs, **others)

    file = click.Path(path_type=Path, exists=True)
    decorated: Callable[..., None] = with_outputs
    for option in (
        click.option("--target", type=file, required=True),
        click.option("--prompts", type=file),
        click.option("--text", "reference", type=file, help="Texts that play the output."),
        click.option("--field", default="text", show_default=True),
        click.option(
            "--given", default=12, show_default=True, help="Ids of a text that are given."
        ),
        click.option("--limit", default=30, show_default=True, help="Texts, the first ones."),
        click.option("--tokens", default=250, show_default=True, help="Tokens of each output."),
        click.option("--temp", default=0.7, show_default=True),
        click.option("--empty", is_flag=True, help="Begin every request with an empty store."),
        click.option("--only", metavar="REGEX", help="Only conditions whose names match."),
        click.option("--cache", type=click.Path(path_type=Path), help="Remembered rows."),
    ):
        decorated = option(decorated)
    return decorated


def _given(
    model: LanguageModel[TargetId], texts: Sequence[str], given: int, tokens: int
) -> list[Text]:
    encoded = [model.tokenizer.encode(one) for one in texts]
    return [given_text(ids[: given + tokens], given) for ids in encoded if len(ids) > 2 * given]


def _sampled(
    model: LanguageModel[TargetId], prompts: Sequence[str], tokens: int, temp: float
) -> list[Text]:
    """Each prompt has a seed of its own."""
    return [
        sampled_text(
            model, model.tokenizer.encode(one), tokens, Sampling(temperature=temp, seed=seed)
        )
        for seed, one in enumerate(prompts)
    ]
