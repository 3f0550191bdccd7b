"""Documents of every kind, written by the tests."""

from __future__ import annotations

import os
from pathlib import Path
from time import sleep

from tokalign.errors import CorpusError

MEETING = "Zebranie wspólnoty odbędzie się we wtorek o dziesiątej w sali na parterze."
LETTER = "Z poważaniem, Jan Nowak, administrator budynku przy ulicy Polnej."


def write_pdf(path: Path, lines: list[str]) -> Path:
    """A PDF of one page with one line of text under the other, in ASCII."""
    shown = "".join(f"({line}) Tj 0 -20 Td " for line in lines)
    content = f"BT /F1 12 Tf 50 700 Td {shown} ET"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents 4 0 R "
        "/Resources << /Font << /F1 5 0 R >> >> >>",
        f"<< /Length {len(content)} >>\nstream\n{content}\nendstream",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    body = "%PDF-1.4\n"
    for number, one in enumerate(objects, 1):
        body += f"{number} 0 obj\n{one}\nendobj\n"
    path.write_text(body + "trailer << /Root 1 0 R /Size 6 >>\n%%EOF\n", encoding="ascii")
    return path


def read_as_told(path: Path) -> str:
    """In the place of `read_document`: the name of a document says what reading it does."""
    if path.name == "endless":
        sleep(10_000)
    if path.name == "crash":
        os._exit(11)
    if path.name == "broken":
        raise CorpusError("it is broken", path=str(path))
    return path.name
