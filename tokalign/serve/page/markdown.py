"""Markdown as a tree for the chat page, in which every piece of text knows its place in the source.

markdown-it-py parses, and Pygments finds the kinds of words in code. Neither gives places, but what
they show stands in the source in the same order, so a cursor finds it. By its place the page
colours a piece, and an answer that grows is parsed again from its last block on.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

Node = dict[str, Any]
"""An element, `{"tag": ..., "children": [...]}` with attributes, or a text, `{"at", "text"}`."""

_KINDS = ("Keyword", "Function", "Class", "Tag", "String", "Number", "Comment")
"""Kinds of words in code that are set apart: parts of the names that Pygments gives them."""

_LONGEST_CODE = 50_000
"""Characters of a block of code whose words are looked at; a longer one is shown as it is."""

_SHOWN_LINKS = ("http://", "https://", "mailto:")
_DESTINATION = re.compile(r"\]\s?(\((?:[^()\n]|\([^()\n]*\))*\)|\[[^\]\n]*\])?")


def blocks(text: str) -> list[Node]:
    """The top-level blocks of a Markdown text, in order, each `{"from", "to", "node"}`.

    Places are in UTF-16 code units, as JavaScript counts. HTML stays text, an image becomes a link
    to it, and a link of another scheme than http and mailto its text.
    """
    return _Reader(text.replace("\r\n", " \n").replace("\r", "\n").replace("\0", "\ufffd")).blocks()


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt
    from mdit_py_plugins.dollarmath import dollarmath_plugin
    from mdit_py_plugins.tasklists import tasklists_plugin
    from mdit_py_plugins.texmath import texmath_plugin

    parser = MarkdownIt("commonmark", {"html": False, "linkify": True})
    parser.use(tasklists_plugin).use(texmath_plugin, "brackets")
    parser.use(dollarmath_plugin, allow_space=False, allow_digits=False, double_inline=True)
    # What was escaped stays a token of its own, which has its spelling.
    return parser.enable(["table", "strikethrough", "linkify"]).disable("text_join")


class _Reader:
    def __init__(self, source: str) -> None:
        self._source, self._at, self._end = source, 0, len(source)
        self._lines = [0, *accumulate(len(line) + 1 for line in source.split("\n"))]
        self._wide = [at for at, character in enumerate(source) if ord(character) > 0xFFFF]

    def blocks(self) -> list[Node]:
        tokens = iter(_parser().parse(self._source))
        found = []
        for token in tokens:
            begin, self._end = self._at, len(self._source)
            node = self._block(token, tokens)
            if token.map is not None:  # a formula in brackets has none
                begin, self._at = (self._lines[line] for line in token.map)
            found.append({"from": self._unit(begin), "to": self._unit(self._at), "node": node})
        return found

    def _unit(self, at: int) -> int:
        return at + bisect_left(self._wide, at)

    # -- blocks ------------------------------------------------------------------------------------

    def _block(self, token: Token, tokens: Iterator[Token]) -> Node:
        """The node of a token, and of all tokens up to the one that closes it."""
        self._enter(token)
        if token.type in ("fence", "code_block"):
            return {"tag": "pre", "language": token.info.strip(), "children": [*self._code(token)]}
        if token.type.startswith("math_block"):
            return {
                "tag": "pre",
                "language": "math",
                "children": [self._text(token.content.strip())],
            }
        node: Node = {"tag": token.tag, "children": []}
        if token.nesting != 1:
            return node
        self._pass(token.info + token.markup if token.type == "list_item_open" else "")
        if "start" in token.attrs:
            node["start"] = token.attrs["start"]
        if align := str(token.attrs.get("style", "")).removeprefix("text-align:"):
            node["align"] = align
        for inner in tokens:
            if inner.nesting == -1:
                break
            if inner.type == "inline":
                self._enter(inner)
                node["children"] += self._inline(iter(inner.children or ()))
            elif inner.hidden:  # a paragraph of a tight list
                node["children"] += self._block(inner, tokens)["children"]
            else:
                node["children"].append(self._block(inner, tokens))
        return node

    def _code(self, token: Token) -> Iterator[Node]:
        if token.type == "fence":  # its first line is none of the code
            self._at = self._source.find("\n", self._at) + 1
        for kind, text in _words(token.content, token.info):
            for line in text.splitlines(keepends=True):
                piece = self._text(line)
                yield {"tag": "span", "kind": kind, "children": [piece]} if kind else piece

    # -- in a line ---------------------------------------------------------------------------------

    def _inline(self, tokens: Iterator[Token]) -> list[Node]:
        """The nodes up to the end, or to the token that closes what is open."""
        nodes: list[Node] = []
        for token in tokens:
            if token.nesting == -1:
                self._close(token)
                break
            if token.nesting == 1:
                self._pass(token.markup if token.markup != "linkify" else "")
                nodes.append(
                    self._element(token.tag, self._inline(tokens), token.attrs.get("href"))
                )
                continue
            match token.type:
                case "softbreak" | "hardbreak":
                    nodes.append(self._text("\n"))
                case "text_special":
                    nodes.append(self._text(token.content, token.markup))
                case "code_inline" | "math_inline" | "math_inline_double":
                    self._pass(token.markup)
                    nodes.append(self._element("code", [self._text(token.content)]))
                    self._pass(token.markup)
                case "image":
                    label = self._inline(iter(token.children or ()))
                    self._pass_destination()
                    nodes.append(self._element("a", label, token.attrs.get("src")))
                case "html_inline":  # of the plugin for tasks, as HTML of the source is text
                    nodes.append({"tag": "input", "checked": "checked=" in token.content})
                    self._pass("]")
                case _ if token.content:
                    nodes.append(self._text(token.content))
        return nodes

    def _element(self, tag: str, children: list[Node], href: object = None) -> Node:
        node: Node = {"tag": tag, "children": children}
        if tag == "a":
            is_shown = str(href).lower().startswith(_SHOWN_LINKS)
            node.update({"href": href} if is_shown else {"tag": "span"})
        return node

    def _close(self, token: Token) -> None:
        if token.type != "link_close":
            self._pass(token.markup)
        elif not token.markup:
            self._pass_destination()

    # -- places ------------------------------------------------------------------------------------

    def _enter(self, token: Token) -> None:
        """Look for what follows in the lines of a block."""
        if token.map is not None:
            begin, end = (self._lines[line] for line in token.map)
            self._at, self._end = max(self._at, begin), end

    def _text(self, text: str, spelling: str = "") -> Node:
        """A piece of text. spelling: how the source has it, if that is something else."""
        at = self._pass(spelling or text)
        return {"at": self._unit(at), "text": text}

    def _pass(self, text: str) -> int:
        """Go past where a text stands next, or stay where it is spelled in another way.

        Returns: where it begins.
        """
        found = self._source.find(text, self._at, self._end)
        begin = self._at if found == -1 else found
        self._at = begin + (0 if found == -1 else len(text))
        return begin

    def _pass_destination(self) -> None:
        if match := _DESTINATION.search(self._source, self._at, self._end):
            self._at = match.end()


def _words(code: str, language: str) -> Iterator[tuple[str, str]]:
    """The words of code, each with its kind as of `_KINDS`, or without one."""
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    name = language.split()[0] if language.strip() else ""
    try:
        lexer = get_lexer_by_name(name, stripnl=False, ensurenl=False)
    except ClassNotFound:
        lexer = None
    if lexer is None or len(code) > _LONGEST_CODE:
        yield "", code
        return
    for word in lexer.get_tokens(code):
        names = str(word[0])
        yield next((kind.lower() for kind in _KINDS if kind in names), ""), word[1]
