"""Conversations and entries without a terminal, a file or a model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from polish import texts

from tokalign.cli.dialogue import COMMANDS, ChatCommand, Dialogue, EntryLines, help_text, read_entry
from tokalign.errors import UsageError


def entries(*lines: str) -> list[str | None]:
    """What each line completes, and what is left at the end."""
    found = EntryLines()
    return [*(found.push(line) for line in lines), found.finish()]


def test_an_entry_is_a_line_several_lines_or_a_block() -> None:
    assert entries("Dzień dobry", "") == ["Dzień dobry", "", None]
    assert entries("jeden \\", "dwa\\", "trzy") == [None, None, "jeden \ndwa\ntrzy", None]
    assert entries('"""', "/reset", "dwa\\", '"""', "x") == [
        *(None, None, None, "/reset\ndwa\\"),
        *("x", None),
    ]
    assert entries('"""jeden', 'dwa"""') == [None, "jeden\ndwa", None]
    assert entries('"""jeden"""') == ["jeden", None]
    assert entries("urwane\\") == [None, "urwane"]
    assert entries('"""urwane', "tu") == [None, None, "urwane\ntu"]


@given(st.text(st.characters(codec="utf-8", exclude_characters='\\"\n/'), max_size=30))
def test_a_line_without_signs_is_itself(line: str) -> None:
    assert entries(line) == [line, None]
    assert read_entry(line) == line


def test_commands_are_read() -> None:
    for typed in ("a b.json ", "'a b.json'", r"a\ b.json"):
        assert read_entry(f"/save  {typed}") == ChatCommand("save", "a b.json")
    for name in ("Anna's.json", "Anna's and Tom's.json"):
        assert read_entry(f"/load {name}") == ChatCommand("load", name)
    assert read_entry("/system") == ChatCommand("system", "")
    assert read_entry("/system\nMów\nkrótko.\n") == ChatCommand("system", "Mów\nkrótko.")
    assert read_entry("/retry\n") == ChatCommand("retry", "")  # as it was pasted
    assert read_entry("//exit to nie komenda") == "/exit to nie komenda"
    for typed in ("exit", "quit ", "/bye", "/quit", "/exit"):
        assert read_entry(typed) == ChatCommand("exit", "")
    assert [read_entry(typed) for typed in ("/?", "/reset", "exit now")] == [
        ChatCommand("help", ""),
        ChatCommand("clear", ""),
        "exit now",
    ]
    for name, (takes, _) in COMMANDS.items():
        typed = f"/{name} x" if takes == "FILE" else f"/{name}"
        assert read_entry(typed) == ChatCommand(name, "x" if takes == "FILE" else "")


def test_help_fits_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (60, 80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = help_text().splitlines()
        assert max(map(len, lines)) <= width
        for name in COMMANDS:
            assert any(line.startswith(f"/{name} ") for line in lines), name


@pytest.mark.parametrize("typed", ["/q", "/", "/save", "/load ", "/clear now", "/System x"])
def test_what_is_no_command_is_refused(typed: str) -> None:
    with pytest.raises(UsageError, match=typed.split()[0]):
        read_entry(typed)


def test_a_dialogue_keeps_its_messages_in_order() -> None:
    dialogue = Dialogue(system="Odpowiadaj krótko.")
    dialogue.ask("Co to?")
    assert dialogue.awaits_answer
    dialogue.answer("Kot.")
    dialogue.ask("Czyj?")
    roles = [message["role"] for message in dialogue.messages]
    assert roles == ["system", "user", "assistant", "user"]
    assert dialogue.undo() == "Czyj?"
    assert [message["content"] for message in dialogue.turns] == ["Co to?", "Kot."]
    dialogue.retry()
    assert dialogue.awaits_answer
    dialogue.retry()
    assert dialogue.awaits_answer
    dialogue.answer("Pies.")
    assert dialogue.undo() == "Co to?"
    assert dialogue.turns == []
    with pytest.raises(UsageError, match="take back"):
        dialogue.undo()
    dialogue.ask("Kto to?")
    dialogue.clear()
    assert dialogue.messages == [{"role": "system", "content": "Odpowiadaj krótko."}]
    with pytest.raises(UsageError, match="say something first"):
        dialogue.retry()


def test_the_oldest_turns_are_left_out_and_the_last_one_stays() -> None:
    dialogue = Dialogue(system="S")
    for number in range(5):
        (dialogue.answer if number % 2 else dialogue.ask)(str(number))
    assert dialogue.read == dialogue.messages
    for fits, read in ((4, ["S", "2", "3", "4"]), (3, ["S", "4"]), (0, ["S", "4"])):
        dialogue.leave_out(lambda fits=fits: len(dialogue.read) <= fits)  # type: ignore[misc]
        assert [message["content"] for message in dialogue.read] == read
    assert len(dialogue.messages) == 6
    dialogue.clear()
    dialogue.ask("5")
    assert [message["content"] for message in dialogue.read] == ["S", "5"]


def test_a_long_conversation_is_shortened_in_a_few_attempts() -> None:
    """Each of them encodes it; one for each question took 99 seconds of 1,001 messages."""
    dialogue, attempts = Dialogue(turns=[{"role": "user", "content": ""}] * 1001), list[int]()

    def fits() -> bool:
        attempts.append(len(dialogue.read))
        return len(dialogue.read) <= 40

    dialogue.leave_out(fits)
    assert len(dialogue.read) == 39
    assert len(attempts) < 11


@given(st.none() | texts, st.lists(texts, max_size=5))
def test_what_was_saved_is_loaded(system: str | None, said: list[str]) -> None:
    dialogue = Dialogue(system=system)
    for number, text in enumerate(said):
        (dialogue.answer if number % 2 else dialogue.ask)(text)
    assert Dialogue.from_json(dialogue.to_json(), name="a.json") == dialogue


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[1]", '[{"role": "user"}]', '[{"role": "user", "content": 1}]'),
        '[{"role": "assistant", "content": "Kot."}]',
        '[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]',
        '[{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]',
        '[{"role": "robot", "content": "a"}]',
        '[{"role": "user", "content": "\\ud83d"}]',  # half a surrogate pair
        "[" * 100_000,
    ],
)
def test_what_is_no_conversation_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"a\.json is no saved conversation"):
        Dialogue.from_json(text, name="a.json")
