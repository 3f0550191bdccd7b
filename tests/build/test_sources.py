"""Whatever a corpus is named by and packed in, the same paragraphs come out, or one clear error."""

from __future__ import annotations

import gzip
import hashlib
import lzma
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tokalign.build.corpus import Corpus
from tokalign.build.sources import CorpusFile, find_sources
from tokalign.build.text_files import LONGEST_LINE
from tokalign.errors import CorpusError

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
fsspec = pytest.importorskip("fsspec")

PARAGRAPHS = ["Zażółć gęślą jaźń.", "Drugi akapit, dłuższy nieco.", "Trzeci."]
TEXT = "\n".join(PARAGRAPHS).encode() + b"\n"


def write_parquet(
    path: Path, texts: Sequence[Any], *, column: str = "text", **options: Any
) -> Path:
    kind = options.pop("type", pyarrow.string())
    table = pyarrow.table({"id": range(len(texts)), column: pyarrow.array(texts, type=kind)})
    parquet.write_table(table, path, **options)
    return path


def lines_of(*names: str, **options: Any) -> list[str]:
    return list(Corpus(find_sources(names), **options).lines())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "zstd", "row_group_size": 1},
        {"type": pyarrow.large_string(), "use_dictionary": False},
        {"type": pyarrow.dictionary(pyarrow.int32(), pyarrow.string())},
    ],
)
def test_a_column_of_parquet_is_read_like_lines(tmp_path: Path, options: dict[str, Any]) -> None:
    path = write_parquet(
        tmp_path / "a.parquet", ["\n".join(PARAGRAPHS[:2]), "", PARAGRAPHS[2]], **options
    )
    corpus = Corpus([path])
    assert list(corpus.lines()) == PARAGRAPHS
    [stamp] = corpus.stamp["files"]
    assert stamp["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (stamp["bytes"], stamp["lines"], stamp["skipped"]) == (path.stat().st_size, 3, 0)
    assert stamp["text_bytes"] == len(TEXT) - 2  # of the line ends, one is inside a text


def test_a_column_that_is_not_there_is_an_error_that_names_the_columns(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", PARAGRAPHS, column="treść")
    with pytest.raises(CorpusError, match=r'no column "text".*: id, treść; .*--field'):
        list(Corpus([path]).lines())
    assert list(Corpus([path], field="treść").lines()) == PARAGRAPHS
    with pytest.raises(CorpusError, match=r'column "id" holds int64, not text'):
        list(Corpus([path], field="id").lines())
    twice = pyarrow.table([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"])
    parquet.write_table(twice, path)
    with pytest.raises(CorpusError, match='several columns are called "text"'):
        list(Corpus([path]).lines())


def test_rows_that_cannot_be_read_are_skipped_and_named(tmp_path: Path) -> None:
    broken = pyarrow.array([b"dobrze", b"za\xc5 dobrze", None, b"a" * (LONGEST_LINE + 1)])
    text = pyarrow.Array.from_buffers(pyarrow.string(), 4, broken.buffers(), 1)
    parquet.write_table(pyarrow.table({"text": text}), tmp_path / "a.parquet")
    problems: list[CorpusError] = []
    corpus = Corpus([tmp_path / "a.parquet"], report=problems.append)
    assert list(corpus.lines()) == ["dobrze"]
    assert corpus.skipped == 3
    assert [problem.line for problem in problems] == [2, 3, 4]
    for problem, reason in zip(problems, ("not UTF-8", "no text in", "longer than"), strict=True):
        assert reason in str(problem)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-9],
        lambda data: TEXT,
        lambda data: data[:40] + data[44:],
        lambda data: data.replace(b"text", b"te\xffx"),  # the name of the column
        lambda data: data.replace(PARAGRAPHS[0].encode(), PARAGRAPHS[0].encode()[::-1]),
    ],
)
def test_parquet_that_cannot_be_read_is_an_error(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = write_parquet(
        tmp_path / "a.parquet",
        [f"{i} {PARAGRAPHS[0]}" for i in range(99)],
        compression="none",
        write_page_checksum=True,
    )
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CorpusError, match="damaged or is none") as caught:
        list(Corpus([path]).lines())
    assert "\n" not in str(caught.value)


def test_xz_is_unpacked_stream_by_stream(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.xz"
    path.write_bytes(lzma.compress(TEXT[:20]) + lzma.compress(TEXT[20:]))
    assert list(Corpus([path]).lines()) == PARAGRAPHS
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(CorpusError, match="archive is damaged"):
        list(Corpus([path]).lines())
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 28}]
    path.write_bytes(lzma.compress(TEXT, filters=filters))
    with pytest.raises(CorpusError, match="window of more than 128 MiB"):
        list(Corpus([path]).lines())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "corpus" / "b").mkdir(parents=True)
    (tmp_path / "corpus" / "a.txt").write_text("Raz.\n")
    (tmp_path / "corpus" / "b" / "a.txt").write_text("Dwa.\n")
    (tmp_path / "corpus" / "b" / "c.jsonl").write_text('{"text": "Trzy."}\n')
    (tmp_path / "corpus" / "b" / "README.md").write_text("Nie.\n")
    (tmp_path / "corpus" / ".hidden.txt").write_text("Nie.\n")
    return tmp_path / "corpus"


@pytest.mark.parametrize("name", ["nowhere.txt", "nowhere", "nowhere.docx"])
def test_a_file_that_is_not_there_is_no_matter_of_its_kind(name: str, tmp_path: Path) -> None:
    [source] = find_sources([str(tmp_path / name)])
    with pytest.raises(CorpusError, match="no such file"):
        source.require()


@pytest.mark.parametrize(
    ("text", "why"), [("Ala ma kota. ", "File name too long"), ("Czy Ala? ", "no file matches")]
)
def test_a_text_in_the_place_of_its_file_is_an_error_about_the_corpus(text: str, why: str) -> None:
    with pytest.raises(CorpusError, match=why):
        Corpus(find_sources([text * 99]))


def test_a_folder_is_all_corpus_files_in_it_by_their_paths(folder: Path) -> None:
    assert lines_of(str(folder)) == ["Raz.", "Dwa.", "Trzy."]
    names = [source.name for source in find_sources([str(folder)])]
    assert names == ["a.txt", "b/a.txt", "b/c.jsonl"]
    assert lines_of(str(folder), weights={"b/a.txt": 0.5}) == ["Raz.", "Dwa.", "Trzy."]
    (folder / "empty").mkdir()
    with pytest.raises(CorpusError, match="no corpus file in this folder"):
        find_sources([str(folder / "empty")])


def test_a_name_that_is_not_utf8_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    source = CorpusFile("z\udcff.txt", str(tmp_path / "z.txt"))
    (tmp_path / "z.txt").write_text("Raz.\n")
    with pytest.raises(CorpusError, match="not UTF-8; rename it"):
        Corpus([source])


@pytest.mark.parametrize("spelled", [".", "./", "../corpus", "./../corpus/./", "b/.."])
def test_a_folder_has_the_same_files_however_it_is_spelled(
    folder: Path, spelled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names go into stamps, and by them hidden files are left out."""
    (folder / ".git").mkdir()
    (folder / ".git" / "notes.txt").write_text("Nie.\n")
    monkeypatch.chdir(folder)
    sources = find_sources([spelled])
    assert [source.name for source in sources] == ["a.txt", "b/a.txt", "b/c.jsonl"]
    assert list(Corpus(sources).lines()) == ["Raz.", "Dwa.", "Trzy."]


def test_a_file_that_is_meant_twice_is_counted_once_and_that_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it is written; under the first of its names."""
    monkeypatch.chdir(folder)
    (folder.parent / "linked").symlink_to(folder)
    one = str(folder / "a.txt")
    for names, counted in (
        ([one, one], ["a.txt"]),
        ([one, "a.txt"], ["a.txt"]),
        ([one, "./b/../a.txt"], ["a.txt"]),
        ([one, str(folder.parent / "linked" / "a.txt")], ["a.txt"]),
        (["b/c.jsonl", "b/*.jsonl", "**/*.jsonl"], ["c.jsonl"]),
        ([".", "b"], ["a.txt", "b/a.txt", "b/c.jsonl"]),
        (["b/c.jsonl", "."], ["c.jsonl", "a.txt", "b/a.txt"]),
    ):
        said: list[str] = []
        assert [source.name for source in find_sources(names, note=said.append)] == counted
        [line] = said
        assert "read once" in line
    find_sources([".", "b"], note=said.append)
    assert said[-1].startswith("b/a.txt and 1 more: ")


def test_links_and_copies_repeat_a_text_on_purpose(folder: Path) -> None:
    said: list[str] = []
    (folder / "b" / "again.txt").symlink_to(folder / "a.txt")
    (folder / "copy").mkdir()
    (folder / "copy" / "a.txt").symlink_to(folder / "a.txt")
    sources = find_sources([str(folder)], note=said.append)
    assert list(Corpus(sources).lines()).count("Raz.") == 3
    assert said == []


def test_standard_input_is_read_once(tmp_path: Path) -> None:
    said, saved = list[str](), iter([tmp_path / "stdin.txt"])
    assert len(find_sources(["-", "-"], stdin=lambda: next(saved), note=said.append)) == 1
    assert len(said) == 1


def test_a_quoted_glob_is_what_it_matches(folder: Path) -> None:
    assert lines_of(f"{folder}/*.txt") == ["Raz."]
    assert lines_of(f"{folder}/**/*.txt") == ["Raz.", "Dwa."]
    assert [source.name for source in find_sources([f"{folder}/*/a.txt"])] == ["b/a.txt"]
    with pytest.raises(CorpusError, match="no file matches"):
        find_sources([f"{folder}/*.parquet"])
    (folder / "[1].txt").write_text("Cztery.\n")  # a name that looks like a pattern
    assert lines_of(f"{folder}/[1].txt") == ["Cztery."]


@pytest.fixture
def remote(tmp_path: Path) -> str:
    """A file system that is not on the disk, as fsspec has it."""
    system = fsspec.filesystem("memory")
    write_parquet(tmp_path / "z.parquet", ["Trzy."])
    for name, data in {
        "data/x.txt": b"Raz.\n",
        "data/y.txt.xz": lzma.compress(b"Dwa.\n"),
        "data/z.parquet": (tmp_path / "z.parquet").read_bytes(),
    }.items():
        system.pipe(f"/{tmp_path.name}/{name}", data)
    return f"memory://{tmp_path.name}"


def test_urls_are_files_folders_and_globs_too(remote: str) -> None:
    assert lines_of(f"{remote}/data/x.txt") == ["Raz."]
    assert lines_of(f"{remote}/data") == ["Raz.", "Dwa.", "Trzy."]
    assert lines_of(f"{remote}/*/*.parquet") == ["Trzy."]
    assert [s.name for s in find_sources([f"{remote}/data"])] == ["x.txt", "y.txt.xz", "z.parquet"]
    corpus = Corpus(find_sources([f"{remote}/data"]))
    done: list[int] = []
    list(corpus.lines(done.append))
    assert sum(done) == corpus.size


class Web:
    """A server that calls an archive packed on the way, as fsspec reads it with aiohttp."""

    def __init__(self, client_kwargs: dict[str, Any] | None = None) -> None:
        self._unpacks = (client_kwargs or {}).get("auto_decompress", True)

    def isdir(self, _: str) -> bool:
        return False

    def unstrip_protocol(self, url: str) -> str:
        return url

    def size(self, _: str) -> None:
        """It is not told for what is packed on the way."""

    def open(self, _: str, mode: str) -> BytesIO:
        return BytesIO(TEXT if self._unpacks else gzip.compress(TEXT))


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.gz?token=a/b.txt", "a.txt"])
def test_an_archive_is_unpacked_once_whatever_its_server_calls_it(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url, **options: (Web(**options), url))
    assert lines_of(f"https://example.org/{name}") == PARAGRAPHS


def test_a_file_of_the_web_has_the_name_that_a_reader_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url, **options: (Web(**options), url))
    folder = "https://example.org/%C5%BC"
    [file] = find_sources([f"{folder}/z%20%C5%BC.txt?a=b%20c"])
    assert file.name == "z ż.txt"
    monkeypatch.setattr(
        Web, "find", lambda _, path: [f"{path}/%C5%BC/z%20%C5%BC.txt"], raising=False
    )
    monkeypatch.setattr(Web, "isdir", lambda *_: True)
    [file] = find_sources([folder])
    assert (file.name, file.location) == ("ż/z ż.txt", f"{folder}/%C5%BC/z%20%C5%BC.txt")


class NotFoundError(Exception):
    """As aiohttp's error of a status."""

    status = 404


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        (
            ConnectionRefusedError(111, "Connection refused"),
            r"read \(Connection refused\); check the",
        ),
        (NotFoundError(), "no such file; give an existing one"),
    ],
)
def test_a_server_that_is_down_is_no_missing_file(
    cause: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsspec says so of both; the cause tells them apart."""

    def size(_: Web, url: str) -> None:
        raise FileNotFoundError(url) from cause

    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url, **options: (Web(**options), url))
    monkeypatch.setattr(Web, "size", size)
    with pytest.raises(CorpusError, match=message):
        Corpus(find_sources(["https://example.org/down.txt"]))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://nowhere/x.txt", "no such file"),
        ("memory://nowhere/*.txt", "no file matches this pattern; check the address"),
        ("nowhere://x.txt", "cannot be read.*Protocol not known"),
    ],
)
def test_a_url_that_leads_nowhere_is_an_error(url: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message) as caught:
        Corpus(find_sources([url]))
    assert "nowhere" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_package_that_a_url_needs_is_named_with_the_command_that_adds_one() -> None:
    missing = "not_there is missing"
    fsspec.register_implementation("absent", "not_there.System", clobber=True, errtxt=missing)
    with pytest.raises(CorpusError, match=f"{missing}; install .* with: .*install PACKAGE"):
        find_sources(["absent://x.txt"])
