"""The picture of the README: a model's answer in the colours of who had guessed each token.

python docs/coloured_answer.py MODEL DICTIONARY PROMPT > docs/pictures/answer.svg
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html import escape
from itertools import groupby
from typing import NamedTuple

COLUMNS, WIDTH, HEIGHT, MARGIN = 84, 8.4, 24, 18
COLOURS = {
    "dictionary": ("#d7e8fb", "#175cd3", "dictionary"),
    "copy": ("#fbedbf", "#946200", "context"),
    "logits": ("#eadffb", "#7440c0", "logit store"),
    "target": ("none", "none", "the model itself"),
}


class Letter(NamedTuple):
    """A letter, who guessed it, and its place."""

    text: str
    source: str
    row: int
    column: int


def letters(pieces: list[tuple[str, str]]) -> Iterator[Letter]:
    """The letters of an answer on lines of `COLUMNS`, broken between words."""
    text = "".join(piece for piece, _ in pieces)
    sources = [source for piece, source in pieces for _ in piece]
    row = column = 0
    for at, letter in enumerate(text):
        word = len(text[at:].split(maxsplit=1)[0]) if letter == " " and text[at:].strip() else 0
        if letter == "\n" or column + word + 1 > COLUMNS:
            row, column = row + 1, 0
        else:
            yield Letter(letter, sources[at], row, column)
            column += 1


def picture(pieces: list[tuple[str, str]], passes: int) -> str:
    """An SVG of the answer, with a legend and a line that says what it took."""
    shown = list(letters(pieces))
    legend = [source for source in COLOURS if any(source == piece[1] for piece in pieces)]
    height = MARGIN * 2 + HEIGHT * (max(letter.row for letter in shown) + 3)
    width = MARGIN * 2 + COLUMNS * WIDTH
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" role="img" '
        'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14">',
        f"<title>An answer in the colours of who had guessed each token: {len(pieces)} tokens in "
        f"{passes} passes</title>",
        f'<rect width="{width:g}" height="{height}" rx="12" fill="#fff"/>',
    ]
    for (_row, _source), run in groupby(shown, lambda letter: (letter.row, letter.source)):
        parts += drawn([*run])
    y = height - MARGIN - HEIGHT // 2
    column = 0
    for source in legend:
        name = COLOURS[source][2]
        parts += drawn([Letter(c, source, 0, column + i) for i, c in enumerate(name)], y)
        column += len(name) + 3
    told = f"{len(pieces)} tokens in {passes} passes"
    parts.append(f'<text x="{width - MARGIN:g}" y="{y}" text-anchor="end">{told}</text>')
    return "\n".join([*parts, "</svg>"])


def drawn(run: list[Letter], y: float | None = None) -> Iterator[str]:
    """Letters of one source in a row, on its ground. y: of the legend's line."""
    ground, rule, _ = COLOURS[run[0].source]
    x = MARGIN + run[0].column * WIDTH
    y = MARGIN + HEIGHT * (run[0].row + 0.75) if y is None else y
    size = len(run) * WIDTH
    if ground != "none":
        yield f'<rect x="{x:g}" y="{y - 15:g}" width="{size:g}" height="20" fill="{ground}"/>'
        yield f'<rect x="{x:g}" y="{y + 4:g}" width="{size:g}" height="2" fill="{rule}"/>'
    text = escape("".join(letter.text for letter in run)).replace(" ", "\u00a0")
    yield f'<text x="{x:g}" y="{y:g}" textLength="{size:g}">{text}</text>'


def main() -> None:
    """Have the model answer, and print the picture."""
    import tokalign

    if len(sys.argv) != 4:
        sys.exit(__doc__)
    name, dictionary, prompt = sys.argv[1:]
    model, tokenizer = tokalign.load(name)
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True
    )
    pieces, passes = [], 0
    for response in tokalign.stream_generate(
        model, tokenizer, asked, dictionary=dictionary, num_draft_tokens=8, max_tokens=120
    ):
        if response.text:
            pieces.append((response.text, response.source.partition(":")[0]))
        passes += response.source == "target"
    print(picture(pieces, passes))


if __name__ == "__main__":
    main()
