"""Which files are read: documents in the folders, and nothing that is hidden or secret."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal
from unicodedata import normalize

import pytest

from tokalign.build.documents.finding import Rules, find_documents
from tokalign.errors import MissingAssetError, UsageError


def write(path: Path, text: str = "Notatka.\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(folder: Path, **rules: object) -> set[str]:
    found, _ = find_documents([folder], Rules(**rules))  # type: ignore[arg-type]
    return {os.path.relpath(file.path, folder) for file in found}


def test_documents_of_all_kinds_are_found_in_all_folders(tmp_path: Path) -> None:
    wanted = {"a.txt", "b.md", "in/c.html", "in/deep/D.PDF"}
    for name in (*wanted, "program.py", "photo.jpg", "in/table.csv"):
        write(tmp_path / name)
    assert names(tmp_path) == wanted


SECRETS = (
    *(".env", ".env.txt", ".ssh/notes.txt", ".git/description.txt", "server.key.txt", "id_rsa.txt"),
    *("node_modules/left/README.md", "project/venv/lib/site-packages/pip/LICENSE.txt"),
    *("Passwords.txt", "deep/er/AWS-Credentials.txt", "client_secret.html", "jelszavak.txt"),
    *("moje hasła.md", "moje hasla.md", "lista haseł.txt", "мої паролі.txt", "hesla k účtům.txt"),
    *("zoznam hesiel.txt", "slaptažodžiai.md"),
)


def test_secrets_and_what_programs_keep_are_left_alone(tmp_path: Path) -> None:
    for name in ("kept.txt", *SECRETS):
        write(tmp_path / name)
    assert names(tmp_path) == {"kept.txt"}


def test_links_are_not_followed_and_pipes_not_opened(tmp_path: Path) -> None:
    write(tmp_path / "outside" / "private.txt")
    folder = write(tmp_path / "inside" / "kept.txt").parent
    (folder / "file.txt").symlink_to(tmp_path / "outside" / "private.txt")
    (folder / "folder").symlink_to(tmp_path / "outside")
    (folder / "around").symlink_to(folder)
    os.mkfifo(folder / "pipe.txt")
    _, skipped = find_documents([folder], Rules())
    assert names(folder) == {"kept.txt"}
    assert skipped.counts["links"] == 3


def test_patterns_and_sizes_are_excluded(tmp_path: Path) -> None:
    for name in ("kept.txt", "Stare/a.txt", "b.draft.md", "large.txt"):
        write(tmp_path / name, "x" * (2000 if name == "large.txt" else 10))
    assert names(tmp_path, exclude=("stare/", "*.DRAFT.md"), largest_file=1000) == {"kept.txt"}


@pytest.mark.parametrize("typed", ["NFC", "NFD"])
def test_a_pattern_fits_a_name_however_their_accents_are_written(
    tmp_path: Path, typed: Literal["NFC", "NFD"]
) -> None:
    write(tmp_path / "kept.txt")
    for form in ("NFC", "NFD"):
        write(tmp_path / normalize(form, "Różne") / f"{form}.txt")
    assert names(tmp_path, exclude=(normalize(typed, "różne/"),)) == {"kept.txt"}


def test_overlapping_folders_give_each_file_once(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.txt")
    found, _ = find_documents([tmp_path, tmp_path / "in", tmp_path], Rules())
    assert len(found) == 1


def test_a_folder_that_is_gone_is_an_error_and_not_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(MissingAssetError, match="is not there; connect its disk"):
        find_documents([tmp_path / "usb"], Rules())
    with pytest.raises(UsageError, match="is not a folder"):
        find_documents([write(tmp_path / "a.txt")], Rules())
