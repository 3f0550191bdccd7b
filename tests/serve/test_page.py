"""The chat page: how it is sent, what it is told of every token, and the page in a real browser."""

from __future__ import annotations

import json
import os
import re
import shutil
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from served import LOOP, chat, complete, content, demo_settings, request, serving

from tokalign.serve.server import Server

USER = "Opisz krótko Wisłę."
SOURCES = {"tokalign": {"sources": True}}
LONG = {"max_tokens": 60, **LOOP}
KEY = "klucz"


@pytest.fixture(scope="module")
def locked() -> Iterator[Server]:
    with serving(demo_settings(draft_model=None, api_keys=(KEY,))) as running:
        yield running


def test_it_may_run_its_own_script_and_style_and_ask_its_own_server(server: Server) -> None:
    page = request(server, "GET", "/")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    rules = dict(rule.split(" ", 1) for rule in page.headers["Content-Security-Policy"].split("; "))
    for name in ("script", "style"):
        (own,) = re.findall(f"<{name}>(.*?)</{name}>", page.text, re.DOTALL)
        digest = b64encode(sha256(own.encode()).digest()).decode()
        assert rules[f"{name}-src"] == f"'sha256-{digest}'"
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page.text) == []
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write", page.text)
    assert len(page.text.splitlines()) < 600


def test_it_is_kept_by_browsers_until_it_changes(server: Server) -> None:
    page = request(server, "GET", "/")
    head = request(server, "HEAD", "/")
    assert (head.status, head.text) == (200, "")
    assert head.headers["Content-Length"] == page.headers["Content-Length"]
    tag = page.headers["ETag"]
    again = request(server, "GET", "/", headers={"If-None-Match": f"W/{tag}"})
    assert (again.status, again.text, again.headers["ETag"]) == (304, "", tag)
    assert request(server, "GET", "/", headers={"If-None-Match": '"other"'}).status == 200
    assert request(server, "HEAD", "/nowhere").status == 404


def test_every_token_says_who_proposed_it(server: Server) -> None:
    whole = chat(server, USER, **LONG)
    told = chat(server, USER, **LONG, **SOURCES)
    assert content(told) == content(whole)
    assert "tokalign" not in whole.json["choices"][0]
    tokens = told.json["choices"][0]["tokalign"]["tokens"]
    usage = told.json["usage"]["completion_tokens_details"]
    assert "".join(token["text"] for token in tokens) == content(told)
    assert len(tokens) == told.json["usage"]["completion_tokens"] == 60
    accepted = [token for token in tokens if token["outcome"] == "accepted"]
    assert len(accepted) == usage["accepted_prediction_tokens"] > 0
    assert {token["source"] for token in tokens if token not in accepted} == {"target"}
    assert "target" not in {token["source"] for token in accepted}
    passes = [token["pass"] for token in tokens]
    assert passes == sorted(passes)
    assert set(passes) == set(range(1, max(passes) + 1))
    own = len(tokens) - len(accepted)
    assert own in (max(passes), max(passes) - 1)  # one a pass, but max_tokens may cut the last


@pytest.mark.parametrize("more", [{}, {"num_draft_tokens": 0}, {"logprobs": True}])
def test_a_stream_says_it_with_every_part(server: Server, more: dict[str, object]) -> None:
    events = chat(server, USER, stream=True, **LONG, **SOURCES, **more).events
    for event in events:
        choice = event["choices"][0]
        text = "".join(token["text"] for token in choice["tokalign"]["tokens"])
        assert text == choice["delta"].get("content", "")
        if "logprobs" in more:
            assert len(choice["logprobs"]["content"]) == len(choice["tokalign"]["tokens"])
    for event in chat(server, USER, stream=True).events:
        assert "tokalign" not in event["choices"][0]
    assert complete(server, USER, **SOURCES).json["choices"][0]["tokalign"]["tokens"]


# -- in a browser ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium: the system's, or playwright's own."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    own = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    sandbox = [] if os.getuid() else ["--no-sandbox"]
    with api.sync_playwright() as playwright:
        try:
            running = playwright.chromium.launch(executable_path=next(own, None), args=sandbox)
        except api.Error as error:
            pytest.skip(f"no browser can be started ({str(error).splitlines()[0]})")
        yield running
        running.close()


@contextmanager
def opened(browser: Any, server: Server, **context: Any) -> Iterator[Any]:
    """The page in a profile of its own. At the end nothing has gone wrong in its script."""
    profile = browser.new_context(**context)
    page, wrong = profile.new_page(), []
    page.set_default_timeout(30_000)  # a test machine may be busy
    page.on("pageerror", lambda error: wrong.append(error))
    page.on("console", lambda line: wrong.append(line.text) if "Security" in line.text else None)
    page.goto(server.url)
    yield page
    profile.close()
    assert wrong == []


def ended(page: Any) -> str:
    """The text of the last answer, once it has ended."""
    page.locator("#log[aria-busy=false] .assistant").last.wait_for()
    return str(page.locator(".assistant > :nth-child(2)").last.inner_text())


def without_end(page: Any) -> None:
    """Have no answer end by itself."""

    def longer(route: Any) -> None:
        body = {**json.loads(route.request.post_data), **LOOP}
        route.continue_(post_data=json.dumps(body))

    page.route("**/v1/chat/completions", longer)


def test_a_conversation_by_keyboard_alone(browser: Any, server: Server, tmp_path: Path) -> None:
    with opened(browser, server) as page:
        type_, press = page.keyboard.type, page.keyboard.press
        type_("Opisz krótko")
        press("Shift+Enter")
        type_("Wisłę.")
        press("Enter")
        said = ended(page)
        body = {"messages": [{"role": "user", "content": "Opisz krótko\nWisłę."}]}
        assert said == content(request(server, "POST", "/v1/chat/completions", body))
        type_("Opisz krótko Wisłę.")  # the focus stayed where one writes
        press("Enter")
        ended(page)
        colours = page.locator(".coloured .t.draft, .coloured .t.copy, .coloured .t.logits")
        assert colours.count() > 0
        ground = colours.first.evaluate("one => getComputedStyle(one).backgroundColor")
        assert ground != "rgba(0, 0, 0, 0)"
        colours.first.hover()
        assert "guessed by" in page.locator(".note").filter(has_text="pass").inner_text()
        assert re.search(
            r"\d+ tokens in \d+ pass(es)? · [\d.]+ tokens per pass", page.inner_text("#log")
        )

        page.reload()  # the conversation is still there, under the same address
        assert page.locator("article").count() == 4
        assert page.locator(".assistant > :nth-child(2)").first.inner_text() == said

        page.get_by_label("Name of the conversation").fill("Rzeki")
        press("Enter")
        assert page.locator("#list").inner_text() == "Rzeki"
        with page.expect_download() as download:
            page.get_by_role("button", name="Export").press("Enter")
        saved = json.loads(Path(download.value.path()).read_text("utf-8"))
        assert download.value.suggested_filename == "Rzeki.json"
        assert [one["role"] for one in saved["messages"]] == ["user", "assistant"] * 2
        page.get_by_role("button", name="New conversation").press("Enter")
        assert page.locator("article").count() == 0
        page.get_by_role("button", name="Rzeki").press("Enter")
        page.get_by_role("button", name="Delete").press("Enter")
        press("Tab")
        press("Enter")
        page.locator("#hello").wait_for()
        assert page.locator("#list").inner_text() == ""
        page.reload()
        assert page.locator("article").count() == 0


def test_an_answer_is_stopped_and_made_again(browser: Any, server: Server) -> None:
    with opened(browser, server) as page:
        without_end(page)
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Temperature").fill("1")
        page.get_by_label("Longest answer").fill("1500")
        page.get_by_label("Seed").fill("7")
        page.keyboard.press("Enter")
        page.get_by_label("Message").fill(USER)
        page.keyboard.press("Enter")
        page.locator(".coloured .t >> nth=25").wait_for()
        page.keyboard.press("Escape")
        part = ended(page)
        assert "stopped" in page.locator(".measured").inner_text()
        assert "tokens/s" in page.locator(".measured").inner_text()
        assert page.evaluate("document.activeElement.id") == "text"
        page.get_by_role("button", name="Regenerate").click()
        page.locator(".coloured .t >> nth=10").wait_for()
        page.get_by_role("button", name="Stop").click()
        again = ended(page)
        shorter, longer = sorted((part, again), key=len)
        assert longer.startswith(shorter.rstrip("▍\ufffd"))  # the seed is the same
        assert page.locator("article").count() == 2


def test_a_key_is_asked_for_and_kept_until_the_tab_is_closed(browser: Any, locked: Server) -> None:
    with opened(browser, locked) as page:
        asked = page.get_by_role("dialog", name="API key")
        asked.wait_for()
        page.keyboard.type("falsch")
        page.keyboard.press("Enter")
        asked.get_by_text("not accepted").wait_for()
        page.keyboard.type(KEY)
        page.keyboard.press("Enter")
        asked.wait_for(state="hidden")
        page.get_by_label("Message").fill(USER)
        page.keyboard.press("Enter")
        assert ended(page)
        assert KEY not in page.evaluate("JSON.stringify({...localStorage})")
        page.reload()
        assert not asked.is_visible()
        page.evaluate("sessionStorage.clear()")
        page.get_by_role("button", name="Regenerate").click()
        asked.wait_for()
        page.keyboard.press("Escape")
        page.get_by_role("alert").get_by_text("API key").wait_for()


MARKUP = """# Rzeki\n\n1. **Wisła**, *długa*\n   - `a < b`\n2. Odra

```html
<img src=x onerror=alert(1)> a very long line of code that is much wider than any telephone is
```
> <b>tak</b>"""


def test_a_phone_in_the_dark_shows_text_that_cannot_do_harm(browser: Any, server: Server) -> None:
    phone = {"width": 360, "height": 640}
    with opened(browser, server, viewport=phone, color_scheme="dark", has_touch=True) as page:
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == "rgb(20, 24, 29)"
        kept = {"role": "assistant", "content": MARKUP, "by": {}, "count": 0, "passes": 0}
        chat = {"id": "1", "title": "a" * 90, "changed": 1, "messages": [kept]}
        page.evaluate("chat => localStorage.setItem('tokalign.chat.1', JSON.stringify(chat))", chat)
        page.goto("about:blank")
        page.goto(f"{server.url}/#1")
        text = page.locator(".text")
        assert text.locator("ol > li strong").inner_text() == "Wisła"
        assert text.locator("li li code").inner_text() == "a < b"
        assert text.locator("pre").inner_text().startswith("<img src=x")
        assert text.locator("blockquote").inner_text() == "<b>tak</b>"
        assert text.locator("img, b").count() == 0
        wide = "[...document.querySelectorAll('html, #scroll')].map(e => e.scrollWidth)"
        assert page.evaluate(wide) == [360, 360]
        assert not page.locator("nav").is_visible()
        page.get_by_role("button", name="Conversations and settings").tap()
        assert page.get_by_role("button", name="Settings…").is_visible()
        page.keyboard.press("Escape")
        assert not page.locator("nav").is_visible()
