"""Draft models with the target's ids grow trees: more is accepted, and nothing else changes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from drafter_cases import penalize_last
from mlx.utils import tree_map
from random_models import VOCABULARY, generate, random_model, rounds_of
from small_tokenizers import of_merges

from tokalign.runtime.draft.neural import NeuralDrafter
from tokalign.runtime.drafting import NoDrafter
from tokalign.runtime.loop import Limits
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.rounds import Context, Round
from tokalign.runtime.translation.base import Pair
from tokalign.runtime.translation.by_token import ByToken, MappedIds, same_tokenizer
from tokalign.tables.alignment import NO_TOKEN, Intersection
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.foreign import any_ids
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

PROMPT = [TargetId(i) for i in (5, 17, 3)]
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(temperature=0.7, top_p=0.95, seed=4)}


def similar_model(noise: float) -> Any:
    """The random model with other weights, so that it is right now and then."""
    model = deepcopy(random_model())
    mx.random.seed(1)
    model.update(
        tree_map(
            lambda w: w + noise * mx.random.normal(w.shape) * mx.abs(w).mean(), model.parameters()
        )
    )
    return model


def drafted(
    draft: Any, sampling: Sampling, *, alternatives: int, pair: Pair | None = None
) -> tuple[list[int], list[Round]]:
    """What 60 tokens with this draft model are, and how they came about.

    pair: two tokenizers with the same ordinary tokens; None shares all ids.
    """
    sampler = sampling.draft_sampler
    pair = pair or Pair(any_ids(VOCABULARY), any_ids(draft.args.vocab_size))
    drafter = NeuralDrafter(
        DraftModelSession(draft),
        same_tokenizer(pair, sampler),
        num_draft_tokens=3,
        alternatives=alternatives,
    )
    session = TargetModelSession(random_model())
    return rounds_of(drafter, session, sampling, limits=Limits(max_tokens=60))


def plainly(sampling: Sampling) -> list[int]:
    return generate(NoDrafter(), sampling, tokens=60)


@pytest.mark.parametrize("alternatives", [0, 4])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_draft_model_none_of_whose_ids_the_target_has_drafts_nothing(
    sampling: Sampling, alternatives: int
) -> None:
    all_ids = np.arange(VOCABULARY, dtype=np.int32)
    text = MappedIds(Intersection(all_ids, all_ids), {})
    shared = Intersection(np.full_like(all_ids, NO_TOKEN), all_ids)
    drafter = NeuralDrafter(
        DraftModelSession(similar_model(0.5)),
        ByToken(text, shared, sampling.draft_sampler),
        alternatives=alternatives,
    )
    session, limits = TargetModelSession(random_model()), Limits(max_tokens=8)
    emitted, rounds = rounds_of(drafter, session, sampling, limits=limits)
    assert emitted == generate(NoDrafter(), sampling, tokens=8)
    assert not any(one.tree for one in rounds)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_logits_processor_is_told_no_guess(temperature: float) -> None:
    """It may keep a state, and is told what it would be told without a draft model."""
    told: list[list[int]] = []

    def note(history: mx.array, logits: mx.array) -> mx.array:
        told.append([*history.tolist()])
        return penalize_last(history, logits)

    sampling = Sampling(temperature=temperature, seed=3, processors=(note,))
    emitted, rounds = drafted(similar_model(0.5), sampling, alternatives=6)
    assert told == [[*told[0], *emitted[:count]] for count in range(len(emitted))]
    assert any(one.accepted for one in rounds)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_trees_of_shared_ids_accept_more_than_chains_and_change_nothing(name: str) -> None:
    sampling, draft = SAMPLINGS[name], similar_model(0.5)
    chain, chains = drafted(draft, sampling, alternatives=0)
    tree, trees = drafted(draft, sampling, alternatives=6)
    assert chain == tree == plainly(sampling)
    assert any(one.tree.chain_length < len(one.tree) for one in trees)
    assert all(one.draft_passes <= 3 for one in trees)
    assert len(trees) < len(chains)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_tree_of_the_target_itself_has_the_targets_choice(name: str) -> None:
    """Greedily always; when it draws, the draft can only say how probable each choice is."""
    _, rounds = drafted(random_model(), SAMPLINGS[name], alternatives=6)
    accepted = sum(one.accepted for one in rounds) / sum(3 for _ in rounds)
    assert accepted > 0.95 if name == "greedy" else accepted > 0.5


def resized(model: Any, size: int) -> Any:
    """A model with so many ids; where they are more, the best ones are among the new."""
    model = deepcopy(model)
    kept = min(size, VOCABULARY)
    model.args.vocab_size = size
    embeddings, head = mx.random.normal((size, 32)), 3 * mx.random.normal((size, 32))
    embeddings[:kept] = model.model.embed_tokens.weight[:kept]
    head[:kept] = model.lm_head.weight[:kept]
    model.model.embed_tokens.weight, model.lm_head.weight = embeddings, head
    return model


@pytest.mark.parametrize("alternatives", [0, 6])
@pytest.mark.parametrize("size", [VOCABULARY - 40, VOCABULARY + 40])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_only_ids_that_both_models_have_are_proposed(
    name: str, size: int, alternatives: int
) -> None:
    """Models of one family are padded to different numbers of ids."""
    sampling = SAMPLINGS[name]
    emitted, rounds = drafted(resized(random_model(), size), sampling, alternatives=alternatives)
    assert emitted == plainly(sampling)
    assert len(rounds) < 50
    assert max(max(one.tree.ids, default=0) for one in rounds) < min(size, VOCABULARY)


def letters_and(specials: list[str]) -> Tokenizer[Any]:
    """A tokenizer of 80 letters, followed by special tokens of these spellings."""
    letters = [bytes([32 + i]) for i in range(80)]
    tokens = (*letters, *[b""] * len(specials))
    spelled = dict(enumerate(specials, len(letters)))
    return of_merges(b"".join(letters), [], tokens=tokens, specials=spelled)


@pytest.mark.parametrize("alternatives", [0, 6])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_special_tokens_that_the_target_lacks_are_not_proposed(
    name: str, alternatives: int
) -> None:
    """The two tokenizers have ten special tokens in common, which stand elsewhere."""
    sampling = SAMPLINGS[name]
    ours = [f"<{i}>" for i in range(16)]
    theirs = [f"<{i}>" for i in range(6, 32)]
    pair = Pair(letters_and(ours), letters_and(theirs))
    draft = resized(random_model(), 128)
    emitted, rounds = drafted(draft, sampling, alternatives=alternatives, pair=pair)
    assert emitted == plainly(sampling)
    assert {token for one in rounds for token in one.tree.ids} <= {*range(80), *range(86, 96)}
    assert any(one.tree for one in rounds)


def test_a_draft_has_all_that_the_passes_found_and_a_proposal_the_most_probable_of_it() -> None:
    """A hybrid chooses among ids that the draft model alone would not propose."""

    def drafter() -> NeuralDrafter:
        session = DraftModelSession(similar_model(0.5))
        whole = same_tokenizer(Pair(any_ids(VOCABULARY), any_ids(VOCABULARY)))
        return NeuralDrafter(session, whole, num_draft_tokens=3, alternatives=2)

    found = drafter().draft(Context(PROMPT), steps=3, limit=8).tree
    proposal = drafter().propose(Context(PROMPT), 8).tree
    assert 3 <= len(proposal) <= 5 < len(found)
    assert proposal == found.most_probable(len(proposal), least=0.0, depth=8, chain=3)


def test_one_pass_goes_on_after_what_others_expect() -> None:
    coming = [TargetId(token) for token in plainly(Sampling())[:5]]
    whole = same_tokenizer(Pair(any_ids(VOCABULARY), any_ids(VOCABULARY)))
    drafter = NeuralDrafter(DraftModelSession(random_model()), whole)
    # Of three branches one comes; the last one goes on after an id that is wrong there.
    ids = (coming[1], *coming[:4], coming[2], coming[3])
    guesses = TokenTree(ids, (-1, -1, 1, 2, 3, -1, 5), ("copy",) * 7, (0.5,) * 7)
    drafter.meanwhile = lambda _: guesses
    found = drafter.draft(Context(PROMPT), steps=1, limit=8)
    assert found.draft_passes == 1
    assert [found.tree.ids[i] for i in found.tree.path_of(coming)] == coming
