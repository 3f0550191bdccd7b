"""A conversation without a terminal, a file or a model: messages, commands, lines and settings."""

from __future__ import annotations

import json
import re
import shlex
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

import click
import msgspec

from tokalign.cli.command import MAX_TOKENS
from tokalign.cli.options import SAMPLING, TEMP
from tokalign.cli.output import paragraph, table
from tokalign.errors import UsageError, is_text

if TYPE_CHECKING:
    from tokalign.runtime.mlx.sampling import Sampling

COMMANDS = {
    "system": ("TEXT", "set the system message, @FILE to that of a file; alone, remove it"),
    "clear": ("", "forget the conversation, except for the system message"),
    "retry": ("", "answer the last message again"),
    "edit": ("[TEXT]", "change the last message and have it answered anew; alone, open it"),
    "undo": ("", "forget the last message and its answer"),
    "model": ("[NAME]", "go on with another model; alone, name this one"),
    "save": ("FILE", "write the conversation as JSON"),
    "load": ("FILE", "go on with a conversation that was saved"),
    "set": ("NAME VALUE", "change a setting, such as temperature 0.7; without a value, show it"),
    "who": ("", "colours on or off: who guessed which token"),
    "stats": ("", "figures of the last answer"),
    "help": ("", "this list"),
    "exit": ("", "leave; so do exit, quit, /bye and Ctrl-D"),
}

_ALIASES = {"?": "help", "bye": "exit", "quit": "exit", "reset": "clear"}
_LEAVING = ("exit", "quit")
"""Whole messages that nobody means for the model."""

_KEYS = '''\
Several lines: Esc Enter, a \\ at the end of a line, or lines between """ and """.
Ctrl-C stops an answer and keeps it; while a prompt is read, it opens the message again.'''


def help_text() -> str:
    """What can be typed, in lines that fit."""
    typed = [(f"/{name} {takes}", about) for name, (takes, about) in COMMANDS.items()]
    typed.append(("//TEXT", "a message that begins with a slash"))
    return f"{table(typed)}\n{paragraph(_KEYS)}"


BLOCK = '"""'
_ROLES = ("user", "assistant")


class _Message(TypedDict):
    role: Literal["system", "user", "assistant"]
    content: str


class ChatCommand(NamedTuple):
    """One of `COMMANDS`, and the rest of the line."""

    name: str
    argument: str


def read_entry(text: str) -> ChatCommand | str:
    """ "/save a.json" is `ChatCommand("save", "a.json")`, and "//save" the message "/save". Raises:
    UsageError for an unknown or wrong command, and for what is not UTF-8."""
    if not is_text(text):
        raise UsageError("what was typed is not UTF-8; give it in UTF-8")
    if text.startswith("//"):
        return text[1:]
    if text.strip() in _LEAVING:
        return ChatCommand("exit", "")
    if not text.startswith("/"):
        return text
    typed, argument = (*re.split(r"\s+", text[1:], maxsplit=1), "")[:2]
    name = _ALIASES.get(typed, typed)
    if name not in COMMANDS:
        raise UsageError(f"there is no command /{name}; /help lists them, and //TEXT sends /TEXT")
    takes, _about = COMMANDS[name]
    argument = argument.strip()
    if argument and not takes:
        raise UsageError(f"/{name} takes nothing after it; leave out {argument!r}")
    if takes == "FILE":
        argument = _unquoted(argument)
        if not argument:
            raise UsageError(f"/{name} needs the name of a file: /{name} FILE")
    return ChatCommand(name, argument)


def _unquoted(path: str) -> str:
    """A path without the quotes or backslashes that a shell, or a file dropped on a terminal, puts
    in; as it is if these do not make it one word, as in Anna's.json."""
    if not path.startswith(("'", '"')) and "\\" not in path:
        return path
    try:
        words = shlex.split(path)
    except ValueError:
        return path
    return words[0] if len(words) == 1 else path


class EntryLines:
    """Puts lines of input together to entries. A line that ends in a backslash is continued; lines
    between two `BLOCK`s are one entry."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._in_block = False

    @property
    def is_open(self) -> bool:
        """Whether an entry has begun and is not complete."""
        return bool(self._lines) or self._in_block

    def push(self, line: str) -> str | None:
        """The entry that this line completes; None if it goes on."""
        if not self.is_open and line.startswith(BLOCK):
            self._in_block, line = True, line.removeprefix(BLOCK)
        if self._in_block:
            self._lines.append(line.removesuffix(BLOCK))
            goes_on = not line.endswith(BLOCK)
        else:
            self._lines.append(line.removesuffix("\\"))
            goes_on = line.endswith("\\")
        return None if goes_on else self.finish()

    def finish(self) -> str | None:
        """The entry so far, as the input ends here; None if there is none."""
        if not self.is_open:
            return None
        lines, self._lines, block, self._in_block = self._lines, [], self._in_block, False
        text = "\n".join(lines)
        return text.strip("\n") if block else text


@dataclass(slots=True)
class Dialogue:
    """The messages of a conversation. left_out: how many of the oldest turns are not read."""

    system: str | None = None
    turns: list[Mapping[str, Any]] = field(default_factory=list)
    left_out: int = 0

    @property
    def _opening(self) -> list[Mapping[str, Any]]:
        return [] if self.system is None else [{"role": "system", "content": self.system}]

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        return [*self._opening, *self.turns]

    @property
    def read(self) -> list[Mapping[str, Any]]:
        """What the model reads of it: the system message and the latest turns."""
        return [*self._opening, *self.turns[self.left_out :]]

    def leave_out(self, fits: Callable[[], bool]) -> None:
        """Leave out as few more of the oldest questions, with their answers, as it takes until what
        is read `fits`; all but the last if nothing does. It is asked about a few numbers of them,
        since a long conversation takes long to encode."""
        before, most = self.left_out, (len(self.turns) - self.left_out - 1) // 2

        def fits_without(questions: int) -> bool:
            self.left_out = before + 2 * questions
            return fits()

        self.left_out = before + 2 * bisect_left(range(most), True, key=fits_without)

    @property
    def awaits_answer(self) -> bool:
        return bool(self.turns) and self.turns[-1]["role"] == "user"

    def ask(self, text: str) -> None:
        """The user says this; after a message without an answer it is the rest of that message."""
        if self.awaits_answer:
            text = f"{self.turns.pop()['content']}\n\n{text}"
        self.turns.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        self.turns.append({"role": "assistant", "content": text})

    @property
    def question(self) -> str:
        """The last message. Raises: UsageError if none is."""
        if not self.turns:
            raise UsageError("there is no message to take back; say something first")
        return str(self.turns[-1 if self.awaits_answer else -2]["content"])

    def undo(self) -> str:
        """Forget the last message and its answer, and return it. Raises: UsageError if none is."""
        text = self.question
        self.retry()
        self.turns.pop()
        self.left_out = min(self.left_out, len(self.turns))
        return text

    def retry(self) -> None:
        """Forget the last answer, if there is one. Raises: UsageError if there is no message."""
        if not self.turns:
            raise UsageError("there is nothing to answer again; say something first")
        if not self.awaits_answer:
            self.turns.pop()

    def clear(self) -> None:
        self.turns.clear()
        self.left_out = 0

    def to_json(self) -> str:
        """The messages as JSON, one per line, in the form of OpenAI's API."""
        lines = [json.dumps(message, ensure_ascii=False) for message in self.messages]
        return "[\n" + ",\n".join(lines) + "\n]\n"

    @classmethod
    def from_json(cls, text: str, *, name: str) -> Dialogue:
        """Read what `to_json` writes. Raises: UsageError, with `name`, for anything else."""
        try:
            messages = msgspec.json.decode(text, type=list[_Message])
            has_system = messages[:1] != [] and messages[0]["role"] == "system"
            turns = messages[has_system:]
            if any(message["role"] != _ROLES[index % 2] for index, message in enumerate(turns)):
                raise ValueError("these are no messages of two people in turn")
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"{name} is no saved conversation; give a file that /save wrote: a JSON list of "
                "messages, each with a role (system, user, assistant) and a content"
            ) from error
        return cls(system=messages[0]["content"] if has_system else None, turns=[*turns])


# -- settings --------------------------------------------------------------------------------------

_SAMPLED = {"temperature": TEMP.type} | {
    option.name: option.type
    for option in SAMPLING
    if option.name in ("top_p", "top_k", "min_p", "seed")
}
_TYPES = {**_SAMPLED, "max_tokens": MAX_TOKENS, "markdown": click.BOOL}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSettings:
    """How answers are sampled, cut off (None: where the context ends) and shown."""

    sampling: Sampling
    max_tokens: int | None
    markdown: bool

    def changed(self, typed: str) -> AnswerSettings:
        """The settings after "temperature 0.7" or "temperature=0.7"; "temperature" changes none.
        Raises: UsageError."""
        name, text = _parted(typed)
        if name not in _TYPES:
            raise UsageError(f"there is no setting {name!r}; there are {', '.join(_TYPES)}")
        if not text:
            return self
        try:
            value = _TYPES[name].convert(text, None, None)
            if name in _SAMPLED:
                return replace(self, sampling=replace(self.sampling, **{name: value}))
        except (click.BadParameter, UsageError) as error:
            raise UsageError(f"{name}: {str(error).strip(' .')}; nothing has changed") from error
        changed: dict[str, Any] = {name: value}
        return replace(self, **changed)

    def shown(self, typed: str = "") -> str:
        """All values, or the one that `typed` names."""
        values: dict[str, object] = {str(name): getattr(self.sampling, name) for name in _SAMPLED}
        values["max_tokens"] = "no limit" if self.max_tokens is None else self.max_tokens
        values["markdown"] = "on" if self.markdown else "off"
        name, _ = _parted(typed)
        return table((known, value) for known, value in values.items() if name in ("", known))


def _parted(typed: str) -> tuple[str, str]:
    name, _, value = typed.replace("=", " ", 1).partition(" ")
    name = name.replace("-", "_")
    return "temperature" if name == "temp" else name, value.strip()
