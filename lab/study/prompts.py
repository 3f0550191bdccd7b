"""The prompts of a study: tokalign's own, or files of the user's, as blocks of each temperature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from lab.study.conditions import PromptBlock
from lab.study.protocol import ENCYCLOPEDIC, INSTRUCTIONS, QUESTIONS, Protocol, windows
from tokalign.cli.texts import read_texts
from tokalign.storage import POLISH, prompts, sample_text

if TYPE_CHECKING:
    from tokalign.evaluate.bench import MakePrompt
    from tokalign.runtime.chat import Prompt
    from tokalign.runtime.decoder import Decoder
    from tokalign.tokenizer.tokenizer import Tokenizer
    from tokalign.tokenizer.vocabulary import TargetId

_PROMPTS = Path(__file__).resolve().parents[1] / "prompts"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFiles:
    """Where prompts come from; None for tokalign's own.

    articles: encyclopedic texts, over which windows slide. field: of a .jsonl object with its text.
    language: of tokalign's own.
    """

    articles: Path | None = None
    instructions: Path | None = None
    questions: Path | None = None
    field: str = "text"
    language: str = POLISH

    @property
    def own(self) -> bool:
        """Whether all of them come with tokalign."""
        return self.articles is self.instructions is self.questions is None

    def turns(self, name: str, protocol: Protocol) -> list[Path]:
        """The files of a set of user messages."""
        given = {INSTRUCTIONS: self.instructions, QUESTIONS: self.questions}.get(name)
        if given is not None:
            return [given]
        if protocol.preset == "tasks":
            return [_PROMPTS / "tasks" / f"{name}.txt"]
        found = [prompts(self.language) / f"{name}.txt"]
        more = [_PROMPTS / "more" / f"{name}.txt"]
        return found + more if self.language == POLISH else found


@dataclass(frozen=True, slots=True)
class StudyPrompts:
    """Prompts by block, and a digest of each set's texts."""

    by_block: Mapping[PromptBlock, MakePrompt]
    digests: Mapping[str, str]


def study_prompts(
    files: PromptFiles, protocol: Protocol, target: Tokenizer[TargetId]
) -> StudyPrompts:
    """The prompts of a protocol, with one block for each of its temperatures.

    Raises: as `read_texts`.
    """
    sets = {
        name: list(islice(_windows(files, protocol, target), protocol.prompts))
        if name == ENCYCLOPEDIC
        else list(islice(_turns(files, name, protocol), protocol.prompts))
        for name in protocol.sets
    }
    by_block = {
        PromptBlock(name, number, digest, temperature=temperature): make
        for name, prompts in sets.items()
        for number, (digest, make) in enumerate(prompts, start=1)
        for temperature in protocol.temperatures
    }
    digests = {
        name: sha256(" ".join(digest for digest, _ in prompts).encode()).hexdigest()[:16]
        for name, prompts in sets.items()
    }
    return StudyPrompts(by_block, digests)


def _turns(files: PromptFiles, name: str, protocol: Protocol) -> Iterator[tuple[str, MakePrompt]]:
    for path in files.turns(name, protocol):
        for text in read_texts(path, field=files.field):
            yield _digest(text), partial(_turn, text)


def _windows(
    files: PromptFiles, protocol: Protocol, target: Tokenizer[TargetId]
) -> Iterator[tuple[str, MakePrompt]]:
    for text in _articles(files):
        ids = target.encode(text)
        for start, end in windows(ids, size=protocol.window, stride=protocol.stride):
            yield _digest(f"{start} {end} {text}"), partial(_window, ids[start:end])


def _articles(files: PromptFiles) -> Sequence[str]:
    """Tokalign's own text is one article: its paragraphs are short."""
    if files.articles is None:
        return ["\n".join(read_texts(sample_text(files.language)))]
    return read_texts(files.articles, field=files.field)


def _turn(text: str, decoder: Decoder) -> Prompt:
    return decoder.prompt(text)


def _window(ids: list[TargetId], decoder: Decoder) -> Prompt:
    from tokalign.runtime.chat import Prompt, with_bos

    return Prompt(target=with_bos(decoder.target.tokenizer, ids))


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:12]
