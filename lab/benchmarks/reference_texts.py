"""What the benchmarks that replay reference texts share: models, tables, texts and options.

This is no command of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from lab.baselines.translations import make_translation
from tokalign.assemble import load_models, pair_tables
from tokalign.cli.bench_options import read_texts
from tokalign.evaluate.replay import replay
from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.decoder import LanguageModel, Prompt
from tokalign.runtime.draft.neural import NeuralDrafter
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.rounds import Event
from tokalign.runtime.translation.base import Pair, Translation
from tokalign.tables.alignment import Alignment
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId


@dataclass(frozen=True, kw_only=True)
class ReferenceTexts:
    """Texts that play the target's output, and a draft model that proposes how they continue.

    texts: in target ids. prompt_tokens: how many ids of each are the prompt. steps: draft passes in
    a round (K).
    """

    name: str
    model: LanguageModel[DraftId]
    pair: Pair
    alignment: Alignment
    texts: Sequence[Sequence[TargetId]]
    prompt_tokens: int
    steps: int

    def __str__(self) -> str:
        return f"{self.name}, {len(self.texts)} texts, K = {self.steps}"

    def prompt(self, ids: Sequence[TargetId]) -> Prompt:
        """The part of one text that is given."""
        return Prompt(target=ids[: self.prompt_tokens])

    def translation(self, name: str, ids: Sequence[TargetId]) -> Translation:
        """A translation for one text, by the name that `--translation` takes."""
        return make_translation(name, self.pair, self.prompt(ids), lambda: self.alignment)

    def play(
        self,
        ids: Sequence[TargetId],
        session: DraftModelSession,
        translation: Translation,
        *,
        alternatives: int,
    ) -> Iterator[Event]:
        """Replay one text with the draft model."""
        drafter = NeuralDrafter(
            session, translation, num_draft_tokens=self.steps, alternatives=alternatives
        )
        return replay(ids, drafter, prompt_tokens=self.prompt_tokens)


def reference_texts(*, steps: int, limit: int | None) -> Callable[[Any], Any]:
    """Options that say what to replay; the command gets a `ReferenceTexts` as its first argument.

    steps, limit: the defaults of K and of the number of texts.
    """
    options = (
        click.option("--draft-model", required=True),
        click.option("--target", default="bielik", show_default=True),
        click.option("--text", type=click.Path(path_type=Path, exists=True), required=True),
        click.option("--field", default="text", show_default=True),
        click.option("-k", "--num-draft-tokens", default=steps, show_default=True),
        click.option("--prompt-tokens", default=12, show_default=True),
        click.option(
            "--tokens", default=200, show_default=True, help="Tokens of each text at most."
        ),
        click.option("--limit", type=int, default=limit, show_default=True, help="Texts."),
    )

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_texts(
            *,
            draft_model: str,
            target: str,
            text: Path,
            field: str,
            num_draft_tokens: int,
            prompt_tokens: int,
            tokens: int,
            limit: int | None,
            **others: Any,
        ) -> None:
            [model] = load_models([draft_model], dtype="float32")
            tokenizer: Tokenizer[TargetId] = resolve_tokenizer(target).tokenizer
            texts = tokenizer.encode_batch(read_texts(text, field=field, limit=limit))
            found = ReferenceTexts(
                name=text.name,
                model=model,
                pair=Pair(tokenizer, model.tokenizer),
                alignment=pair_tables(tokenizer, model.tokenizer, model_folder=model.folder)(),
                texts=[ids[:tokens] for ids in texts],
                prompt_tokens=prompt_tokens,
                steps=num_draft_tokens,
            )
            command(found, **others)

        decorated: Callable[..., None] = with_texts
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate
