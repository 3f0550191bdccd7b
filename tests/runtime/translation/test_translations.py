"""Translations: what drafted ids become, and that the baselines do what was published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from polish import SENTENCES
from random_models import random_model

from tokalign.api.choosing import choose_drafting
from tokalign.build.alignment import align
from tokalign.errors import IncompatibleError, UsageError
from tokalign.evaluate.replay import replay
from tokalign.runtime.chat import Prompt
from tokalign.runtime.draft.neural import NeuralDrafter, make_translation
from tokalign.runtime.mlx.draft_session import DraftedIds, DraftModelSession, Shortlist
from tokalign.runtime.options import DraftingOptions, check_translation, choose_method
from tokalign.runtime.rounds import Context, Round
from tokalign.runtime.statistics import Statistics
from tokalign.runtime.translation.base import Asked, Pair, Translation
from tokalign.runtime.translation.by_token import same_tokenizer
from tokalign.tables.alignment import Alignment
from tokalign.tables.opening import open_alignment
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import Roles, TargetId


@dataclass
class ReadyLists:
    """Lists of what may follow `ids` without its last 0, ..., `back` ids."""

    oracle: Oracle
    ids: Sequence[int]
    back: int
    ahead: Sequence[Sequence[int]]
    """What was read besides the text: after which ids."""

    def among(self, allowed: Sequence[Any], count: int) -> Callable[[], list[Any]]:
        lists = [
            self.oracle.next(self.ids[: len(self.ids) - j], among)
            for j, among in enumerate([None, *allowed])
        ]
        assert len(lists) == 1 + self.back
        return lambda: lists


class Oracle:
    """A draft model that knows the text: it drafts the canonical encoding of what follows.

    It checks at every call that the context it is given is the committed text and nothing else.
    """

    def __init__(
        self,
        draft: Tokenizer[Any],
        text: str,
        *,
        canonical: bool = True,
        can_branch: bool = False,
    ) -> None:
        self._draft, self._text = draft, draft.text_bytes(text)
        self._canonical, self.can_branch = canonical, can_branch
        self.passes = 0

    def draft(self, ids: Sequence[int], steps: int, firsts: Any = None, *_: Any) -> DraftedIds:
        self.passes += steps
        held = self._draft.vocabulary.bytes_of(ids)
        assert self._text.startswith(held)
        if self._canonical:
            opening = [i for i in ids if not self._draft.vocabulary.tokens[i]]
            assert list(ids) == [*opening, *self._draft.bpe.encode(held)]
        rest = self._draft.bpe.encode(self._text[len(held) :])
        masked_out = 0
        if firsts is not None:
            masked_out = sum(firsts.first[i] < 0 for i in rest[:steps])
            rest = [i for i in rest if firsts.first[i] >= 0]
        drafted = (rest + [min(self._draft.vocabulary.roles.eos)] * steps)[:steps]
        return DraftedIds(drafted, masked_out)

    def start_shortlists(
        self, ids: Sequence[int], back: int, ahead: TokenTree[Any] = EMPTY_TREE
    ) -> ReadyLists:
        self.passes += 1
        before = ids[: len(ids) - back]
        paths = [[ahead.ids[i] for i in ahead.path_to(row)] for row in range(back, len(ahead))]
        return ReadyLists(self, ids, back, [[*before, *path] for path in paths])

    def listed(self, rows: Sequence[Sequence[int]], *_: Any) -> Callable[[], list[Shortlist]]:
        return lambda: [self.next(ids, None) for ids in rows]

    def branch(
        self,
        ids: Sequence[int],
        tree: TokenTree[Any],
        computed: int | None,
        count: int,
        firsts: Any,
        sampler: None,
        positions: Sequence[int],
    ) -> Callable[[], list[Any]]:
        self.passes += 1
        among = None
        if firsts is not None:
            among = {i for i, found in enumerate(firsts.first.tolist()) if found >= 0}
        rows = range(-1 if computed is None else computed, len(tree))
        paths = [[tree.ids[i] for i in tree.path_to(row)] for row in rows]
        return lambda: [self.next([*ids, *path], among) for path in paths]

    def next(self, ids: Sequence[int], among: Any) -> Shortlist:
        """The text's own token after `ids`, if one begins there."""
        held = self._draft.vocabulary.bytes_of(ids)
        assert self._text.startswith(held)
        at = 0
        for token in self._draft.bpe.encode(self._text):
            if at == len(held) and (among is None or token in among):
                return Shortlist([token], [0.0], 0.0)
            at += len(self._draft.vocabulary.tokens[token])
        if at == len(held) and among is None:
            return Shortlist([min(self._draft.vocabulary.roles.eos)], [0.0], 0.0)
        return Shortlist([], [], 0.0)


@cache
def tables_of(pair: Pair) -> Alignment:
    return align(pair.draft.vocabulary, pair.target.vocabulary)


def translation_of(
    name: str, pair: Pair, given: Sequence[TargetId], alignment: Alignment | None = None
) -> Translation:
    """A translation after the target's prompt `given`."""
    prompt = Prompt(target=given)
    return make_translation(name, pair, prompt, lambda: alignment or tables_of(pair))


def drafted(
    translation: Translation, ids: Sequence[TargetId], session: Any, steps: int
) -> tuple[TargetId, ...]:
    """The chain that so many passes give."""
    asked = Asked(steps, alternatives=0, learned=[0.5].__mul__)
    return translation.draft(ids, session, asked).tree.ids


def play(
    name: str,
    pair: Pair,
    text: str,
    *,
    steps: int = 3,
    alignment: Alignment | None = None,
    trees: bool = False,
    guessed: int = 0,
    statistics: Statistics | None = None,
) -> tuple[int, int, list[tuple[int, ...]]]:
    """Replay `text` with an oracle: accepted tokens, rounds, proposals. guessed: how many of the
    next ids others expect."""
    canonical = name != "context:5"
    session = Oracle(pair.draft, text, canonical=canonical, can_branch=trees)
    ids = pair.target.encode(text)
    translation = translation_of(name, pair, ids[:2], alignment)
    drafter = NeuralDrafter(session, translation, num_draft_tokens=steps)  # type: ignore[arg-type]

    def guesses(seen: Sequence[TargetId]) -> TokenTree[TargetId]:
        coming = ids[len(seen) : len(seen) + guessed]
        return TokenTree.chain(coming, "dictionary", [0.9] * len(coming))

    drafter.meanwhile = guesses
    accepted, proposals = 0, []
    for event in replay(ids, drafter, prompt_tokens=2):
        if statistics is not None:
            statistics.observe(event)
        if isinstance(event, Round):
            accepted += event.accepted
            proposals.append(event.tree.ids)
    return accepted, len(proposals), proposals


@pytest.fixture(scope="module", params=["llama", "qwen"])
def onto_bielik(request: pytest.FixtureRequest, bielik: Tokenizer[Any]) -> Pair:
    return Pair(bielik, request.getfixturevalue(request.param))


@pytest.mark.parametrize("text", SENTENCES)
@pytest.mark.parametrize(
    ("name", "trees"),
    [
        ("context:5", False),
        ("intersection", False),
        ("intersection", True),
        ("exact", False),
        ("exact", True),
    ],
)
def test_the_draft_reads_the_committed_bytes_at_every_round(
    onto_bielik: Pair, name: str, text: str, trees: bool
) -> None:
    """The oracle asserts it. Of the published ones, intersection reads a canonical text as well."""
    accepted, rounds, _ = play(name, onto_bielik, text, trees=trees)
    assert accepted + rounds == len(onto_bielik.target.encode(text)) - 2
    assert accepted > 0


def test_what_the_target_lacks_is_counted_as_unmapped(onto_bielik: Pair) -> None:
    """Not every piece of this is a token of Mistral."""
    statistics = Statistics()
    text = "Najprawdopodobniej konstantynopolitańczykowianeczka wróciła."
    play("intersection", onto_bielik, text, statistics=statistics)
    pieces = onto_bielik.draft.bpe.encode(onto_bielik.draft.text_bytes(text))
    table = tables_of(onto_bielik).intersection
    assert any(table.target_of(i) is None for i in pieces)
    assert statistics.counts["unmapped"] > 0


@pytest.mark.parametrize("name", ["context:5", "intersection", "exact"])
def test_the_end_of_the_turn_is_the_targets(onto_bielik: Pair, name: str) -> None:
    """The oracle has nothing to add and ends its turn; the proposal does so in target ids."""
    text = "Tak."
    ids = onto_bielik.target.encode(text)
    session = Oracle(onto_bielik.draft, text)
    found = drafted(translation_of(name, onto_bielik, ids), ids, session, 1)
    assert found == (onto_bielik.target.vocabulary.roles.turn_end,)


@pytest.mark.parametrize("name", ["context:5", "intersection", "exact"])
def test_what_a_draft_model_has_to_read_is_counted_in_its_own_ids(
    onto_bielik: Pair, name: str
) -> None:
    """In a later turn too, whose drafter goes on with the session of the one before."""
    session = DraftModelSession(random_model())
    first, whole = (onto_bielik.target.encode(" ".join(SENTENCES[:n])) for n in (1, 3))
    expected = []
    for ids in (first, whole):
        translation = translation_of(name, onto_bielik, ids[:2])
        drafter = NeuralDrafter(session, translation, alternatives=0)
        own = list(translation.read(ids))
        assert len(own) != len(ids)
        expected.append(drafter.unread(ids))
        assert expected[-1] == (len(own) - session.shared_with(own) if session.held else len(ids))
        drafter.draft(Context(ids), steps=1, limit=8)
        assert drafter.unread([*ids, ids[0]]) == 1


@pytest.mark.parametrize("text", SENTENCES)
def test_one_pass_goes_on_after_what_others_expect(onto_bielik: Pair, text: str) -> None:
    """The model reads the guesses as its tokenizer spells them after the text, and tells what comes
    after each of them."""
    _, rounds, _ = play("exact", onto_bielik, text, steps=1, trees=True)
    _, fewer, proposals = play("exact", onto_bielik, text, steps=1, trees=True, guessed=4)
    assert max(map(len, proposals)) >= 5
    assert fewer <= 0.5 * rounds


@pytest.mark.parametrize("trees", [False, True])
def test_exact_accepts_what_a_draft_that_knows_the_text_proposes(
    onto_bielik: Pair, trees: bool
) -> None:
    """With the shipped tables nearly every round proposes something, and nearly all of it is right.

    The rest are unstable last ids, and boundaries within characters that the draft spells whole.
    """
    tables = open_alignment(onto_bielik.target, onto_bielik.draft, otherwise=align)
    assert tables.merge_sites is not None
    accepted = proposed = rounds = empty = 0
    statistics = Statistics()
    for text in SENTENCES:
        given = {"alignment": tables, "trees": trees, "statistics": statistics}
        kept, played, proposals = play("exact", onto_bielik, text, steps=2, **given)
        accepted, rounds = accepted + kept, rounds + played
        proposed += sum(map(len, proposals))
        empty += sum(not proposal for proposal in proposals)
    assert accepted > 0.9 * proposed
    assert accepted > 1.7 * rounds
    assert empty < 0.15 * rounds
    assert 0 < statistics.counts["healed"] <= statistics.counts["taken_back"] < 0.2 * rounds


def translation_by_default(pair: Pair) -> str | None:
    options = DraftingOptions(method="draft")
    return choose_drafting(pair.target, pair.draft, options).options.translation


def test_a_shared_tokenizer_needs_no_translation(bielik: Tokenizer[Any]) -> None:
    pair = Pair(bielik, bielik)
    assert translation_by_default(pair) == "none"
    accepted, rounds, _ = play("none", pair, SENTENCES[1], steps=3)
    assert accepted == pytest.approx(3 * rounds, abs=3)


def test_a_token_that_begins_and_ends_texts_ends_them_in_a_draft(
    bielik: Tokenizer[Any], llama: Tokenizer[Any]
) -> None:
    """`<|endoftext|>` of SmolLM2's base and of Pythia: the target's BOS was proposed."""
    own = llama.vocabulary.special_ids["<|end_of_text|>"]
    roles = Roles(bos=own, eos=frozenset({own}))
    draft = Tokenizer[Any](replace(llama.spec, roles=roles))
    for target in (bielik, llama):
        assert Pair(target, draft).roles()[own] == target.vocabulary.roles.turn_end
    shared = same_tokenizer(Pair(llama, draft))._shared
    assert shared.target_of(own) == llama.vocabulary.roles.turn_end


def test_a_draft_of_the_same_tokenizer_without_bos_reads_none(bielik: Tokenizer[Any]) -> None:
    spec, bos = bielik.spec, bielik.vocabulary.roles.bos
    assert bos is not None
    specials = {token: text for token, text in spec.specials.items() if token != bos}
    draft: Tokenizer[Any] = Tokenizer(
        replace(spec, specials=specials, roles=replace(spec.roles, bos=None))
    )
    ids = [bos, *bielik.encode("Wisła jest")]
    assert same_tokenizer(Pair(bielik, draft)).read(ids) == ids[1:]


def test_no_translation_between_two_tokenizers_is_refused(onto_bielik: Pair) -> None:
    assert translation_by_default(onto_bielik) == "exact"
    with pytest.raises(IncompatibleError, match="needs one tokenizer"):
        translation_of("none", onto_bielik, [TargetId(1)])


@pytest.mark.parametrize(
    "name", ["context", "context:0", "context:²", "context:P", "exakt", "none:3", "none:", ""]
)
def test_unknown_translations_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="no translation"):
        check_translation(name)


def test_auto_takes_the_best_that_is_there() -> None:
    assert choose_method("auto", draft=True, dictionary=True, drafter=False) == "hybrid"
    assert choose_method("auto", draft=False, dictionary=False, drafter=False) == "hybrid"
