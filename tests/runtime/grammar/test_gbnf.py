"""llama.cpp's grammars mean what their guide says; they are read in one pass."""

from __future__ import annotations

from typing import Any

import pytest
from grammars import accepts

from tokalign.errors import UsageError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.grammar import Grammar, constrain
from tokalign.runtime.grammar.gbnf import _Reader, lark_of
from tokalign.runtime.grammar.gbnf_rules import _MOST_PARTS, _find_followers

PROMPT = [5, 6]
Pair = tuple[LanguageModel[Any], LanguageModel[Any]]

# (grammar, texts that match, texts that do not)
MEANT: dict[str, tuple[str, list[str], list[str]]] = {
    "escapes of letters": ('root ::= "\\u017C\\x6F" [\\U00000142-\\u0142] "w"', ["żołw"], ["żolw"]),
    "escapes of signs": (r'root ::= "\"\\\t\r\n\[\]"', ['"\\\t\r\n[]'], ['"\\\t\r\n[']),
    "negated sets": (r"root ::= [^a-c\n]{2}", ["xż", "-]"], ["xa", "x\n"]),
    "signs in sets": (r"root ::= [&&~~\]\-]+", ["&~", "]-"], ["a"]),
    "dashes in sets": ("root ::= [-+] [a-] [+--]", ["-a-", "+-,"], ["aa-"]),
    "printable": ("root ::= [!-~]+", ["~!A"], ["a b"]),
    "a dot": ("root ::= .{2,3}", ["a\n", "żżż"], ["a", "abcd"]),
    "rules in any case": (
        "root ::= item Item ITEM-2\nitem ::= [x]\nItem ::= [y]\nITEM-2 ::= [z]",
        ["xyz"],
        ["xxz", "yyz"],
    ),
    "a rule named start": ('root ::= start start\nstart ::= "a" | "b"', ["ab"], ["a", "c"]),
    "repetitions": ('root ::= "ab"{2} "c"{1,} "d"{0,2} "e"? "f"*', ["ababc", "ababccdef"], ["abc"]),
    "repeated repetitions": ('root ::= ("a"{2})* "b"+?', ["", "aab", "aaaabb"], ["ab"]),
    "nothing": ('root ::= "" | "a"{0} "b" |', ["", "b"], ["a"]),
    "lines and comments": (
        'root ::= ( # a group\n  "a" |\n\n  "b" item\n)  # ends\n\nitem ::= "x" |\n  "y"\r\n',
        ["a", "by"],
        ["ax"],
    ),
    "recursion": (
        'root ::= "(" root ")" | "[" [a-z]+ "]" | root "!"',
        ["([ab])!", "((([x])))"],
        ["("],
    ),
    "spaces that end a line or stand in it": (
        'root ::= (sum "\\n")+\nsum ::= word ("+" ws sum)? | "(" sum ")" ws\n'
        "word ::= [a-z] ws\nws ::= [ \\n]*",
        ["a\n", "a + b\n\n", "(a+b)\n(c)\nd \n"],
        ["a", "a +\n"],
    ),
    "calls and names": (
        'root ::= name | name " "? "(" root? ")" | root " + " root\nname ::= [a-z]+',
        ["f (x)", "a + f(b + c)", "a + b"],
        ["f (", "a +"],
    ),
    "anything up to a mark": ('root ::= "<" .* ">" root | "!"', ["<a>b<c>!", "<>>!"], ["<a!"]),
    "many characters that may come next": (
        f"root ::= word ({' | '.join(f'[{chr(0x4E00 + 2 * n)}]' for n in range(300))}) root?\n"
        "word ::= [^x]*",
        ["一", "abc一", "一丂丄", "丂a一一"],
        ["", "abc", "x一"],
    ),
    "a word that others begin": (
        'root ::= [a-z]* "end" ("(" root ")")? | ["] [^"]* ["]',
        ["trend", "endend(end)", '"a(b"', 'end("")'],
        ["en", "end(a)"],
    ),
    "repetitions of what ends anywhere": (
        'root ::= digits{2} ("," root)?\ndigits ::= [0-9]{1,3}',
        ["12", "123456,99"],
        ["1", "1234567"],
    ),
    "the last of two rules": ('root ::= x\nx ::= "a"\nx ::= "b"', ["b"], ["a"]),
    "rules that are not needed": ('root ::= "a"\nother ::= other other', ["a"], ["b"]),
    "deep groups": ("root ::= " + "(" * 300 + "[a]" + " [b]?)" * 300, ["a", "abb"], ["b"]),
}


@pytest.fixture(scope="module")
def target(demo_pair: Pair) -> LanguageModel[Any]:
    return demo_pair[0]


def allows(target: LanguageModel[Any], grammar: Grammar, ids: list[int]) -> bool:
    return accepts(grammar, target.tokenizer, target.stop_ids, ids)


@pytest.mark.parametrize("kind", MEANT)
def test_a_grammar_matches_what_it_says(target: LanguageModel[Any], kind: str) -> None:
    source, members, others = MEANT[kind]
    grammar = Grammar.text(source)
    for text in members + others:
        ids = target.tokenizer.encoder.encode(text.encode())
        assert allows(target, grammar, ids) == (text in members), text


def test_what_is_read_to_its_end_anyway_is_one_terminal() -> None:
    """Its characters would be tried one by one at every id."""
    source = 'root ::= "[" root "]" | quoted ":" root? | [0-9]+\nquoted ::= ["] [^"]* ["]'
    (rule,) = (line for line in lark_of(source).split("\n") if line.startswith("r0:"))
    assert "/" not in rule


def test_what_may_come_next_is_any_character_where_it_is_one_of_very_many() -> None:
    """Thousands of rules would have thousands of characters each."""
    rules = [f"root ::= {' '.join(f'r{n}?' for n in range(400))} root?"]
    rules += [f"r{n} ::= [{chr(0x4E00 + 2 * n)}] root?" for n in range(400)]
    read = _Reader("\n".join(rules)).rules()
    _find_followers(read)
    for rule in read.values():
        assert max(len(part.followers) for part in (rule, *rule.items)) <= _MOST_PARTS


def test_tokens_are_matched_by_id_and_by_spelling(target: LanguageModel[Any]) -> None:
    specials, encoder = target.tokenizer.vocabulary.special_ids, target.tokenizer.encoder
    (a,), end = encoder.encode(b"a"), specials["<|im_end|>"]
    grammar = Grammar.text("root ::= !<[7]>* <unk> thought\nthought ::= [a]+")
    unknown = specials["<unk>"]
    assert allows(target, grammar, [a, a, unknown, a])
    assert not allows(target, grammar, [a, 7, unknown, a])
    assert not allows(target, grammar, [a, end, a])
    assert allows(target, Grammar.text("root ::= <[8]> <[9]>?"), [8, 9])
    with pytest.raises(UsageError, match="<nonesuch>"):
        constrain(Grammar.text("root ::= <nonesuch>"), target.tokenizer, PROMPT, target.stop_ids)


@pytest.mark.parametrize("text", ["<gbnf:6>", "<gbnf:61>"])
def test_a_text_that_is_spelled_as_a_named_token_is_a_text(
    target: LanguageModel[Any], text: str
) -> None:
    """It became an id, or an error about half a byte."""
    ids = target.tokenizer.encoder.encode(text.encode())
    lark = Grammar.text(f'start: "{text}"')
    for grammar in (
        Grammar.choice([text]),
        Grammar.regex(text),
        lark | Grammar.text("root ::= <unk>"),
    ):
        assert allows(target, grammar, ids)
    quoted = target.tokenizer.encoder.encode(f'"{text}"'.encode())
    assert allows(target, Grammar.json_schema({"const": text}), quoted)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ('item ::= "a"', "root"),
        ("root ::= other", "'other'"),
        ('root ::= "a', "line 1, column 10"),
        ('root ::= "a" )', "line 1, column 14"),
        ('root ::= ("a"', "ends inside"),
        ('root ::= "\\q"', "escape"),
        ("root ::= [\\uD800]", "no character"),
        ("root ::= *", "before"),
        ('root ::= "a"{3,2}', "larger"),
        ('root = "a"', "cannot be read"),
        ('root ::= "a"{100000}', "maximum is 10,000"),
    ],
)
def test_what_is_no_grammar_is_refused_with_its_place(source: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        Grammar.text(source)
    assert "\n" not in str(refused.value)


def test_a_line_may_begin_with_an_alternative() -> None:
    source = 'root ::= "a" # first\n\n  | item\n  | ("b"\n)\nitem ::= "c"\n'
    assert Grammar.text(source) == Grammar.text('root ::= "a" | item | ("b")\nitem ::= "c"')


@pytest.mark.parametrize(
    "start", ["start:", " start :", "?start:", "!start:", 'start[capture="x"]:']
)
def test_a_text_in_larks_format_is_told_by_its_start(start: str) -> None:
    """Grammars for vLLM and Outlines have the mark of a rule that stands for its only part."""
    source = f'{start} number ("+" number)*\nnumber: /[0-9]+/'
    assert Grammar.text(source) == Grammar.lark(source)
    with pytest.raises(UsageError, match="GBNF"):
        Grammar.text('root ::= "a"\nrestart: "b"')


def test_empty_lines_are_read_once() -> None:
    """A quadratic reader would not end within the time that tests have."""
    source = "\n" * 400_000 + 'root ::= "a"' + "\n#" * 20_000
    assert Grammar.text(source) == Grammar.text('root ::= "a"')
    with pytest.raises(UsageError, match="maximum is 524,288"):
        Grammar.text("\n" * 3_000_000)
