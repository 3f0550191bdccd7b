"""Installed packs: the one of a prompt's language is compiled if the model has no dictionary of it
but one of a few pages (`Header.is_of_sample`) or of an older pack.

The language is the one that is named, else that of the prompt, else that of the user's locale;
`code` joins it, where the prompt has code or names a language or format of it, and `chat`, which
has what models write in English and code, joins these.
A pack is compiled by a process of its own, which does not share Python's lock with decoding, and
can be started from a program that does not guard its main module.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import sys
from _thread import interrupt_main
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import groupby, islice
from math import log
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from threading import Thread

from tokalign.build.compile_pack import compile_pack
from tokalign.build.corpus import Progress
from tokalign.build.counting.word_shards import words_of
from tokalign.child_processes import end_once
from tokalign.errors import TokalignError, in_one_line, shown_path
from tokalign.locks import making
from tokalign.storage import require_writable, write_file
from tokalign.tables.bundle import encode_bundle, read_bundle
from tokalign.tables.dictionary import CHAT, CODE, Dictionaries
from tokalign.tables.finding import Note, compiled_folder, find_packs, no_note, packs_to_compile
from tokalign.tables.pack import word_probabilities
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_MOST_IDS, _MOST_WORDS = 4096, 200
_UNKNOWN = 1e-8  # the probability of a word that a pack does not know
_FEWEST_KNOWN = 0.45  # of the words of a text; of one in another language far fewer are known
_CODE_NAMES = re.compile(
    r"```|\b(?:python|(?:java|type)script|java|html|css|sql|json|ya?ml|bash|regex|golang|c\+\+"
    r"|c#|php|kotlin|react|django|docker|api)\w{0,3}(?!\w)",
    re.IGNORECASE,
)
_REMEDY = "set TOKALIGN_TABLES to a folder that you may write to"
_ALONE = "another process cannot have the tokenizer, whose class has to be in a module"
_FEWEST_WORDS = 2  # of a message in a chat
_ROLE = re.compile(r"\A\s*(?:user|assistant|system|model)\n")  # before it, in many templates


class InstalledPacks:
    """The dictionaries of a tokenizer, to which prompts add those of their languages' packs, if not
    $TOKALIGN_PACKS=named. opened: opens those that there are. waits: for packs to be compiled."""

    def __init__(
        self,
        target: Tokenizer[TargetId],
        opened: Callable[[], Dictionaries | None],
        *,
        model_folder: Path | None = None,
        waits: bool = True,
        note: Note = no_note,
    ) -> None:
        self._target, self._opened, self._waits, self._note = target, opened, waits, note
        self._packs = find_packs(model_folder=model_folder, note=note)
        self._to_compile = packs_to_compile(target.fingerprint, self._packs, model_folder)
        self._dictionary: Dictionaries | None = None
        self._folder = compiled_folder(target.fingerprint)

    def compile(self, languages: Sequence[str]) -> None:
        for language, path in self._take(languages).items():
            self._compile(language, path)

    def open(self) -> Dictionaries | None:
        self._dictionary = self._opened()
        return self._dictionary

    @property
    def can_grow(self) -> bool:
        return bool(self._to_compile) and os.environ.get("TOKALIGN_PACKS") != "named"

    def for_prompt(self, prompt: Sequence[TargetId]) -> Dictionaries | None:
        if self.can_grow:
            languages = [language_of_prompt(self._target, prompt, self._packs) or _user_language()]
            if is_about_code(self._target, prompt):
                languages.append(CODE)
            if not {"en", CODE}.isdisjoint(languages):
                languages.append(CHAT)
            wanted = self._take(languages)
            if wanted and self._waits:
                self._add(wanted)
            elif wanted:
                Thread(target=self._add, args=(wanted,), daemon=True).start()
        return self._dictionary

    def _take(self, languages: Sequence[str]) -> dict[str, Path]:
        """The packs still to be compiled for these languages; none where nothing can be kept."""
        left = self._to_compile
        wanted = {language: left.pop(language) for language in languages if language in left}
        try:
            if wanted:
                require_writable(self._folder / "dictionary", parents=True, remedy=_REMEDY)
        except TokalignError as error:
            self._note(f"no dictionary is compiled: {error}")
            left.clear()
            return {}
        return wanted

    def _add(self, packs: Mapping[str, Path]) -> None:
        for language, path in packs.items():
            self._compile(language, path)
            self.open()

    def _compile(self, language: str, path: Path) -> None:
        try:
            pickled = pickle.dumps(self._target)
        except Exception as error:  # programs raise what they like
            self._note(f"{shown_path(path)} is not used: {_ALONE} ({in_one_line(error)})")
            return
        self._note(
            f"{shown_path(path)} -> compiled for this tokenizer now, once; about a minute; "
            "Ctrl-C stops that"
        )
        made = self._folder / f"{language}.dictionary.tok"
        # The program's own path of modules may not be in its environment.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-P", "-m", __name__, str(path), str(made)]
        with Popen(command, env=environment, stdin=PIPE, stdout=PIPE, stderr=STDOUT) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):
                process.stdin.write(pickled)
                process.stdin.flush()
            for line in process.stdout:
                self._note(f"  {line.decode(errors='replace').rstrip()}")
        if process.returncode:
            self._note(f"{shown_path(path)} is not used")


def language_of_prompt(
    target: Tokenizer[TargetId], prompt: Sequence[TargetId], packs: Mapping[str, Path]
) -> str | None:
    """The language of the last text between special tokens that has one: a user's message."""
    parts = groupby(prompt[-_MOST_IDS:], target.vocabulary.specials.__contains__)
    texts = [target.decode([*ids]) for is_special, ids in parts if not is_special]
    spoken = [text for text in reversed(texts) if _words(text)]
    fewest = _FEWEST_WORDS if len(spoken) > 1 else 1
    # A name of a role would make a short message English.
    messages = (_words(_ROLE.sub("", text)) for text in spoken)
    languages = (_language(words, packs) for words in messages if len(words) >= fewest)
    return next(filter(None, languages), None)


def is_about_code(target: Tokenizer[TargetId], prompt: Sequence[TargetId]) -> bool:
    """Whether a prompt has a fence of code, or names a language or format of it."""
    return _CODE_NAMES.search(target.decode(prompt[-_MOST_IDS:])) is not None


def _words(text: str) -> list[str]:
    words = (word.strip() for word in words_of(text.splitlines()))
    return list(islice((word for word in words if any(map(str.isalpha, word))), _MOST_WORDS))


def _language(words: Sequence[str], packs: Mapping[str, Path]) -> str | None:
    """The language whose pack makes these words most probable, if a pack knows enough of them."""
    scores: dict[str, float] = {}
    for language, path in packs.items():
        if language in (CODE, CHAT):
            continue
        probability = _probabilities(path)
        known = [sum(probability.get(form, 0) for form in _spellings(word)) for word in words]
        if sum(map(bool, known)) >= _FEWEST_KNOWN * len(words):
            scores[language] = sum(log(share or _UNKNOWN) for share in known)
    return max(scores, key=scores.__getitem__, default=None)


@cache
def _probabilities(path: Path) -> Mapping[str, float]:
    """Those of the most frequent words of a pack; none where it cannot be read."""
    try:
        return word_probabilities(read_bundle(path))
    except TokalignError:
        return {}  # compiling it says why


def _spellings(word: str) -> set[str]:
    return {before + form for before in " \n" for form in (word, word.lower(), word.capitalize())}


def _user_language() -> str:
    """By the locale of the environment: pl for pl_PL.UTF-8."""
    names = (os.environ.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))
    return next((name for name in names if name), "").partition(".")[0].partition("_")[0]


def _compile_here(pack: Path, path: Path) -> None:
    """Compile a pack for the tokenizer that is pickled on stdin, with the stages on stdout, unless
    another process is compiling it, which is waited for.

    It ends when stdin does: the one who waits for it was interrupted, or is gone.
    """
    for both in (signal.SIGINT, signal.SIGHUP):  # which a terminal sends to both
        signal.signal(both, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end_once)
    try:
        target = pickle.load(sys.stdin.buffer)
    except Exception as error:
        sys.exit(f"{_ALONE} ({in_one_line(error)})")
    Thread(target=_end_with_stdin, daemon=True).start()

    @contextmanager
    def printed(_total: int, label: str, _unit: str = "") -> Iterator[Progress]:
        print(label, flush=True)
        yield lambda _: None

    try:
        with making(path, "compiling", waits=partial(print, flush=True)):
            bundle = read_bundle(pack)
            if packs_to_compile(target.fingerprint, {bundle.language: pack}):
                compiled = encode_bundle(compile_pack(target, bundle, stage=printed))
                write_file(path, compiled, parents=True, remedy=_REMEDY)
    except TokalignError as error:
        print(error)
        sys.exit(1)


def _end_with_stdin() -> None:
    while os.read(sys.stdin.fileno(), 1):  # a buffer would be locked when the interpreter ends
        pass
    interrupt_main(signal.SIGTERM)


if __name__ == "__main__":
    _compile_here(*map(Path, sys.argv[1:]))
