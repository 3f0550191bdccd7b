"""Kept contexts on disk, which outlive the process: found by the longest beginning that they share.

A conversation is a chain of files. Each has the keys and values of the positions that were new when
it was written, and names the file that has those before; conversations that begin alike share
files. Layers that forget (windows, recurrent states) are in each file as a whole, so they serve
only what a file ends with. Example: `1 2 3`, `1 2 3 4 5` and `1 2 9` are three files. They have the
positions 1 to 3; 4 and 5, after 3 of the first file; and 3, after 2 of the first file.

Each owner and model has a folder that only the user may enter. The model's name is a digest of its
weights, arguments and kinds of caches, so any change of these is a miss. Files appear whole, and
have a digest in their names: a file that is cut or changed is deleted, and made again. A thread of
its own writes (`written_later.py`). What was used least recently goes first.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, cast
from weakref import ref

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from numpy.typing import NDArray

from tokalign.errors import is_out_of_memory
from tokalign.names.memory import working_set
from tokalign.runtime.mlx.context_file import (
    BY_POSITION,
    KINDS,
    SUFFIX,
    UNUSABLE,
    ContextFile,
    common_ids,
    digest_of,
    put_together,
    read_arrays,
    read_header,
    taken_apart,
)
from tokalign.runtime.mlx.contexts import NOTHING, Held
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.layers import can_cut_back, cut_back, leaves_of, remember, remembered
from tokalign.runtime.mlx.session import ModelSession
from tokalign.runtime.mlx.weights import content_fingerprint, number_format
from tokalign.runtime.options import CacheOptions
from tokalign.runtime.written_later import LATER
from tokalign.storage import contexts_folder, listed, private_folder
from tokalign.tables.finding import Note

_LEAST_NEW = 16
"""Fewer new ids are read again rather than kept."""

_SHARE_OF_DISK = 10
"""Contexts take this part of what is free, and of what they take, where no bound is given."""


class ContextFiles:
    """The files of one model and one owner.

    owner: any text, such as an API key. most_bytes: of all owners and models together; None for a
    tenth of the disk's free space. draft: of the draft model. note: told why something cannot be
    kept.
    """

    def __init__(
        self,
        model: Any,
        options: CacheOptions,
        *,
        owner: str,
        most_bytes: int | None = None,
        draft: ContextFiles | None = None,
        note: Note,
    ) -> None:
        of = ref(model)  # what is still to be written must not keep a model in memory
        self._new_layers: Callable[[], list[Any]] = lambda: cast(
            "list[Any]", make_prompt_cache(of(), max_kv_size=options.max_kv_size)
        )
        root = contexts_folder()
        private = sha256(owner.encode()).hexdigest()[:20]
        self._folder = root / private / _model_digest(model, options, self._new_layers())
        self._draft, self._note, self._most_bytes = draft, note, most_bytes
        self._lacked_memory = False
        self._nodes: dict[str, ContextFile] = {}
        self._unreadable: set[str] = set()
        self._due: deque[tuple[ContextFile, dict[str, Any], dict[str, str]]] = deque()
        self._lock = Lock()
        try:
            for folder in (root, self._folder.parent, self._folder) if most_bytes != 0 else ():
                private_folder(folder)
        except OSError as error:
            note(f"contexts are not kept on disk: {self._folder}: {error.strerror or error}")
            self._most_bytes = 0

    # -- keeping -----------------------------------------------------------------------------------

    def keep(self, held: Held) -> str:
        """Have a context written soon. What is new is copied at once, and nothing else is waited
        for. Returns: its key; "" if it is not kept."""
        layers, ids = held.layers or [], np.array(held.ids, np.uint32)
        leaves = leaves_of(layers)
        kinds = [type(leaf).__name__ for leaf in leaves]
        known = all(KINDS.get(type(leaf).__name__) is type(leaf) for leaf in leaves)
        if not leaves or not known or self._most_bytes == 0:
            return ""
        self._refresh()
        parent, begin = self._longest(ids, kinds)
        nodes = list(self._nodes.values())
        served = max((node.serves(ids) for node in nodes if self._chain(node)), default=0)
        before = "" if parent is None else parent.key
        if len(ids) - served < _LEAST_NEW:
            return before
        key = sha256(f"{before} {begin}".encode() + ids.tobytes()).hexdigest()[:32]
        if key in self._nodes:
            return key
        arrays, rest = taken_apart(leaves, begin, len(ids))
        arrays["ids"] = mx.array(ids)
        copied = sum(array.nbytes for array in arrays.values())
        if mx.get_active_memory() + copied > working_set():
            if not self._lacked_memory:
                text = f"no memory for a copy of {copied:,} bytes; told once"
                self._note(f"a context is not kept on disk: {text}")
            self._lacked_memory = True
            return ""
        mx.eval(list(arrays.values()))
        draft, theirs = "", list(held.draft)
        if self._draft is not None and theirs and (own := remembered(theirs)):
            draft = self._draft.keep(Held(theirs, own))
        node = ContextFile(key, before, begin, ids, kinds, draft)
        with self._lock:
            self._nodes[key] = node
            self._due.append((node, arrays, node.header | {"rest": json.dumps(rest)}))
        LATER.ask(self.save)
        return key

    def _longest(self, ids: NDArray[np.uint32], kinds: list[str]) -> tuple[ContextFile | None, int]:
        """The node after which these ids go on, and after how many of its ids."""
        best, longest = None, 0
        if any(issubclass(KINDS[kind], BY_POSITION) for kind in kinds):
            for node in list(self._nodes.values()):
                common = min(common_ids(node.ids, ids), len(ids) - 1)
                fits = node.kinds == kinds and node.begin < common and self._chain(node)
                if fits and common > longest:
                    best, longest = node, common
        return best, longest

    def save(self) -> None:
        """Write what is new; see `written_later.Save`."""
        while self._due:
            with self._lock:
                node, arrays, header = self._due.popleft()
            try:
                self._write(node, arrays, header)
            except (OSError, RuntimeError) as error:
                self._nodes.pop(node.key, None)
                self._note(f"a context is not kept on disk: {self._folder}: {error}")

    def _write(self, node: ContextFile, arrays: dict[str, Any], header: dict[str, str]) -> None:
        if not self._folder.is_dir():  # somebody has deleted it, and means it
            self._nodes.pop(node.key, None)
            return
        temporary = self._folder / f".{node.key}.{os.getpid()}{SUFFIX}"
        try:
            self._leave_room(sum(array.nbytes for array in arrays.values()))
            mx.save_safetensors(str(temporary), arrays, header)
            path = self._folder / f"{node.key}-{digest_of(temporary)}{SUFFIX}"
            temporary.replace(path)
            node.path = path
        finally:
            temporary.unlink(missing_ok=True)
        self._touch(node)

    def _leave_room(self, needed: int) -> None:
        """Delete the files that were used least recently. Raises: OSError if that is not enough."""
        files, total = [], 0
        for path in contexts_folder().glob(f"*/*/*{SUFFIX}"):
            with suppress(OSError):
                state = path.stat()
                files.append((state.st_mtime_ns, state.st_size, path))
                total += state.st_size
        most = self._most_bytes
        if most is None:
            most = (shutil.disk_usage(self._folder).free + total) // _SHARE_OF_DISK
        for _, size, path in sorted(files):
            if total + needed <= most:
                return
            path.unlink(missing_ok=True)
            total -= size
        if needed > most:
            raise OSError(f"it has {needed:,} bytes, and {most:,} may be taken")

    # -- finding -----------------------------------------------------------------------------------

    def fetch(self, ids: Sequence[int], *, than: int = 0) -> Held:
        """The longest context on disk that `ids` begins with, if it is longer than `than` ids; at
        least one id is left to read. The draft's cache is cut back as much."""
        if self._most_bytes == 0:
            return NOTHING
        self._refresh()
        wanted = np.array(ids[:-1], np.uint32)
        while (found := self._best(wanted, than)) is not None:
            kept, node = found
            if (layers := self._load(node, kept)) is not None:
                return Held(layers, list(ids[:kept]), self._draft_of(node, kept))
        return NOTHING

    def resume(
        self, ids: Sequence[int], target: ModelSession[Any], draft: ModelSession[Any] | None
    ) -> int:
        """Have sessions go on with a context on disk, if it is longer than what they can go on with
        themselves. Returns: how many of `ids` but the last the target's cache holds then."""
        kept = target.rewind(ids[:-1])
        held = self.fetch(ids, than=kept + _LEAST_NEW)
        if held.layers is None:
            return kept
        target.adopt(held.layers, held.ids)
        if draft is not None and (own := remembered(held.draft)):
            draft.adopt(held.draft, own)
        return len(held.ids)

    def keep_of(self, target: ModelSession[Any], draft: DraftModelSession | None) -> None:
        """Keep what sessions hold between two answers."""
        ids, theirs = list(target.held), [] if draft is None else list(draft.kept)
        target.settle(ids)
        if draft is not None and theirs:
            draft.settle(theirs)
        self.keep(Held(target.layers, ids, draft.layers if draft is not None and theirs else ()))

    def _best(self, ids: NDArray[np.uint32], than: int) -> tuple[int, ContextFile] | None:
        best: tuple[int, ContextFile] | None = None
        for node in list(self._nodes.values()):
            kept = node.serves(ids)
            if kept > max(than, _LEAST_NEW, node.begin) and self._written(node):
                than, best = kept, (kept, node)
        return best

    def _chain(self, node: ContextFile) -> list[ContextFile]:
        """A node and those before it, the last first; nothing where one of them is missing."""
        chain = [node]
        while (last := chain[-1]).parent:
            before = self._nodes.get(last.parent)
            # Begins fall from file to file, so a forged chain ends, too.
            if before is None or not before.begin < last.begin <= common_ids(before.ids, last.ids):
                return []
            chain.append(before)
        return chain

    def _written(self, node: ContextFile) -> list[ContextFile]:
        """The same, and nothing where one of them is not yet a file."""
        chain = self._chain(node)
        return [] if any(node.path is None for node in chain) else chain

    def _load(self, node: ContextFile, kept: int) -> list[Any] | None:
        """The caches after `kept` ids; None where a file is not as it was written."""
        parts: dict[str, list[Any]] = {}
        rest: dict[str, Any] = {}
        end, part = kept, node
        try:
            for part in self._written(node):
                arrays, header = read_arrays(cast("Path", part.path))
                for name, array in arrays.items():
                    if issubclass(KINDS[node.kinds[int(name.partition(".")[0])]], BY_POSITION):
                        if array.shape[-2] != len(part.ids) - part.begin:
                            raise ValueError("it has other positions")
                        parts.setdefault(name, []).insert(0, array[..., : end - part.begin, :])
                    elif part is node:
                        parts[name] = [array]
                if part is node:
                    rest = json.loads(header["rest"])
                end = part.begin
            part = node
            whole = {name: mx.concatenate(arrays, axis=-2) for name, arrays in parts.items()}
            layers = put_together(self._new_layers(), node.kinds, whole | rest, kept)
            mx.eval([leaf.state for leaf in leaves_of(layers)])
        except UNUSABLE as error:
            self._drop(part, error)
            return None
        self._touch(node)
        return layers

    def _draft_of(self, node: ContextFile, kept: int) -> Sequence[Any]:
        """The draft model's caches beside those after `kept` ids of a node."""
        if self._draft is None or not node.draft:
            return ()
        self._draft._refresh()
        theirs = self._draft._nodes.get(node.draft)
        if theirs is None or not self._draft._written(theirs):
            return ()
        layers, back = self._draft._load(theirs, len(theirs.ids)), len(node.ids) - kept
        if layers is None or not can_cut_back(layers, back):
            return ()
        remember(layers, theirs.ids.tolist())
        cut_back(layers, back)
        return layers

    def _refresh(self) -> None:
        """Note files that this process, an earlier one or another one has written, or deleted."""
        paths = {path.name.partition("-")[0]: path for path in listed(self._folder, f"*{SUFFIX}")}
        for key, node in list(self._nodes.items()):
            if node.path is not None and key not in paths:
                del self._nodes[key]
        for key, path in paths.items():
            if key not in self._nodes and path.name not in self._unreadable:
                try:
                    self._nodes[key] = read_header(path)
                except UNUSABLE as error:
                    self._refuse(path, error)

    def _touch(self, node: ContextFile) -> None:
        """Note that a node was used; those before it are always more recent than it."""
        for part in self._written(node):
            with suppress(OSError):
                os.utime(cast("Path", part.path))

    def _drop(self, node: ContextFile, error: Exception) -> None:
        self._nodes.pop(node.key, None)
        if node.path is not None:
            self._refuse(node.path, error)

    def _refuse(self, path: Path, error: Exception) -> None:
        if isinstance(error, OSError) or is_out_of_memory(error):  # the file may be sound
            return
        self._unreadable.add(path.name)
        self._note(f"{path} is not as it was written ({error}); it is deleted, and made again")
        with suppress(OSError):
            path.unlink()


def _model_digest(model: Any, options: CacheOptions, layers: list[Any]) -> str:
    """A name for all that decides what is in a cache, and how."""
    kinds = [(type(c).__name__, *map(vars(c).get, ("max_size", "keep"))) for c in leaves_of(layers)]
    quantized = (options.kv_bits, options.kv_group_size, options.quantized_kv_start)
    name_parts = (
        *(content_fingerprint(model), number_format(model), kinds, options.max_kv_size),
        *(quantized if options.kv_bits is not None else (), repr(getattr(model, "args", None))),
    )
    return sha256(repr(name_parts).encode()).hexdigest()[:20]
