"""Reading HTML back: well-formed, self-contained, and what text it shows."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = {"br", "meta"}


class Document(HTMLParser):
    """A parsed document; fails on a tag that is closed wrongly or left open.

    elements: (tag, attributes) in order. text: what is outside <style>, in order.
    """

    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.pieces: list[str] = []
        self._open: list[str] = []
        self.feed(markup)
        self.close()
        assert not self._open, f"left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1:] == [tag], f"</{tag}> does not close {self._open[-1:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.pieces.append(data)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def of_class(self, name: str) -> list[dict[str, str | None]]:
        """Attributes of the elements of a class."""
        return [a for _, a in self.elements if name in (a.get("class") or "").split()]


def assert_self_contained(markup: str) -> None:
    """No script, and nothing that a browser would fetch."""
    document = Document(markup)
    assert {tag for tag, _ in document.elements} & {"script", "link", "img", "iframe"} == set()
    assert "@import" not in markup
    assert "url(" not in markup
    for _, attributes in document.elements:
        assert not {"src", "href", "onclick", "onload"} & set(attributes)
