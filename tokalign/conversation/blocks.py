"""An answer's text as blocks of text, thought and tool calls, which grow.

No generated text is lost: what only looks like a call is text. Only the marks of a form, and white
space beside them, are in no block. However the text is cut into parts, the blocks are the same.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from tokalign.conversation.answer_form import MESSAGE_ENDS, TEXT_ONLY, AnswerForm
from tokalign.conversation.incoming import (
    CutOffError,
    Incoming,
    UnreadableError,
    Waiting,
    collected,
)
from tokalign.conversation.json_calls import Calls, Ended, Named, Tools, bare_calls, json_arguments
from tokalign.conversation.tool_calls import read_calls
from tokalign.conversation.tools import call_id

T = TypeVar("T")

Kind = Literal["text", "thought", "call"]

_MOST_FAILURES = 16
"""Texts that begin as a call and are none, each of which is read twice; later marks are text."""


@dataclass(slots=True)
class Block:
    """A part of an answer. text: of a call its arguments, in JSON. id, name: of a call.

    is_broken: whether a call turned out to be none after it had begun. The blocks that follow have
    its text too, so a whole answer leaves it out.
    """

    kind: Kind
    text: str = ""
    id: str = ""
    name: str = ""
    is_broken: bool = False


class Step(NamedTuple):
    """A block begins, grows by a text, or ends. at: the index of the block."""

    what: Literal["begin", "grow", "end"]
    at: int
    block: Block
    text: str = ""


Steps: TypeAlias = Generator[Step | None, None, T]
"""A reader of an answer: it yields steps, and None where it waits for more text."""


_LONGEST_HEADER = 64
"""Characters of a header that may be cut off."""

_SPACES = " \t\r\n"
_BARE = ("{", "[", "[{", "```")
"""What a call in JSON begins with that has no mark."""


class Blocks:
    """Makes blocks out of a text that arrives in parts. tools: of the request. opens_in: the kind
    of block that the prompt leaves open. kind: of the block that the next character belongs to."""

    def __init__(
        self, form: AnswerForm, *, tools: Tools = (), opens_in: Literal["text", "thought"] = "text"
    ) -> None:
        self.form, self.tools = form, tools
        self.blocks: list[Block] = []
        self.kind: Kind = opens_in
        self._source = Incoming()
        self._is_open = False  # whether the last block may grow
        self._after_mark = opens_in == "thought"
        self._space = ""  # comes before what follows, unless that is a mark
        self._cut = True
        self._failures = self._bare_failures = 0  # of calls to be any
        self._steps = self._channels() if form.has_channels else self._marked()

    def feed(self, text: str) -> list[Step]:
        """The steps that another part of the text makes."""
        self._source.add(text)
        return self._read()

    def end(self, *, cut: bool = False) -> Iterator[Step]:
        """The steps at the end of the text. cut: whether there was no room for more of it. A call
        that was cut stays a call; one that the model ended too early is none."""
        self._source.ended, self._cut = True, cut
        yield from self._read()
        if self._space:
            yield from self._grown(self._space)
        yield from self._closed()

    def _read(self) -> list[Step]:
        """The steps that can be made by now; steps in a row by which one block grows are joined."""
        steps: list[Step] = []
        for step in self._steps:
            if step is None:
                break
            last = steps[-1] if steps else None
            if last and last.what == step.what == "grow" and last.at == step.at:
                steps[-1] = step._replace(text=last.text + step.text)
            else:
                steps.append(step)
        return steps

    # -- blocks ------------------------------------------------------------------------------------

    def _begun(self, block: Block) -> Iterator[Step]:
        yield from self._closed()
        self.blocks.append(block)
        self._is_open = True
        yield Step("begin", len(self.blocks) - 1, block)

    def _closed(self) -> Iterator[Step]:
        if self._is_open:
            self._is_open = False
            yield Step("end", len(self.blocks) - 1, self.blocks[-1])

    @property
    def _grows(self) -> bool:
        """Whether the last block is open and of the current kind."""
        return self._is_open and self.blocks[-1].kind == self.kind

    def _grown(self, text: str) -> Iterator[Step]:
        if not self._grows:
            yield from self._begun(Block(self.kind))
        self.blocks[-1].text += text
        yield Step("grow", len(self.blocks) - 1, self.blocks[-1], text)

    def _written(self, text: str) -> Iterator[Step]:
        """A text of the current kind; white space waits until it is known what follows."""
        text = self._space + text
        if self._after_mark:
            text = text.lstrip(_SPACES)
        self._after_mark = self._after_mark and not text
        shown = text if self.form == TEXT_ONLY else text.rstrip(_SPACES)
        self._space = text[len(shown) :]
        if shown:
            yield from self._grown(shown)

    def _turn(self, kind: Kind) -> None:
        """After a mark that has been read comes a block of this kind."""
        self.kind, self._space, self._after_mark = kind, "", True

    # -- marks in a text ---------------------------------------------------------------------------

    def _marked(self) -> Steps[None]:
        """Thoughts and calls between marks. A thought begins where no text has begun; before that,
        a mark that changes nothing is dropped. Where there are tools, a line may also begin
        with a call of one without the mark of the format, or in JSON."""
        form = self.form
        begin, end = form.thought or ("", "")
        called, bare = "", list[str]()
        if form.calls is not None:
            called = form.calls.begin
            marks = (form.calls.opening, *_BARE) if self.tools else ()
            bare = [mark for mark in marks if mark and not called.startswith(mark)]
        while True:
            mark = yield from self._text_until(begin, end, called, *form.dropped, *bare)
            if not mark:
                return
            if mark == called:
                yield from self._call_after(mark)
            elif mark in bare:
                yield from self._bare_call(mark)
            elif mark in form.dropped:
                self._turn("text")
            elif self._grows and (self.kind == "text" or mark == begin) and "|" not in mark:
                yield from self._written(mark)  # nobody writes about <|channel>, as about <think>
            else:
                self._turn("text" if mark == end else "thought")

    def _text_until(self, *marks: str) -> Steps[str]:
        pieces = self._source.pieces(*filter(None, marks))
        while True:
            try:
                piece = next(pieces)
            except StopIteration as stopped:
                mark: str = stopped.value
                return mark
            if piece is None:
                yield None
            else:
                yield from self._written(piece)

    def _call_after(self, mark: str) -> Steps[None]:
        """Calls after the mark that opens them, or the mark as text."""
        form = self.form.calls
        assert form is not None
        if self._failures < _MOST_FAILURES:
            calls = read_calls(form.parser, self._source, form.end, self.tools)
            if (yield from self._calls(calls)):
                return
            self._failures += 1
        yield from self._written(mark)

    def _bare_call(self, mark: str) -> Steps[None]:
        """A call of one of the tools that begins with `mark`, or the mark as text."""
        form, is_json = self.form.calls, mark in _BARE
        assert form is not None
        is_text = self._is_open and self.blocks[-1].kind == "text"
        before = (self.blocks[-1].text if is_text else "\n") + self._space
        begins_line = before.rstrip(" \t").endswith("\n") and self.kind == "text"
        may_be = begins_line or mark.endswith(("|>", "｜>"))  # code has other marks in lines, too
        if may_be and not self._failures and self._bare_failures < _MOST_FAILURES:
            self._source.give_back(mark)
            named = {tool["function"]["name"] for tool in self.tools}
            calls = (
                bare_calls(self._source, named, form.end)
                if is_json
                else read_calls(form.parser, self._source, form.end, self.tools)
            )
            if (yield from self._calls(calls, named)):
                return
            self._bare_failures += mark != "["  # many a line begins so; what is no call ends soon
            yield from self._source.expect(mark)
        yield from self._written(mark)

    def _calls(self, calls: Calls, named: Collection[str] | None = None) -> Steps[bool]:
        """The calls that a reader finds. named: the names that they may have; None for any.
        Returns: False if there are none, so all is text."""
        before, space, after_mark = self.kind, self._space, self._after_mark
        complete, begun = 0, 0
        self._source.keep()
        self.kind = "call"
        try:
            for part in calls:
                if part is None:
                    yield None
                elif isinstance(part, Named):
                    if named is not None and part.name not in named:
                        raise UnreadableError
                    begun += 1
                    yield from self._begun(Block("call", "", part.id or call_id(), part.name))
                elif isinstance(part, Ended):
                    complete += 1
                    yield from self._closed()
                    self._source.keep()
                elif part:
                    yield from self._grown(part)
        except UnreadableError as error:
            was_cut = self._cut and isinstance(error, CutOffError)
            if begun == complete or not was_cut:
                self._source.go_back()
            if begun > complete and not was_cut:
                self.blocks[-1].is_broken = True
                yield from self._closed()
            if not complete and not (begun and was_cut):
                self.kind, self._space, self._after_mark = before, space, after_mark
                return False
        finally:
            self._source.forget()
        self._turn("text")
        return True

    # -- channels ----------------------------------------------------------------------------------

    def _channels(self) -> Steps[None]:
        """Messages, each with a header that says what it is."""
        called = "" if self.form.calls is None else self.form.calls.begin
        mark = "<|start|>"
        while not self._source.is_done:
            header = yield from self._header("assistant" if mark == "<|start|>" else "<|start|>")
            if header is not None:
                is_thought = re.search(r"<\|channel\|>analysis|to=self\b", header)
                self._turn("thought" if is_thought else "text")
                if self._grows:
                    self._space, self._after_mark = "\n\n", False  # between two messages
            recipient = re.search(r"to=functions\.([^\s<]+)", header or "")
            if recipient and self.form.calls is not None:
                yield from self._calls(json_arguments(self._source, Named(recipient[1])))
            while mark := (yield from self._text_until("<|start|>", *MESSAGE_ENDS, called)):
                if mark != called:
                    break
                yield from self._call_after(mark)

    def _header(self, begin: str) -> Waiting[str | None]:
        """The header that comes next; None where a text does."""
        source = self._source
        source.keep()
        try:
            first = yield from source.expect("<|channel|>", "<|message|>", " to=", "to=", begin)
            header = first
            if first != "<|message|>":
                rest, mark = yield from collected(source.pieces("<|message|>", "\n", *MESSAGE_ENDS))
                header += rest
                if mark != "<|message|>" and (mark or len(rest) > _LONGEST_HEADER):
                    raise UnreadableError
        except UnreadableError:
            source.go_back()
            return None
        finally:
            source.forget()
        return header
