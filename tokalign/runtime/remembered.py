"""What is kept for drafting: the outputs of a session, and a target's top-k logits.

The logits are a store with a file, kept only where the user asks for it (`--remember`), because the
rows tell of the texts that were read: each has up to three ids of a text, and what the target
expected after them. How far each source could be trusted is kept with them. Each target has a
folder in the cache that only its owner can enter, with one table of kind "logits".

Several processes may remember the same target. Before one writes, it takes over the rows that
others have written since, where its own store has room. Where two used the same slot, or wrote in
the same moment, the rows of the later one stay.
"""

from __future__ import annotations

import shutil
import stat
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tokalign.errors import TokalignError
from tokalign.runtime.draft.context_copy import SEPARATOR
from tokalign.runtime.draft.lookup import LogitStore
from tokalign.runtime.draft.suffix_automaton import SuffixAutomaton
from tokalign.runtime.draft.trust import Mixing
from tokalign.runtime.written_later import LATER
from tokalign.storage import (
    FileState,
    appearing,
    cache_folder,
    contexts_folder,
    file_state,
    private_folder,
    unwritable,
    writing_to,
)
from tokalign.tables.bundle import Bundle, encode_bundle, read_bundle
from tokalign.tables.finding import Note
from tokalign.tables.header import MOST_HEADER_BYTES
from tokalign.tables.logit_rows import KIND, LogitRows
from tokalign.tokenizer.vocabulary import TargetId

FILE = f"remembered.{KIND}.tok"

_TRUST = f"{KIND}.trust"

_MOST_OWNERS, _MOST_IDS = 16, 1 << 15
"""Output stores that are kept, and the ids in each: about 17 MB, and 22 MB of logits."""

_REMEDY = "set TOKALIGN_CACHE to a folder that you may write to, or leave remember out"


class RememberedStore(LogitStore):
    """A logit store with a file in the target's own folder. mixing: what was learned about sources.

    tokenizer: the target's fingerprint. width: of its logits. note: told if the file cannot be
    used.
    """

    def __init__(self, folder: Path, tokenizer: str, width: int, note: Note) -> None:
        super().__init__()
        self.mixing = Mixing()
        self.path = folder / FILE
        self._tokenizer, self._width, self._note = tokenizer, width, note
        self._writing = Lock()
        self._written = 0
        self._seen: FileState | None = None  # the file as it was read or written last
        self._take_over()
        self._written = self.learned

    def save(self) -> None:
        """Write the rows, if there are new ones and nobody has forgotten the target."""
        with self._writing:
            learned = self.learned
            if learned == self._written or not self.path.parent.is_dir():
                return
            self._written = learned
            self._take_over()
            bundle = Bundle(
                kind=KIND,
                fingerprints={"target": self._tokenizer},
                corpus={"files": [{"name": "remembered", "private": True}]},
                parameters={"vocabulary_size": self._width},
                sections={**self.rows.to_sections(), _TRUST: _saved(self.mixing)},
            )
            try:
                # After a power cut a part of the file would be noticed when it is read.
                with appearing(self.path, remedy=_REMEDY, sync=False) as temporary:
                    temporary.write_bytes(encode_bundle(bundle))
                self._seen = file_state(self.path)
            except TokalignError as error:
                self._note(f"{error}; the target's logits are not remembered")

    def _take_over(self) -> None:
        """Take over the rows of the file, if it has changed and where there is room."""
        state, seen = file_state(self.path), self._seen
        self._seen = state
        if state is None or state == seen:
            return
        try:
            is_file = stat.S_ISREG(self.path.lstat().st_mode)
            if not is_file or state[-1] > self.nbytes + MOST_HEADER_BYTES:
                raise ValueError("it is no file of a store's size")
            bundle = read_bundle(self.path)
            bundle.require(target=self._tokenizer, remedy="tokalign tables forget --remembered")
            if bundle.kind != KIND:
                raise ValueError(f"it is a table of kind {bundle.kind}")
            rows = LogitRows.from_bundle(bundle, self._width)
            trust = _restored(bytes(bundle.sections.get(_TRUST, b"")))
        except (TokalignError, OSError, ValueError) as error:
            reason = str(error).partition("; ")[0]
            self._note(f"{self.path} cannot be used: {reason}; the store begins empty")
            return
        self.begin_with(rows)
        if not self.mixing.names:
            for names, learned in trust:
                self.mixing.trust(names).restore(learned)


def open_remembered(
    model: str, tokenizer: str, width: int, *, known: LogitRows | None = None, note: Note
) -> LogitStore:
    """The one store of a target in this process; without a file where its folder cannot be used.
    model: a fingerprint of the target's weights. known: rows of a table, with which it begins."""
    folder = remembered_folder() / model[:20]
    with _opening:
        store: LogitStore | None = _open.get(folder) if folder.is_dir() else None
        if store is None:
            LATER.write_now()  # another store of this process may be about to write its file
            store = LogitStore()
            try:
                private_folder(folder)
            except OSError as error:
                note(f"{unwritable(folder, error, _REMEDY)}; nothing is remembered")
            else:
                store = _open[folder] = RememberedStore(folder, tokenizer, width, note)
                note(f"{len(store):,} rows of earlier texts are remembered, in {folder}")
    if known is not None:
        store.begin_with(known)
    return store


def remembered_folder() -> Path:
    """Where each target has a folder: in the user's cache."""
    return cache_folder() / "remembered"


def forget_remembered() -> list[Path]:
    """Delete what is remembered of every target, and its contexts; returns what is gone. Processes
    that still run keep nothing more of them. Raises: UsageError if one cannot be deleted."""
    parents = [parent for parent in (remembered_folder(), contexts_folder()) if parent.is_dir()]
    # Finder leaves a file in every folder that it has shown.
    folders = sorted(inner for parent in parents for inner in parent.iterdir() if inner.is_dir())
    for folder in folders:
        with writing_to(folder, "delete that folder by hand"):
            shutil.rmtree(folder)
    return folders


_open: dict[Path, RememberedStore] = {}
_opening = Lock()


_Positive = Annotated[float, Meta(gt=0, lt=1e300)]
_LEARNED = msgspec.msgpack.Decoder(
    list[tuple[tuple[str, ...], list[tuple[int, int, int, _Positive, _Positive]]]]
)
"""The names of sources, and for each situation of `Mixer`, which has three numbers, the factor that
was learned and the information it rests on."""


def _saved(mixing: Mixing) -> bytes:
    known = [
        (names, [(*situation, *learned) for situation, *learned in mixing.trust(names).learned()])
        for names in mixing.names
    ]
    return msgspec.msgpack.encode(known)


def _restored(saved: bytes) -> list[tuple[tuple[str, ...], list[Any]]]:
    """The names of sources, each with what `Trust.restore` takes. Raises: ValueError."""
    try:
        known = _LEARNED.decode(saved)
    except msgspec.DecodeError as error:
        raise ValueError("what was learned about sources is not as it is kept") from error
    return [
        (names, [(tuple(entry[:3]), *entry[3:]) for entry in entries]) for names, entries in known
    ]


class OutputStore:
    """The outputs of one session, without prompts; nothing of it leaves the process.

    text: the outputs, the oldest first, with separators between them. It grows in place, and is
    replaced when there are more than `most_ids`, of which the older half is dropped.
    logits: the target's top-k logits, empty at first. Several threads may use a store.
    """

    def __init__(self, *, most_ids: int = _MOST_IDS) -> None:
        self.text = SuffixAutomaton()
        self.logits = LogitStore()
        self._most_ids = most_ids
        self._adding = Lock()

    def add(self, output: Sequence[TargetId]) -> None:
        """Keep one more output, or its end if it is over half the store. Cost: 2-3 µs per id."""
        output = output[-self._most_ids // 2 :]
        if not output:
            return
        with self._adding:
            if len(self.text) + len(output) > self._most_ids:
                half = list(self.text.ids[len(self.text) // 2 :])
                # It begins with the end of an output.
                self.text = SuffixAutomaton(half[half.index(SEPARATOR) + 1 :])
            try:
                self.text.extend(output)
                self.text.append(SEPARATOR)
            except BaseException:  # Ctrl-C within an id leaves links that lead nowhere
                self.text = SuffixAutomaton()
                raise


class OutputStores:
    """The output stores of the `_MOST_OWNERS` that were used last. Several threads may ask."""

    def __init__(self) -> None:
        self._stores: OrderedDict[Hashable, OutputStore] = OrderedDict()
        self._finding = Lock()

    def of(self, owner: Hashable) -> OutputStore:
        """The store of an owner, empty at first."""
        with self._finding:
            if owner not in self._stores:
                self._stores[owner] = OutputStore()
                while len(self._stores) > _MOST_OWNERS:
                    self._stores.popitem(last=False)
            self._stores.move_to_end(owner)
            return self._stores[owner]

    def drop(self, is_dropped: Callable[[Any], bool]) -> None:
        with self._finding:
            for owner in [owner for owner in self._stores if is_dropped(owner)]:
                del self._stores[owner]


_SESSIONS = OutputStores()


def session_store(name: str, fingerprint: str, width: int) -> OutputStore:
    """The store of a session, a tokenizer and targets with logits of this width. Models of one
    tokenizer may pad their vocabularies differently, and so must not share ids."""
    return _SESSIONS.of((name, fingerprint, width))


def clear_session(name: str | None = None) -> None:
    """Drop the outputs of one session, or of all sessions by default."""
    _SESSIONS.drop(lambda owner: name in (None, owner[0]))
