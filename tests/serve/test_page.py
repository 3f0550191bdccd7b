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
from threading import Event
from typing import Any

import pytest
from processes import HUNG, wait_for
from served import LOOP, chat, complete, content, demo_settings, request, serving

from tokalign.runtime.mlx.cache import ModelCache
from tokalign.serve import page as page_module
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
    for script in Path(page_module.__file__).parent.glob("*.js"):
        assert len(script.read_text("utf-8").splitlines()) < 250


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


def test_a_model_says_how_long_its_context_is_and_what_drafts(
    server: Server, alone: Server
) -> None:
    (model,) = request(server, "GET", "/v1/models").json["data"]
    assert model["context_length"] == model["max_model_len"] > 1000
    assert {"draft", "copy", "logits"} <= set(model["tokalign"]["sources"])
    (model,) = request(alone, "GET", "/v1/models").json["data"]
    assert "draft" not in model["tokalign"]["sources"]


def test_markdown_is_parsed_for_whoever_has_the_key(server: Server, locked: Server) -> None:
    reply = request(server, "POST", "/page/markdown", "**Łódź**".encode())
    (block,) = reply.json["blocks"]
    text = {"tag": "strong", "children": [{"at": 2, "text": "Łódź"}]}
    assert block == {"from": 0, "to": 9, "node": {"tag": "p", "children": [text]}}
    assert request(locked, "POST", "/page/markdown", b"x").status == 401
    assert request(server, "POST", "/page/markdown", b"x" * ((1 << 18) + 1)).status == 413


@pytest.fixture(scope="module")
def in_steps() -> Iterator[Server]:
    """Reads prompts in small steps."""
    with serving(demo_settings(draft_model=None, prefill_step_size=4)) as running:
        yield running


LONG_TEXT = "Zażółć gęślą jaźń, a potem idź do domu. " * 40


def test_streams_tell_how_far_a_prompt_is_read(in_steps: Server) -> None:
    def told(text: str) -> list[int]:
        more = {"stream": True, "max_tokens": 3, "return_progress": True}
        events = chat(in_steps, text, **more).events
        steps = [event["prompt_progress"] for event in events if "prompt_progress" in event]
        assert all(step["processed"] <= step["total"] for step in steps)
        assert "".join(e["choices"][0]["delta"].get("content", "") for e in events if e["choices"])
        return [step["processed"] for step in steps]

    processed = told(LONG_TEXT)
    assert len(processed) > 20
    assert processed == sorted(processed)
    assert told(LONG_TEXT + "I co?")[0] > 300  # the rest is in the cache
    given = {"max_tokens": 3, "stream": True}
    asked = {"messages": [{"role": "user", "content": f"A {LONG_TEXT}"}], **given}
    reply = request(in_steps, "POST", "/v1/messages", asked)
    assert sum("prompt_progress" in e for e in reply.events if e["type"] == "ping") > 20
    more = {"input": f"B {LONG_TEXT}", "stream": True, "max_output_tokens": 3}
    assert request(in_steps, "POST", "/v1/responses", more).text.count('"prompt_progress"') > 20
    whole = chat(in_steps, f"C {LONG_TEXT}", **given)
    assert whole.text.count(": keepalive ") > 20
    assert "prompt_progress" not in whole.text


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
    page.set_default_timeout(100_000)  # a test machine may be busy
    page.on("pageerror", lambda error: wrong.append(error))
    page.on("console", lambda line: wrong.append(line.text) if "Security" in line.text else None)
    page.goto(server.url)
    yield page
    profile.close()
    assert wrong == []


TEXT = ".assistant .text"


def ended(page: Any) -> str:
    """The text of the last answer, once it has ended and its Markdown is drawn."""
    page.locator("#log[aria-busy=false] .assistant").last.wait_for()
    page.locator(f"{TEXT} > *").last.wait_for()
    page.wait_for_timeout(300)
    return str(page.locator(TEXT).last.inner_text())


def said(page: Any) -> list[str]:
    """The contents of the messages that are shown, as they are kept."""
    found: list[str] = page.evaluate("path(current).map(message => message.content)")
    return found


def ask(page: Any, text: str) -> str:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    return ended(page)


def without_end(page: Any) -> None:
    """Have no answer end by itself."""

    def longer(route: Any) -> None:
        body = {**json.loads(route.request.post_data), **LOOP}
        route.continue_(post_data=json.dumps(body))

    page.route("**/v1/chat/completions", longer)


def settings(page: Any, **fields: str) -> None:
    page.get_by_role("button", name="Settings").click()
    for name, value in fields.items():
        page.locator(f"#settings [name={name}]").fill(value)
    page.keyboard.press("Enter")


def test_a_conversation_by_keyboard_alone(browser: Any, server: Server) -> None:
    with opened(browser, server) as page:
        type_, press = page.keyboard.type, page.keyboard.press
        type_("Opisz krótko")
        press("Shift+Enter")
        type_("Wisłę.")
        press("Enter")
        ended(page)
        body = {"messages": [{"role": "user", "content": "Opisz krótko\nWisłę."}]}
        answer = content(request(server, "POST", "/v1/chat/completions", body))
        assert said(page)[1] == answer
        type_("Opisz krótko Wisłę.")  # the focus stayed where one writes
        press("Enter")
        ended(page)
        colours = page.locator(".coloured .text :is(.draft, .copy, .logits, .session)")
        assert colours.count() > 0
        ground = "one => getComputedStyle(one).backgroundColor"
        assert colours.first.evaluate(ground) != "rgba(0, 0, 0, 0)"
        colours.first.hover()
        assert "guessed by" in page.locator(".note").filter(has_text="pass").inner_text()
        assert re.search(
            r"\d+ tokens in \d+ pass(es)? · [\d.]+ tokens per pass", page.inner_text("#log")
        )
        page.get_by_role("button", name="Colours").press("Enter")
        plain = page.locator(".text .t").first
        assert plain.evaluate(ground) == "rgba(0, 0, 0, 0)"

        before = said(page)
        page.reload()  # the conversation is still there, under the same address
        assert said(page) == before
        page.get_by_label("Name of the conversation").fill("Rzeki")
        press("Enter")
        assert page.locator("#list").inner_text() == "Rzeki"
        page.get_by_role("button", name="New conversation").press("Enter")
        assert page.locator("article").count() == 0
        page.get_by_role("searchbox").fill("wisłę")
        assert page.locator("#list").inner_text() == "Rzeki"
        page.get_by_role("searchbox").fill("Odrę")
        assert page.locator("#list").inner_text() == ""


NAME = "(one => one.getAttribute('aria-label') ?? one.labels?.[0]?.innerText ?? one.innerText)"


def tab_to(page: Any, name: str, *, back: bool = False) -> None:
    """Press Tab until what has the focus has this name, or begins with it."""
    for _ in range(60):
        page.keyboard.press("Shift+Tab" if back else "Tab")
        if page.evaluate(f"{NAME}(document.activeElement)").startswith(name):
            return
    raise AssertionError(f"Tab never comes to {name}")


def test_everything_that_can_be_done_is_done_by_keyboard_alone(
    browser: Any, server: Server, tmp_path: Path
) -> None:
    with opened(browser, server, permissions=["clipboard-read", "clipboard-write"]) as page:
        type_, press = page.keyboard.type, page.keyboard.press
        without_end(page)
        tab_to(page, "Settings…")
        press("Enter")
        tab_to(page, "Temperature")
        type_("1")
        tab_to(page, "Longest answer")
        type_("20")
        press("Enter")
        tab_to(page, "Message")
        type_(USER)
        press("Enter")
        ended(page)
        first = said(page)
        tab_to(page, "Regenerate", back=True)
        press("Enter")
        page.get_by_text("2 / 2").wait_for()
        ended(page)
        assert page.evaluate("document.activeElement.id") == "text"
        tab_to(page, "Version before", back=True)
        press("Enter")
        assert said(page) == first
        # The button is disabled now. The focus stays in the answer.
        assert page.evaluate("document.activeElement.closest('article') !== null")
        tab_to(page, "Words: ", back=True)
        press("ArrowRight")
        press("ArrowRight")
        words = page.locator(f"{TEXT} [data-note]")
        assert "chosen" in words.nth(1).get_attribute("class")
        assert re.search(
            "(guessed by|target itself).*, pass", page.locator(".note").last.inner_text()
        )
        press("ArrowLeft")
        assert "chosen" in words.nth(0).get_attribute("class")
        tab_to(page, "Copy")
        press("Enter")
        page.get_by_text("Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == first[1]
        tab_to(page, "Continue")
        press("Enter")
        ended(page)
        assert said(page)[1].startswith(first[1])
        tab_to(page, "Edit", back=True)
        press("Enter")
        press("Escape")
        tab_to(page, "Edit", back=True)
        press("Enter")
        press("ControlOrMeta+A")
        type_("Opisz krótko Odrę.")
        press("Enter")
        page.locator(".user").get_by_text("2 / 2").wait_for()
        ended(page)
        assert said(page)[0] == "Opisz krótko Odrę."
        tab_to(page, "Colours", back=True)
        press("Space")
        assert page.locator("#log.coloured").count() == 0
        tab_to(page, "Name of the conversation", back=True)
        press("ControlOrMeta+A")
        type_("Odra")
        press("Enter")
        assert page.evaluate("document.activeElement.id") == "text"
        tab_to(page, "Export", back=True)
        with page.expect_download() as download:
            press("Enter")
        download.value.save_as(tmp_path / "a.json")
        tab_to(page, "Import", back=True)
        page.evaluate("$('file').addEventListener('click', () => { window.chooses = true; })")
        press("Enter")
        assert page.evaluate("window.chooses")
        page.locator("#file").set_input_files(tmp_path / "a.json")
        wait_for(lambda: page.locator("#list li").count() == 2)
        tab_to(page, "Search", back=True)
        type_("Odra")
        tab_to(page, "Odra")
        press("Enter")
        assert page.evaluate("document.activeElement.id") == "text"
        tab_to(page, "Delete", back=True)
        press("Enter")
        tab_to(page, "Delete")
        press("Enter")
        wait_for(lambda: page.locator("#list li").count() == 1)
        page.route("**/v1/chat/completions", lambda route: route.abort())
        tab_to(page, "Message")
        type_("A dalej?")
        press("Enter")
        page.get_by_role("alert").wait_for()
        page.unroute("**/v1/chat/completions")
        tab_to(page, "Try again", back=True)
        press("Enter")
        ended(page)
        assert page.get_by_role("alert").count() == 0


def test_tab_comes_to_all_that_can_be_clicked(browser: Any, server: Server) -> None:
    """Also to tables and code that are wider than the page, and to the text that scrolls."""
    with opened(browser, server) as page:
        page.locator("#model option").wait_for(state="attached")
        keep(page, server, MARKUP, EVERY)
        page.evaluate("""() => {
          const kinds = "button, input, select, textarea, a[href], summary, [tabindex='0']";
          window.wanted = new Set([...document.querySelectorAll(kinds)].filter(
            one => !one.disabled && one.checkVisibility() && one.type !== "checkbox"));
          window.seen = new Set();
          document.addEventListener("focusin", event => seen.add(event.target));
        }""")
        for _ in range(page.evaluate("wanted.size") + 5):
            page.keyboard.press("Tab")
        missed = "[...wanted].filter(one => !seen.has(one)).map(one => one.outerHTML)"
        assert page.evaluate(missed) == []
        assert page.evaluate("document.querySelector('.wide') && wanted.size") > 15


def test_the_first_view_names_only_sources_that_are_there(
    browser: Any, server: Server, alone: Server
) -> None:
    for running, has_draft in ((server, True), (alone, False)):
        with opened(browser, running) as page:
            page.locator("#model option").wait_for(state="attached")
            shown = page.locator("#hello").inner_text()
            assert ("draft model" in shown) == has_draft
            assert "context" in shown
            assert "trained drafter" not in shown
            assert page.locator("#hello p").inner_text().count(".") == 1  # and a colon
            assert page.locator("#model").inner_text() == "target"


def test_every_version_stays(browser: Any, server: Server) -> None:
    with opened(browser, server) as page:
        settings(page, temperature="1", max_tokens="30")
        ask(page, USER)
        first = said(page)
        page.get_by_role("button", name="Regenerate").click()
        page.get_by_text("2 / 2").wait_for()
        ended(page)
        second = said(page)
        assert second[0] == first[0]
        page.get_by_role("button", name="Version before").click()
        assert said(page) == first
        page.get_by_role("button", name="Edit").click()
        page.get_by_label("Edit the message").fill("Opisz krótko Odrę.")
        page.keyboard.press("Enter")
        page.locator(".user").get_by_text("2 / 2").wait_for()
        ended(page)
        assert said(page)[0] == "Opisz krótko Odrę."
        edited = said(page)
        ask(page, "A dalej?")
        page.get_by_role("button", name="Version before").first.click()
        assert said(page) == first
        page.reload()
        assert said(page) == first
        page.get_by_role("button", name="Version after").first.click()
        assert said(page)[:2] == edited
        assert len(said(page)) == 4


def test_what_was_exported_is_imported(browser: Any, server: Server, tmp_path: Path) -> None:
    with opened(browser, server) as page:
        settings(page, temperature="1", max_tokens="20")
        ask(page, USER)
        page.get_by_role("button", name="Regenerate").click()
        page.get_by_text("2 / 2").wait_for()
        ended(page)
        page.get_by_label("Name of the conversation").fill("Dwie rzeki?")
        page.keyboard.press("Enter")
        with page.expect_download() as download:
            page.get_by_role("button", name="Export").press("Enter")
        assert download.value.suggested_filename == "Dwie-rzeki.json"
        file = tmp_path / "a.json"
        download.value.save_as(file)
        before = said(page)
    with opened(browser, server) as page:
        page.locator("#file").set_input_files(file)
        page.get_by_text("2 / 2").wait_for()
        assert said(page) == before
        page.get_by_role("button", name="Version before").click()
        assert said(page) != before
        saved = [{"role": "user", "content": "Co?"}, {"role": "assistant", "content": "**To.**"}]
        file.write_text(json.dumps(saved), "utf-8")
        page.locator("#file").set_input_files(file)
        page.locator("strong").get_by_text("To.").wait_for()
        assert said(page) == ["Co?", "**To.**"]
        others: list[dict[str, Any]] = [
            {"thought": 5, "tokens": [5, None], "count": 3, "passes": 1, "by": {"draft": 3}},
            {"tokens": "abc", "count": 2, "by": None, "ended": "length"},
            {"tokens": [["To.", "draft", "accepted", 1]], "count": 1, "passes": 1, "by": 5},
        ]
        for figures in others:  # as another program may write them
            file.write_text(json.dumps([saved[0], {**saved[1], **figures}]), "utf-8")
            page.locator("#file").set_input_files(file)
            wait_for(lambda: page.locator("strong").count() == 1)
            page.reload()
            assert said(page) == ["Co?", "**To.**"]
            page.get_by_role("button", name="New conversation").press("Enter")
            page.locator("#hello").wait_for()
        page.locator("#list button").first.press("Enter")
        file.write_text("{}", "utf-8")
        page.locator("#file").set_input_files(file)
        page.get_by_role("alert").get_by_text("no conversation in it").wait_for()
        assert said(page) == ["Co?", "**To.**"]


def test_an_answer_is_stopped_continued_and_made_again(browser: Any, server: Server) -> None:
    with opened(browser, server) as page:
        without_end(page)
        settings(page, temperature="1", max_tokens="1500", seed="7")
        page.get_by_label("Message", exact=True).fill(USER)
        page.keyboard.press("Enter")
        # In the page: on a busy machine an answer of 1,500 tokens ends before a key from outside.
        page.wait_for_function(
            "text => document.querySelectorAll(`${text} .t`).length > 25 && (document.activeElement"
            ".dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: true})), true)",
            arg=TEXT,
        )
        ended(page)
        (_, part) = said(page)
        assert "stopped" in page.locator(".measured").inner_text()
        assert "tokens/s" in page.locator(".measured").inner_text()
        assert page.evaluate("document.activeElement.id") == "text"
        page.get_by_role("button", name="Continue").click()
        page.wait_for_function(
            "most => path(current)[1].content.length > most && ($('go').click(), true)",
            arg=len(part) + 20,
        )
        ended(page)
        assert said(page)[1].startswith(part)
        page.get_by_role("button", name="Regenerate").click()
        wait_for(lambda: page.evaluate("current.messages.length") == 3)
        page.keyboard.press("Escape")
        ended(page)
        assert page.locator("article").count() == 2
        shorter, longer = sorted((part, said(page)[1]), key=len)
        assert longer.startswith(shorter.rstrip("\ufffd"))  # the seed is the same


def test_a_prompt_that_is_being_read_is_stopped_and_edited(
    browser: Any, in_steps: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"Pytanie: {LONG_TEXT.strip()}"
    reading, is_stopped = ModelCache.reading, Event()

    def slowly(*of: Any, **how: Any) -> Iterator[int]:
        """Reads no further than a step before the page has stopped, however slow the browser is."""
        for read in reading(*of, **how):
            yield read
            is_stopped.wait(HUNG)

    monkeypatch.setattr(ModelCache, "reading", slowly)
    with opened(browser, in_steps) as page:
        page.get_by_label("Message", exact=True).fill(text)
        page.keyboard.press("Enter")
        page.get_by_text(re.compile(r"Reading [\d,]+ of [\d,]+ tokens")).wait_for()
        page.keyboard.press("Escape")
        page.locator("#log[aria-busy=false]").wait_for()
        is_stopped.set()
        assert said(page) == []
        assert page.get_by_label("Message", exact=True).input_value() == text
        page.reload()
        assert page.get_by_label("Message", exact=True).input_value() == text
        ask(page, USER)
        assert len(said(page)) == 2

        is_stopped.clear()
        page.get_by_role("button", name="New conversation").press("Enter")
        page.get_by_label("Message", exact=True).fill(f"Inne {text}")
        page.keyboard.press("Enter")
        page.get_by_text(re.compile(r"Reading [\d,]+ of [\d,]+ tokens")).wait_for()
        page.get_by_role("button", name="Delete conversation").press("Enter")
        page.locator("#sure [value=ok]").press("Enter")
        page.locator("#list button[aria-current=true]").wait_for()
        is_stopped.set()
        wait_for(lambda: page.evaluate("running.size") == 0)
        page.get_by_role("button", name="New conversation").press("Enter")
        page.locator("#hello").wait_for()
        assert page.get_by_label("Message", exact=True).input_value() == "", "it was deleted"


def test_the_end_stays_in_view_until_the_reader_scrolls_up(browser: Any, server: Server) -> None:
    """However much of an answer comes at once."""
    parts = ["Wisła", "\n\nWisła płynie." * 60, "\n\nKoniec." * 20]
    choices = [{"delta": {"content": part}, "finish_reason": None} for part in parts]
    choices[-1]["finish_reason"] = "stop"
    lines = [f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices]
    below = "$('scroll').scrollHeight - $('scroll').scrollTop - $('scroll').clientHeight"
    with opened(browser, server) as page:
        page.route("**/v1/chat/completions", lambda route: route.fulfill(body="".join(lines)))
        ask(page, USER)
        assert page.evaluate(below) < 5
        page.evaluate("$('scroll').scrollTop = 0")
        wait_for(lambda: page.evaluate("follows") is False)
        page.evaluate("stick(false)")
        assert page.evaluate("$('scroll').scrollTop") == 0


def test_a_dead_server_takes_nothing_away(browser: Any, server: Server) -> None:
    with opened(browser, server) as page:
        ask(page, USER)
        before = said(page)
        page.route("**/v1/chat/completions", lambda route: route.abort())
        page.get_by_role("button", name="Regenerate").click()
        page.get_by_role("alert").get_by_text("cannot be reached").wait_for()
        assert said(page) == before
        page.get_by_role("button", name="Try again").click()
        page.get_by_role("alert").wait_for()
        assert said(page) == before
        page.get_by_label("Message", exact=True).fill("A Odra?")
        page.keyboard.press("Enter")
        page.get_by_role("alert").wait_for()
        page.get_by_label("Message", exact=True).fill("half a sentence")
        page.reload()
        assert said(page) == [*before, "A Odra?"]
        assert page.get_by_label("Message", exact=True).input_value() == "half a sentence"
        page.unroute("**/v1/chat/completions")
        page.get_by_role("button", name="Try again").click()
        wait_for(lambda: len(said(page)) == 4)
        ended(page)
        assert page.get_by_role("alert").count() == 0


def test_a_page_finds_the_model_of_a_server_that_was_started_anew(
    browser: Any, server: Server
) -> None:
    """It named the model of the one before, again and again."""
    with opened(browser, server) as page:
        page.locator("#model option").wait_for(state="attached")
        page.evaluate("models = [{ id: 'gone' }]")
        page.get_by_label("Message", exact=True).fill(USER)
        page.keyboard.press("Enter")
        page.get_by_role("alert").get_by_text("gone").wait_for()
        wait_for(lambda: page.evaluate("models[0].id !== 'gone'"))
        page.get_by_role("button", name="Try again").click()
        assert ended(page)


def test_a_question_without_an_answer_can_be_asked_again(
    browser: Any, server: Server, tmp_path: Path
) -> None:
    """After a reload while its prompt is read, or from a file."""
    with opened(browser, server) as page:
        page.route("**/v1/chat/completions", lambda _: None)  # which never ends
        page.get_by_label("Message", exact=True).fill(USER)
        page.keyboard.press("Enter")
        page.get_by_text("Waiting for the answer").wait_for()
        assert page.get_by_role("alert").count() == 0
        page.reload()
        page.unroute("**/v1/chat/completions")
        (file := tmp_path / "a.json").write_text('[{"role": "user", "content": "Co?"}]')
        for text in (USER, "Co?"):
            page.get_by_role("alert").get_by_text("no answer yet").wait_for()
            page.get_by_role("button", name="Try again").click()
            ended(page)
            assert page.get_by_role("alert").count() == 0
            assert (len(said(page)), said(page)[0]) == (2, text)
            page.locator("#file").set_input_files(file)


def test_a_reload_stops_an_answer_and_blames_no_server(browser: Any, server: Server) -> None:
    with opened(browser, server) as page:
        without_end(page)
        page.get_by_label("Message", exact=True).fill(USER)
        page.keyboard.press("Enter")
        wait_for(lambda: page.locator(f"{TEXT} .t").count() > 5)
        page.reload()
        assert "stopped" in page.locator(".measured").inner_text()
        assert page.get_by_role("alert").count() == 0
        assert page.get_by_role("button", name="Continue").is_visible()


def test_a_stream_that_breaks_keeps_what_had_come(browser: Any, server: Server) -> None:
    with opened(browser, server) as page:
        part = {
            "choices": [{"index": 0, "delta": {"content": "Half a"}, "tokalign": {"tokens": []}}]
        }
        broken = f"data: {json.dumps(part)}\n\n"
        page.route("**/v1/chat/completions", lambda route: route.fulfill(body=broken))
        page.get_by_label("Message", exact=True).fill(USER)
        page.keyboard.press("Enter")
        page.get_by_text("cut off by the server").wait_for()
        assert said(page) == [USER, "Half a"]
        page.reload()
        assert said(page) == [USER, "Half a"]
        assert page.get_by_role("button", name="Continue").is_visible()


def answer_with(page: Any, text: str) -> None:
    """Have every question answered by this text."""
    choice = {"delta": {"content": text}, "finish_reason": "stop"}
    event = f"data: {json.dumps({'choices': [choice]})}\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=event))


def test_a_script_that_runs_to_the_left_begins_on_the_right(browser: Any, server: Server) -> None:
    text = "مرحبا بالعالم\n\n- واحد\n  ```\n  f(x)\n  ```\n\nWisła"
    with opened(browser, server) as page:
        answer_with(page, text)
        ask(page, "Cześć\nשלום")
        page.locator("pre").wait_for()
        blocks = page.evaluate(
            f"[...document.querySelectorAll('{TEXT} > *')].map(e => getComputedStyle(e).direction)"
        )
        assert blocks == ["rtl", "rtl", "ltr"]
        assert page.locator("pre").evaluate("e => getComputedStyle(e).direction") == "ltr"
        sides = page.locator(".said").evaluate("""e => {
          const box = e.getBoundingClientRect(), of = document.createRange(), text = e.firstChild;
          return [[0, 5], [6, 10]].map(([begin, end]) => {
            of.setStart(text, begin), of.setEnd(text, end);
            const { left, right } = of.getBoundingClientRect();
            return left - box.left < box.right - right ? "left" : "right"; });
        }""")
        assert sides[1] == "right"


def test_a_name_is_cut_between_characters(browser: Any, server: Server) -> None:
    with opened(browser, server) as page:
        answer_with(page, "Tak.")
        ask(page, "a" + "😀" * 80)
        assert page.get_by_label("Name of the conversation").input_value() == "a" + "😀" * 59


def test_a_browser_without_room_says_so(browser: Any, server: Server) -> None:
    """And keeps what it had, and the page goes on."""
    fill = "for (let n = 1 << 22; n; n >>= 1) try { for (let i = 0; ; i++) STORAGE.setItem("
    fill += "`other${n}.${i}`, 'x'.repeat(n)); } catch {}"
    with opened(browser, server) as page:
        answer_with(page, "Tak.")
        ask(page, USER)
        assert page.get_by_role("alert").count() == 0
        page.evaluate(fill.replace("STORAGE", "localStorage"))
        page.evaluate(fill.replace("STORAGE", "sessionStorage"))
        ask(page, "A Odra? " * 99)
        page.get_by_role("alert").get_by_text("no room left").wait_for()
        assert len(said(page)) == 4
        page.evaluate("localStorage.removeItem('other4194304.0')")
        ask(page, "A San?")
        assert page.get_by_role("alert").count() == 0
        page.reload()
        assert len(said(page)) == 6


def test_a_second_tab_follows_an_answer_and_is_not_disturbed(browser: Any, server: Server) -> None:
    with opened(browser, server) as page:
        answer_with(page, "Tak. " * 900)
        ask(page, USER)
        other = page.context.new_page()
        answer_with(other, "Nie.")
        other.goto(page.url)
        search = other.get_by_role("searchbox")
        search.focus()
        # Again where the page drew its log only then, and stood at its end for that.
        wait_for(lambda: other.evaluate("($('scroll').scrollTop = 0, follows)") is False)
        ask(page, "A Odra?")
        wait_for(lambda: len(said(other)) == 4)
        assert search.evaluate("e => e === document.activeElement")
        assert other.evaluate("$('scroll').scrollTop") == 0
        other.get_by_role("button", name="Edit").first.click()
        other.keyboard.type("Nowe ")
        ask(page, "A San?")
        wait_for(lambda: other.evaluate("chats.get(current.id).messages.length") == 6)
        assert "Nowe" in other.get_by_label("Edit the message").input_value()
        other.keyboard.press("Enter")
        wait_for(lambda: other.evaluate("running.size === 0 && current.messages.length") == 8)
        kept = other.evaluate("current.messages.map(one => one.content.split(' ')[0])")
        assert kept[:6] == ["Opisz", "Tak.", "A", "Tak.", "A", "Tak."]
        assert "Nowe" in other.evaluate("current.messages[6].content")


def test_escape_that_ends_a_composition_stops_no_answer(browser: Any, server: Server) -> None:
    with opened(browser, server) as page:
        without_end(page)
        settings(page, max_tokens="60")
        page.get_by_label("Message", exact=True).fill(USER)
        page.evaluate("""() => {
          const escape = { key: "Escape", bubbles: true, isComposing: true };
          document.addEventListener("keydown", () => { window.ended = running.size; });
          $("composer").requestSubmit();
          $("text").dispatchEvent(new KeyboardEvent("keydown", escape));
        }""")
        ended(page)
        assert page.evaluate("[window.ended, path(current)[1].ended]") == [1, "length"]


def test_markdown_leaves_most_of_the_server_s_time_to_the_model(
    browser: Any, server: Server
) -> None:
    with opened(browser, server) as page:
        without_end(page)
        settings(page, max_tokens="60")
        page.evaluate("""() => {
          const later = setTimeout;
          let now = 0;
          window.delays = [];
          performance.now = () => now += 100; // so long took every reply
          window.setTimeout = (done, ms) => (delays.push(ms), later(done, Math.min(ms, 80)));
        }""")
        ask(page, USER)
        assert any(delay >= 400 for delay in page.evaluate("delays"))


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
        assert ask(page, USER)
        assert KEY not in page.evaluate("JSON.stringify({...localStorage})")
        page.reload()
        assert not asked.is_visible()
        page.evaluate("sessionStorage.clear()")
        page.get_by_role("button", name="Regenerate").click()
        asked.wait_for()
        page.keyboard.press("Escape")
        page.get_by_role("alert").get_by_text("API key").wait_for()


MARKUP = """# Rzeki\n\n1. **Wisła**, *długa*\n   - `a < b`\n   - [x] tak\n2. Odra

| rzeka | km |\n|:--|--:|\n| Wisła | 1047 |

```python
def f(): return "<img src=x onerror=alert(1)> a very long line of code, wider than any telephone"
```
> <b>tak</b>, [dalej](https://example.org) [nie](javascript:alert(1))

---

Wzór: $a_b + c_d$."""


def keep(page: Any, server: Server, text: str, sources: list[str]) -> None:
    """Have the page show a conversation whose answer is this text, three letters a token."""
    parts = [text[i : i + 3] for i in range(0, len(text), 3)]
    tokens = [[part, sources[i % len(sources)], "accepted", i] for i, part in enumerate(parts)]
    by = dict.fromkeys(sources, 1)
    kept = {"role": "assistant", "content": text, "tokens": tokens, "by": by, "passes": 9}
    asked = {"role": "user", "content": "Rzeki?"}
    chat = {"id": "1", "title": "a" * 90, "changed": 1, "messages": [asked, {**kept, "count": 9}]}
    page.evaluate("chat => localStorage.setItem('tokalign.chat.1', JSON.stringify(chat))", chat)
    page.goto("about:blank")
    page.goto(f"{server.url}/#1")
    page.locator(f"{TEXT} hr").wait_for()


EVERY = ["draft", "dictionary:x", "copy", "session", "logits", "grammar", "drafter"]


def test_a_phone_in_the_dark_shows_text_that_cannot_do_harm(browser: Any, server: Server) -> None:
    phone = {"width": 360, "height": 640}
    with opened(browser, server, viewport=phone, color_scheme="dark", has_touch=True) as page:
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == "rgb(20, 24, 29)"
        keep(page, server, MARKUP, EVERY)
        text = page.locator(TEXT)
        assert text.locator("h2").inner_text() == "Rzeki"
        assert text.locator("ol > li strong").inner_text() == "Wisła"
        assert text.locator("li li code").inner_text() == "a < b"
        assert text.locator("li input:checked").count() == 1
        assert text.locator("td.right").inner_text() == "1047"
        assert "<img src=x" in text.locator("pre .string").nth(1).inner_text()
        assert text.locator("pre .keyword").first.inner_text() == "def"
        assert "<b>tak</b>" in text.locator("blockquote").inner_text()
        assert text.locator("a").get_attribute("href") == "https://example.org"
        assert text.locator("p code").inner_text() == "a_b + c_d"
        assert text.locator("img, b").count() == 0
        # The colours lie over it: every letter has the source of its token, also inside of code.
        told = text.locator("code .t").first
        assert re.fullmatch(r"“.{1,3}”: guessed by .*, pass \d+", note_of(page, told))
        wide = "[...document.querySelectorAll('html, #scroll')].map(e => e.scrollWidth)"
        assert page.evaluate(wide) == [360, 360]
        assert not page.locator("nav").is_visible()
        page.get_by_role("button", name="Conversations and settings").tap()
        assert page.get_by_role("button", name="Settings…").is_visible()
        page.keyboard.press("Escape")
        assert not page.locator("nav").is_visible()


def note_of(page: Any, token: Any) -> str:
    token.scroll_into_view_if_needed()
    token.tap()
    return str(page.locator(".note").inner_text())


def test_a_block_of_code_is_copied(browser: Any, server: Server) -> None:
    with opened(browser, server, permissions=["clipboard-read", "clipboard-write"]) as page:
        keep(page, server, MARKUP, ["copy"])
        page.locator("figure").get_by_role("button", name="Copy").click()
        page.get_by_text("Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()").startswith("def f(): return")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1100])
def test_axe_finds_nothing(browser: Any, server: Server, scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    rules = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
    size = {"width": width, "height": 700}
    with opened(browser, server, viewport=size, color_scheme=scheme, bypass_csp=True) as page:

        def check() -> None:
            found = axe.run(page, options=rules).response["violations"]
            told = [(rule["id"], [n["html"] for n in rule["nodes"]][:3]) for rule in found]
            assert told == []

        page.locator("#model option").wait_for(state="attached")
        check()
        keep(page, server, MARKUP, EVERY)
        check()
        page.get_by_role("button", name="Edit").click()
        check()
        if width < 500:
            page.get_by_role("button", name="Conversations and settings").click()
            check()
        page.get_by_role("button", name="Settings…").click()
        check()
