"""`tokalign chat`: talk with a model; every turn computes only what is new."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokalign.cli.answering import ChatModel
from tokalign.cli.command import MAX_TOKENS, Command, Option, Words, rare
from tokalign.cli.dialogue import AnswerSettings, ChatCommand, Dialogue, help_text, read_entry
from tokalign.cli.entries import Entries, open_entries
from tokalign.cli.failures import explained
from tokalign.cli.generation import PromptOptions, as_text, closing_line, legend, load
from tokalign.cli.options import COLOR, GENERATION
from tokalign.cli.output import (
    complain,
    flags,
    note,
    read_text_file,
    safe_json,
    text_or_file,
    to_stderr,
    write,
)
from tokalign.errors import ContextLengthError, StdoutError, TokalignError, UsageError
from tokalign.runtime.options import take
from tokalign.storage import as_path, write_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokalign.runtime.decoder import Decoder
    from tokalign.runtime.mlx.sampling import Sampling

_OPTIONS = (
    Option("-m --max-tokens", "Most tokens of an answer; -1: as many as fit.", MAX_TOKENS, "-1"),
    *GENERATION,
    rare(
        "--calibrate/--no-calibrate",
        "Measure for some seconds what passes cost, where that is not known.",
        default=True,
    ),
    Option(
        "--history/--no-history",
        "Keep what is typed at a terminal, and contexts, for the next time.",
        default=True,
    ),
    COLOR,
    Option("--markdown/--no-markdown", "Render Markdown on a terminal.", default=True),
    Words("[NAME]"),
)


@click.command("chat", cls=Command, params=[*_OPTIONS])
def command(*, calibrate: bool, history: bool, **values: Any) -> int:
    """Talk with the model NAME. Without a terminal, every line of stdin is a message or a command,
    and the exit code is that of the worst error.

    Answers go to stdout and everything else to stderr. /help lists the commands.
    """
    options = take(PromptOptions, values)
    shown = {name: values.pop(name) for name in ("max_tokens", "color", "markdown")}
    entries = open_entries(keeps=history)

    def load_model(name: str) -> tuple[Decoder, Sampling]:
        return load({**values, "target": name}, measures=calibrate)

    keeps = history and entries.is_edited
    chat = ChatSession(load_model, values["target"], options, keeps=keeps, **shown)
    note("/help lists the commands, /who shows who guessed what, Ctrl-D leaves")
    return chat.run(entries)


class ChatSession:
    """A conversation on the command line. load: gives the decoder of a target by its name."""

    def __init__(
        self,
        load: Callable[[str], tuple[Decoder, Sampling]],
        model: str,
        options: PromptOptions,
        *,
        color: bool,
        max_tokens: int | None,
        markdown: bool,
        keeps: bool,
    ) -> None:
        self._load, self._options, self._color, self._keeps = load, options, color, keeps
        self._model: ChatModel | None = None
        sampling = self._use(model)
        self._settings = AnswerSettings(sampling=sampling, max_tokens=max_tokens, markdown=markdown)
        self._dialogue = Dialogue(system=options.system_prompt)
        self._files = set[Path]()  # that this chat saved or loaded, and may replace
        self._begun = ""  # what the next entry begins with
        self._edits = False  # whether a message that comes next takes the place of the last one
        self._retries = 0
        self._last: dict[str, Any] | None = None  # figures of the last answer
        self._worst = 0  # exit code

    def run(self, entries: Entries) -> int:
        """Returns: the exit code; 0 at a terminal, where errors were seen."""
        while True:
            begun, self._begun = self._begun, ""
            interrupted = "Ctrl-D leaves"
            try:
                text = entries.read(begun)
                interrupted = "interrupted"
                if entries.is_edited:
                    write("\n")  # an answer stands apart from its question
                if text is None or not self._answers(text):
                    return 0 if entries.is_edited else self._worst
            except KeyboardInterrupt:
                if not sys.stdin.isatty():
                    raise
                note(interrupted)
                self._edits = self._edits and bool(self._begun)  # of an answer, not of an entry

    def _answers(self, text: str) -> bool:
        """Take an entry, or say what is wrong with it. Returns: False for /exit."""
        edits, self._edits = self._edits, False
        try:
            match read_entry(text):
                case ChatCommand(name="exit"):
                    return False
                case ChatCommand() as entry:
                    self._carry_out(entry)
                case message if message.strip() and edits:
                    self._again(message)
                case message if message.strip():
                    self._dialogue.ask(message)
                    self._retries = 0
                    self._answer()
        except StdoutError:
            raise
        except (TokalignError, OSError, MemoryError, RuntimeError) as error:
            self._worst = max(self._worst, complain(explained(error)))
        return True

    # -- commands ----------------------------------------------------------------------------------

    def _carry_out(self, entry: ChatCommand) -> None:
        match entry.name:
            case "system":
                self._dialogue.system = text_or_file(entry.argument, "the file") or None
                note("system message " + ("set" if self._dialogue.system else "removed"))
            case "clear":
                self._dialogue.clear()
                note("a new conversation")
            case "retry":
                self._again()
            case "edit" if entry.argument:
                self._again(entry.argument)
            case "edit":
                self._begun, self._edits = self._dialogue.question, True
                note("change the message and send it")
            case "undo":
                self._dialogue.undo()
                note(f"taken back; {len(self._dialogue.turns)} messages are left")
            case "model":
                if entry.argument:
                    self._change_model(entry.argument)
                note(f"the model is {self._name}")
            case "save":
                path = as_path(entry.argument)
                if path.suffix != ".json":
                    raise UsageError(f"{entry.argument} does not end in .json; give another name")
                if path.exists() and path.absolute() not in self._files:
                    raise UsageError(f"{entry.argument} is there already; give another name")
                write_file(path, self._dialogue.to_json())
                self._files.add(path.absolute())
                note(f"{len(self._dialogue.messages)} messages -> {entry.argument}")
            case "load":
                path = as_path(entry.argument)
                text = read_text_file(path, str(path), "give a file that /save wrote")
                self._dialogue = Dialogue.from_json(text, name=str(path))
                self._files.add(path.absolute())
                note(f"{len(self._dialogue.messages)} messages from {entry.argument}")
                if self._dialogue.awaits_answer:
                    note("the last one has no answer yet; /retry asks for it")
            case "set":
                if entry.argument:
                    self._settings = self._settings.changed(entry.argument)
                note(self._settings.shown(entry.argument), lines=True)
            case "who":
                self._color = not self._color
                if not flags.quiet:
                    to_stderr(legend() if self._color else "colours off")
            case "stats":
                figures = "there is no answer yet"
                if self._last is not None:
                    kept = "" if self._model is None else f"\n{self._model.kept()}"
                    figures = as_text(self._last) + kept
                note(figures, lines=True)
            case _:
                note(help_text(), lines=True)

    def _again(self, text: str | None = None) -> None:
        """Have the last message, or a text in its place, answered anew. The old answer stays if no
        other one comes."""
        before = list(self._dialogue.turns)
        if text is not None:
            self._dialogue.undo()
            self._dialogue.ask(text)
            self._retries = 0
        else:
            had_answer = not self._dialogue.awaits_answer
            self._dialogue.retry()
            if had_answer and self._settings.sampling.temperature == 0:
                note("greedy decoding gives the same answer again; /set temperature 0.7 varies it")
            self._retries += 1
        try:
            self._answer()
        finally:
            if len(self._dialogue.turns) < len(before):
                self._dialogue.turns[:], self._begun = before, text or ""
                self._edits = text is not None

    def _change_model(self, name: str) -> None:
        """Go on with another model, or with the one in use if the other cannot be loaded."""
        from tokalign.names.registry import resolve_model

        resolve_model(name)  # a wrong name changes nothing
        self._model = None  # there may be no room for two
        own = self._use(name)
        # What is exempt from XTC is the tokenizer's.
        sampling = replace(self._settings.sampling, xtc_exempt=own.xtc_exempt)
        self._settings = replace(self._settings, sampling=sampling)

    def _use(self, name: str) -> Sampling:
        """Load a model to answer. Returns: how its answers are sampled, as the options say."""
        from tokalign.api.assemble import let_go

        let_go()
        decoder, sampling = self._load(name)
        self._model = ChatModel(decoder, self._options, keeps=self._keeps)
        self._name = name
        return sampling

    @property
    def _answering(self) -> ChatModel:
        """The model in use. It is loaded again if another one, or Ctrl-C, took its place."""
        if self._model is None:
            note(f"back to {self._name}")
            self._use(self._name)
        assert self._model is not None
        return self._model

    # -- answers -----------------------------------------------------------------------------------

    def _answer(self) -> None:
        """Have the last message answered. One that gets no answer is opened again."""
        dialogue, left_out = self._dialogue, self._dialogue.left_out
        try:
            summary, rounds = self._answering.answer(
                dialogue, self._settings, retries=self._retries, color=self._color
            )
        except (Exception, KeyboardInterrupt) as error:
            dialogue.left_out = left_out
            self._begun = dialogue.undo()
            if isinstance(error, ContextLengthError):
                raise UsageError(
                    f"this message has {error.prompt_tokens} tokens with the system message, but "
                    f"the model's context holds {error.limit}; say it in fewer words"
                ) from error
            raise
        if summary["text"]:
            dialogue.answer(summary["text"])
        else:
            self._begun = dialogue.undo()
            note("there is no answer, so the message is taken back")
        self._last = summary
        if flags.as_json:
            write(safe_json(json.dumps(summary, ensure_ascii=False)) + "\n")
        else:
            note(closing_line(summary, rounds, max_tokens=self._settings.max_tokens))
