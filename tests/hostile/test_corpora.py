"""Corpora that strangers wrote: each is read, or reported with file and line, in bounded memory."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
import zstandard
from command_lines import run
from processes import nobody
from small_tokenizers import write_tokenizer

from tokalign.build.corpus import Corpus
from tokalign.build.text_files import LONGEST_LINE, LONGEST_PARAGRAPH, TextFile
from tokalign.cli.texts import read_texts
from tokalign.errors import CorpusError

GOOD = "Zażółć gęślą jaźń."
LINE = GOOD.encode() + b"\n"
OBJECT = json.dumps({"text": GOOD}).encode() + b"\n"
LONG = LONGEST_LINE + 1

gz, zst = partial(gzip.compress, mtime=0), zstandard.compress


def tar(content: bytes) -> bytes:
    archive, member = io.BytesIO(), tarfile.TarInfo("a.txt")
    member.size = len(content)
    with tarfile.open(fileobj=archive, mode="w") as written:
        written.addfile(member, io.BytesIO(content))
    return archive.getvalue()


@dataclass(frozen=True, slots=True)
class Hostile:
    """A file and what becomes of it.

    read: the paragraphs that come out. skipped: line and reason of each line that is left out.
    refused: why the whole file is, if it is.
    """

    name: str
    data: bytes | Callable[[], bytes]
    read: tuple[str, ...] = (GOOD,)
    skipped: tuple[tuple[int, str], ...] = ()
    refused: str | None = None

    def write(self, folder: Path) -> Path:
        (folder / self.name).write_bytes(self.data if isinstance(self.data, bytes) else self.data())
        return folder / self.name


def long_object() -> bytes:
    return json.dumps({"text": "a" * LONG}).encode() + b"\n" + OBJECT


def nested(opening: bytes) -> bytes:
    return OBJECT + opening * 100_000 + b"\n"


def object_with(value: str) -> bytes:
    return b'{"id": ' + value.encode() + b', "text": "' + GOOD.encode() + b'"}\n'


def with_window(log: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(window_log=log, enable_ldm=False)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(LINE) + packer.flush()


def with_dictionary() -> bytes:
    trained = zstandard.train_dictionary(512, [b"zdanie numer %d" % i for i in range(999)])
    return zstandard.ZstdCompressor(dict_data=trained).compress(LINE * 20)


def many_fields() -> bytes:
    return json.dumps({f"\x1b[2J\n{i}" + "ż" * 50: i for i in range(3000)}).encode() + b"\n"


TOO_LONG, NOT_UTF8 = "longer than 4 MiB", "not UTF-8 at byte"
HOSTILE = {
    "a line that is too long": Hostile(
        "a.txt", lambda: b"a" * LONG + b"\n" + LINE, skipped=((1, TOO_LONG),)
    ),
    "a last line that is too long and has no end": Hostile(
        "a.txt", lambda: LINE + b"a" * LONG, skipped=((2, TOO_LONG),)
    ),
    "two lines that are too long, and one that just is not": Hostile(
        "a.txt",
        lambda: b"\n".join([b"a" * (3 * LONG), b"b" * LONG, b"c" * LONGEST_LINE]),
        read=("c" * LONGEST_PARAGRAPH,) * (LONGEST_LINE // LONGEST_PARAGRAPH),
        skipped=((1, TOO_LONG), (2, TOO_LONG)),
    ),
    "a paragraph that is cut at its spaces": Hostile(
        "a.txt",
        lambda: GOOD.encode() + b" " + b"a" * 70_000 + b" b\n",
        read=(GOOD, "a" * LONGEST_PARAGRAPH, "a" * (70_000 - LONGEST_PARAGRAPH) + " b"),
    ),
    "a line that is too long, in gzip": Hostile(
        "a.txt.gz", lambda: gz(LINE + b"a" * LONG + b"\n"), skipped=((2, TOO_LONG),)
    ),
    "a line that is too long, in zstandard": Hostile(
        "a.txt.zst", lambda: zst(LINE + b"a" * LONG + b"\n"), skipped=((2, TOO_LONG),)
    ),
    "a line that is too long, over many gzip members": Hostile(
        "a.txt.gz",
        lambda: gz(b"a" * (LONG // 8 + 1)) * 8 + gz(b"\n" + LINE),
        skipped=((1, TOO_LONG),),
    ),
    "an object that is too long": Hostile("a.jsonl", long_object, skipped=((1, TOO_LONG),)),
    "nested arrays": Hostile("a.jsonl", nested(b"["), skipped=((2, "nested too deeply"),)),
    "nested objects": Hostile("a.jsonl", nested(b'{"text":'), skipped=((2, "nested too deeply"),)),
    "an integer of 5,000 digits": Hostile("a.jsonl", object_with("9" * 5000)),
    "an integer of 2 million digits": Hostile("a.jsonl", object_with("9" * 2_000_000)),
    "a number with a huge exponent": Hostile("a.jsonl", object_with("1e999999999")),
    "not a number": Hostile("a.jsonl", object_with("[NaN, -Infinity]")),
    "the field twice": Hostile("a.jsonl", b'{"text": 1, "text": "' + GOOD.encode() + b'"}'),
    "lines that are no objects with a text": Hostile(
        "a.jsonl",
        OBJECT + b'{"text": "bez ko\n{"body": "inne"}\n{"text": 7}\n[]\n{"text": "\xff"}\n',
        skipped=(
            (2, "not JSON at column"),
            (3, "--field"),
            *((line, 'no text in field "text"') for line in (4, 5)),
            (6, NOT_UTF8),
        ),
    ),
    "half a surrogate pair": Hostile(
        "a.jsonl",
        OBJECT + b'{"text": "\\udc80"}\n{"text": "\\ud83d\\ud83d"}\n',
        skipped=((2, "half a surrogate pair"), (3, "half a surrogate pair")),
    ),
    "thousands of fields with control characters": Hostile(
        "a.jsonl", many_fields(), refused="and 2990 more; choose one with --field"
    ),
    "NUL bytes": Hostile("a.txt", b"a\0b\n\0\n" + LINE, read=("a\0b", "\0", GOOD)),
    "byte order marks": Hostile(
        "a.txt",
        b"\xef\xbb\xbf\xef\xbb\xbf" + LINE + b"\xef\xbb\xbf" + LINE,
        read=("\ufeff" + GOOD, "\ufeff" + GOOD),
    ),
    "UTF-16": Hostile(
        "a.txt", "ala\nma\n".encode("utf-16") + b"\n" + LINE, refused="it is UTF-16; convert it"
    ),
    "UTF-16 without a mark": Hostile(
        "a.txt", "ala ma kota\n".encode("utf-16-le") + LINE, refused="it is UTF-16; convert it"
    ),
    "UTF-16 of the other order without a mark": Hostile(
        "a.txt", "ala ma kota\n".encode("utf-16-be") + LINE, refused="it is UTF-16; convert it"
    ),
    "a PDF named as text": Hostile("a.txt", b"%PDF-1.7\n" + LINE * 9, refused="it is a PDF; save"),
    "HTML named as text": Hostile(
        "a.txt", b"\xef\xbb\xbf <!DOCTYPE HTML>\n" + LINE * 9, refused="it is HTML; name it .html"
    ),
    "HTML without a type, packed": Hostile(
        "a.txt.gz", lambda: gz(b"<html lang='pl'>" + LINE * 9), refused="it is HTML; name it .html"
    ),
    "a word that begins like HTML": Hostile(
        "a.txt", b"<html-owy>\n" + LINE, read=("<html-owy>", GOOD)
    ),
    "a tar archive named as text": Hostile(
        "a.txt", lambda: tar(LINE * 999), refused="it is a tar archive; unpack it"
    ),
    "a tar archive that its name does not say": Hostile(
        "a.txt.gz", lambda: gz(tar(LINE * 999)), refused="it is a tar archive; unpack it"
    ),
    "bytes of a picture": Hostile(
        "a.txt",
        lambda: Random(1).randbytes(20_000) + b"\n" + LINE * 9,
        refused="is no text in UTF-8",
    ),
    "zeros before some text": Hostile(
        "a.txt", b"ala ma kota" + bytes(99) + b"\n" + LINE, refused="is no text in UTF-8"
    ),
    "text in another encoding": Hostile(
        "a.txt", (GOOD + "\n").encode("iso8859-2") * 9, refused="iconv -f ENCODING"
    ),
    "every kind of broken UTF-8": Hostile(
        "a.txt",
        b"\n".join(
            [b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff", b"a\xc5", b"\x80", LINE]
        ),
        skipped=tuple((line, NOT_UTF8) for line in range(1, 7)),
    ),
    "line ends of three systems": Hostile(
        "a.txt", b"a\r\nb\rc\n\r\n" + LINE, read=("a", "b\rc", GOOD)
    ),
    "separators that are no line ends": Hostile(
        "a.txt", "a\u2028b\u0085c\x0bd\x1ce\n".encode(), read=("a\u2028b\x85c\x0bd\x1ce",)
    ),
    "a million line ends": Hostile("a.txt", lambda: b"\n" * 1_000_000 + LINE),
    "no bytes": Hostile("a.txt", b"", refused="no text in the corpus"),
    "no bytes where an archive should be": Hostile(
        "a.txt.zst", b"", refused="no text in the corpus"
    ),
    "an empty gzip archive": Hostile("a.txt.gz", gz(b""), refused="no text in the corpus"),
    "garbage after gzip": Hostile("a.txt.gz", gz(LINE) + b"x", refused="damaged"),
    "garbage after zstandard": Hostile("a.txt.zst", zst(LINE) + b"xxxxx", refused="damaged"),
    "gzip that ends in its header": Hostile("a.txt.gz", gz(LINE)[:5], refused="ends too early"),
    "gzip that ends before its checksum": Hostile(
        "a.txt.gz", gz(LINE)[:-8], refused="ends too early"
    ),
    "gzip with a wrong checksum": Hostile("a.txt.gz", gz(LINE)[:-8] + bytes(8), refused="damaged"),
    "zstandard that ends in its header": Hostile(
        "a.txt.zst", zst(LINE)[:5], refused="ends too early"
    ),
    "zstandard that ends in a block": Hostile(
        "a.txt.zst", zst(LINE)[:-3], refused="ends too early"
    ),
    "zstandard with a window of 2 GiB": Hostile(
        "a.txt.zst", lambda: with_window(31), refused="more than 128 MiB; pack it again"
    ),
    "zstandard with a window of 128 MiB": Hostile("a.txt.zst", lambda: with_window(27)),
    "zstandard with a dictionary of its own": Hostile(
        "a.txt.zst", with_dictionary, refused="damaged.*ictionary"
    ),
    "ten thousand empty gzip members": Hostile("a.txt.gz", lambda: gz(b"") * 10_000 + gz(LINE)),
    "ten thousand empty zstandard frames": Hostile(
        "a.txt.zst", lambda: zst(b"") * 10_000 + zst(LINE)
    ),
    "gzip that its name does not say": Hostile("a.txt", gz(LINE), refused="packed by gzip"),
    "an archive named as objects": Hostile("a.jsonl", zst(OBJECT), refused="packed by zstd"),
    "gzip of gzip": Hostile("a.txt.gz", gz(gz(LINE)), refused="packed by gzip"),
    "an archive in an archive": Hostile(
        "a.txt.gz.zst", zst(gz(LINE)), refused="not a kind of corpus file"
    ),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("t") / "small-target", vocabulary_size=360)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_corpus_is_read_or_refused_with_its_file_and_lines(tmp_path: Path, name: str) -> None:
    hostile = HOSTILE[name]
    path = hostile.write(tmp_path)
    problems: list[CorpusError] = []

    def read() -> list[str]:
        return list(Corpus([path], report=problems.append).lines())

    if hostile.refused is not None:
        with pytest.raises(CorpusError, match=hostile.refused) as caught:
            read()
        assert path.name in str(caught.value)
        assert len(str(caught.value)) < 2000
        return
    assert read() == list(hostile.read)
    assert [(one.path, one.line) for one in problems] == [
        (str(path), line) for line, _ in hostile.skipped
    ]
    for problem, (_, reason) in zip(problems, hostile.skipped, strict=True):
        assert reason in str(problem)
    if problems:
        with pytest.raises(CorpusError, match=hostile.skipped[0][1]):
            list(Corpus([path]).lines())


@pytest.mark.parametrize("name", [*HOSTILE][::3])
def test_a_build_ends_with_a_table_or_with_one_line(
    tmp_path: Path, target: Path, name: str
) -> None:
    hostile, out = HOSTILE[name], tmp_path / "out"
    words = ("build", "--target", target, "--dictionary-only", hostile.write(tmp_path))
    ended = run(*words, "--language", "pl", "--output", out, "--quiet")
    if hostile.refused is None:
        assert (ended.code, ended.err) == (0, "")
        assert [file.name for file in out.rglob("*.*")] == ["pl.dictionary.tok"]
    else:
        assert ended.is_refused(1) + "\n" == ended.err
        assert (ended.out, "\x1b" in ended.err) == ("", False)
        assert not out.exists()


def link_to(place: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(place)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "a pipe or a device"),
        (Path.mkdir, "a folder; give the files in it"),
        (link_to("nothing"), "no such file"),
        (link_to("a.txt"), "cannot be read"),
        (link_to("/dev/zero"), "a pipe or a device"),
        (link_to("."), "a folder"),
    ],
    ids=["pipe", "folder", "dangling link", "link to itself", "device", "link to a folder"],
)
def test_what_is_no_regular_file_is_refused_and_never_waited_for(
    tmp_path: Path, make: Callable[[Path], None], reason: str
) -> None:
    path = tmp_path / "a.txt"
    make(path)
    for read in (lambda: Corpus([path]), lambda: read_texts(path)):
        with pytest.raises(CorpusError, match=reason) as caught:
            read()
        assert caught.value.path == str(path)


def become_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("change", "user", "use", "reason"),
    [
        (become_a_pipe, nullcontext, Corpus.lines, "a pipe or a device"),
        (Path.unlink, nullcontext, Corpus.lines, "no such file"),
        (Path.unlink, nullcontext, lambda corpus: [corpus.size], "no such file"),
        (partial(Path.chmod, mode=0), nobody, Corpus.lines, "Permission denied"),
    ],
    ids=["pipe", "nothing", "size of nothing", "no permission"],
)
def test_a_file_that_cannot_be_read_any_more_is_named(
    tmp_path: Path, change: Any, user: Any, use: Callable[[Corpus], Iterable[Any]], reason: str
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(LINE)
    corpus = Corpus([path])
    change(path)
    with user(), pytest.raises(CorpusError, match=reason) as caught:
        list(use(corpus))
    assert caught.value.path == str(path)


@pytest.mark.parametrize("lines_then", [1_000, 100_000])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, lines_then: int) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(LINE * 20_000)
    corpus = Corpus([path])
    lines = corpus.lines()
    next(lines)
    path.write_bytes(LINE * lines_then)
    with pytest.raises(CorpusError, match="changed while it was read"):
        list(lines)
    assert corpus.stamp == {}


def seconds_to_read(path: Path) -> float:
    """The processor time of one reading."""
    started = time.process_time()
    text = TextFile(path, report=lambda _: None)
    assert list(text.texts()) == []
    assert text.stamp()["text_bytes"] == path.stat().st_size
    return time.process_time() - started


def test_a_long_line_is_read_in_linear_time(tmp_path: Path) -> None:
    fastest = []
    for mebibytes in (8, 256):
        path = tmp_path / f"{mebibytes}.txt"
        with path.open("wb") as file:
            file.truncate(mebibytes << 20)  # a hole reads as zeros
        fastest.append(min(seconds_to_read(path) for _ in range(2)))
    assert fastest[1] < 200 * fastest[0]  # linear time is 32 times as much, quadratic 1,024


MANY = 1 << 26


@pytest.mark.parametrize(("name", "pack"), [("a.txt.gz", gz), ("a.txt.zst", zst)])
def test_a_build_from_an_archive_with_a_line_of_a_gigabyte_keeps_to_its_memory(
    tmp_path: Path, target: Path, name: str, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / name
    path.write_bytes(pack(b"a" * MANY) * 16 + pack(b"\n" + LINE))
    assert path.stat().st_size < 1_100_000
    build = ["build", "--target", target, "--dictionary-only", path, "--json", "--quiet"]
    build += ["--language", "pl", "--memory", "300M", "--output", tmp_path]
    # A process starts with the peak of the one it was forked from, so a shell stands in between.
    command = ["/bin/sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-m", "tokalign", *build]
    ended = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True, check=True)
    built = json.loads(ended.stdout)
    assert (built["lines_skipped"], built["text_bytes"]) == (1, 16 * MANY + 1 + len(LINE))
    assert built["peak_memory_mb"] < 300


BUILD = """
import resource, sys
from tokalign.cli import main

peak = 1 << 20 if sys.platform == "darwin" else 1 << 10
sys.argv[0] = "tokalign"
try:
    main()
finally:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(of).ru_maxrss for of in kinds]
    print(max(used) // peak)
"""
BUILDERS = {
    "backoff": ["--dictionary-only", "--memory", "250M"],  # for counting; contexts are chosen after
    "alignment": ["--alignment-only"],
}
LINES, LENGTH = 2, 3_900_000  # a line that is a little longer would be left out


def letters(number: int) -> bytes:
    """Without a space; no two lines are the same."""
    return bytes(97 + digit % 26 for digit in Random(number).randbytes(LENGTH))


def words(number: int) -> bytes:
    run = letters(number)
    return b" ".join(run[i : i + 9] for i in range(0, LENGTH, 10))


MONSTERS: dict[str, Callable[[int], bytes]] = {
    "one long word": letters,
    "one character, repeated": lambda _: b"a" * LENGTH,
    "control characters": lambda _: b"\x01" * LENGTH,
    "words of which none comes twice": words,
    "a line of 100 MB": lambda number: bytes(100_000_000 if number else 0) + GOOD.encode(),
}


IN_EVERY_RUN = {
    ("one character, repeated", "backoff"),
    ("a line of 100 MB", "alignment"),
}
"""The other monsters and builders meet in the long lane."""


@pytest.mark.skipif(sys.platform == "darwin", reason="the shell bounds no memory there")
@pytest.mark.parametrize(
    ("monster", "builder"),
    [
        pytest.param(*pair, marks=[] if pair in IN_EVERY_RUN else pytest.mark.long)
        for pair in product(MONSTERS, BUILDERS)
    ],
)
def test_every_builder_keeps_to_its_memory(
    tmp_path: Path, target: Path, builder: str, monster: str
) -> None:
    """It ends with a table, or with one line that says what to do."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"\n".join(map(MONSTERS[monster], range(LINES))))
    build = ["build", "--target", target, path, "--output", tmp_path, "--quiet"]
    build += BUILDERS[builder]
    if builder == "alignment":
        draft = write_tokenizer(tmp_path / "small-draft", vocabulary_size=340)
        build += ["--draft", draft]
    else:
        build += ["--language", "pl"]
    script = 'ulimit -v 3000000; "$@"; exit $?'  # not exec: see above
    command = ["/bin/sh", "-c", script, "sh", sys.executable, "-c", BUILD, *map(str, build)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    # The process itself, and what allocators keep, come on top: 260 to 361 MB were seen.
    assert int(ended.stdout.split()[-1]) < 500
    if ended.returncode:
        assert ended.returncode == 2
        assert "--memory allows" in ended.stderr
        assert len(ended.stderr.splitlines()) == 1
    else:
        assert [table.suffix for table in tmp_path.rglob("*.tok")] == [".tok"]
