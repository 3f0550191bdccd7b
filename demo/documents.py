"""Text for the demo pair: read corpora, cap and mix them, phrase chats, pack rows of token ids.

Every training document is one string with its special tokens spelled out, so that plain text and
chats take the same road: `<s>text</s>` or `<s><|im_start|>user…<|im_end|>…`.
"""

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import zstandard
from tokenizers import Tokenizer

# A paragraph that asks one question and answers it: a second question mark means it is neither,
# a dash at the start that it is a scene from a dialogue.
QUESTION = re.compile(r"^([^.?!–—-][^.?!]{8,200}\?) ([^?]{1,400})$")
DOCUMENT_CHARS = 1000


@dataclass(frozen=True, slots=True)
class Source:
    """A corpus file and how many times its documents enter the mix."""

    path: Path
    repeats: int = 1

    @classmethod
    def parse(cls, spec: str) -> "Source":
        """Read `FILE` or `FILE:REPEATS`: Source.parse("a.txt:8") -> Source(Path("a.txt"), 8)."""
        path, _, repeats = spec.rpartition(":")
        return cls(Path(path), int(repeats)) if path and repeats.isdigit() else cls(Path(spec))


def read_lines(path: Path) -> list[str]:
    """Return the non-empty lines of a .txt or .txt.zst file, one paragraph each."""
    raw = path.read_bytes()
    if path.suffix == ".zst":
        raw = zstandard.ZstdDecompressor().stream_reader(raw).read()
    return [line.strip() for line in raw.decode("utf-8").split("\n") if line.strip()]


def group_paragraphs(lines: Iterable[str], chars: int = DOCUMENT_CHARS) -> Iterator[str]:
    """Join consecutive paragraphs into documents, each closed once it has `chars` characters."""
    document: list[str] = []
    for line in lines:
        document.append(line)
        if sum(map(len, document)) >= chars:
            yield "\n".join(document)
            document = []
    if document:
        yield "\n".join(document)


def draw(documents: Iterable[str], megabytes: float, seed: int) -> list[str]:
    """Shuffle the documents and keep the first ones, up to `megabytes` of UTF-8."""
    shuffled = list(documents)
    random.Random(seed).shuffle(shuffled)
    left = megabytes * 1e6
    kept = []
    for document in shuffled:
        left -= len(document.encode())
        if left < 0:
            break
        kept.append(document)
    return kept


def chat(question: str, answer: str) -> str:
    """Phrase one exchange exactly as the chat template does."""
    user = f"<s><|im_start|>user\n{question}<|im_end|>\n"
    return f"{user}<|im_start|>assistant\n{answer}<|im_end|>\n"


def ask_questions(lines: Iterable[str]) -> Iterator[str]:
    """Turn each paragraph of the form "question? answer" into a chat; skip the others."""
    for line in lines:
        if match := QUESTION.match(line):
            yield chat(match[1], match[2])


def ask_to_continue(lines: Iterable[str]) -> Iterator[str]:
    """Turn each longer paragraph into a chat that quotes its opening and asks for the rest.

    Without these a chat would only ever hold a short answer; the quoted words also teach copying.
    """
    for line in lines:
        words = line.split(" ")
        if len(words) >= 20 and len(line) <= DOCUMENT_CHARS:
            yield chat(f"Dokończ tekst: {' '.join(words[:6])}", line)


def mix(
    sources: Sequence[Source], questions: Sequence[Source], megabytes: float, seed: int
) -> list[str]:
    """Return all training documents in random order, at most `megabytes` from each source."""
    documents: list[str] = []
    for source in sources:
        lines = read_lines(source.path)
        plain = [f"<s>{text}</s>" for text in draw(group_paragraphs(lines), megabytes, seed)]
        # One document in ten, by volume, is a chat: enough to learn the form, cheap to afford.
        documents += source.repeats * (
            plain + draw(ask_to_continue(lines), megabytes / 10, seed + 1)
        )
    for source in questions:
        documents += source.repeats * list(ask_questions(read_lines(source.path)))
    random.Random(seed + 2).shuffle(documents)
    return documents


def pack(documents: Sequence[str], tokenizer: Tokenizer, length: int) -> npt.NDArray[np.int32]:
    """Encode the documents end to end and cut them into rows.

    Shapes: i32[n_rows, length + 1]; neighbours share one id, so each id
    but the first is predicted once.
    """
    encoded = tokenizer.encode_batch(list(documents), add_special_tokens=False)
    ids = np.concatenate([np.array(e.ids, dtype=np.int32) for e in encoded])
    n_rows = (len(ids) - 1) // length
    starts = np.arange(n_rows)[:, None] * length
    rows: npt.NDArray[np.int32] = ids[starts + np.arange(length + 1)]
    return rows
