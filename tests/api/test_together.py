"""Several prompts at once: each text is the one that its prompt gets alone, whatever is drafted."""

from __future__ import annotations

from random import Random
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
import zoo
from places import DEMO
from random_models import plainly
from small_tokenizers import of_merges

import tokalign
from tokalign.errors import UsageError
from tokalign.runtime.batch import SharedPasses
from tokalign.runtime.mlx.sampling import Sampling

OPTIONS = [{}, {"method": "plain"}, {"method": "copy"}, {"method": "draft", "num_draft_tokens": 3}]


PROMPTS = [[5, 6, 7], [8, 9]]

PLAIN = {"method": "plain", "num_draft_tokens": None}


@pytest.fixture(scope="module")
def demo() -> dict[str, Any]:
    model, tokenizer = mlx_lm.load(str(DEMO / "target"))
    draft, theirs = mlx_lm.load(str(DEMO / "draft"))
    model.set_dtype(mx.float32)
    return {
        "model": model,
        "tokenizer": tokenizer,
        "draft_model": draft,
        "draft_tokenizer": theirs,
    }


def random_prompts(count: int, most: int = 90) -> list[list[int]]:
    draw = Random(5)
    return [[draw.randrange(5, 300) for _ in range(draw.randint(1, most))] for _ in range(count)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("sampling", [None, Sampling(temperature=0.8, seed=3)], ids=str)
def test_each_text_is_the_one_that_its_prompt_gets_alone(
    demo: dict[str, Any], options: dict[str, Any], sampling: Sampling | None
) -> None:
    """They come and go: three at once, of different lengths."""
    prompts = [*random_prompts(5), demo["tokenizer"].encode("Wisła jest")]
    lengths, how = [9, 30, 1, 22, 13, 25], {"sampling": sampling, **options}
    found = tokalign.batch_generate(
        **demo,
        prompts=prompts,
        max_tokens=lengths,
        completion_batch_size=3,
        return_token_ids=True,
        return_logprobs=True,
        **how,
    )
    for place, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        alone = list(
            tokalign.stream_generate(**demo, prompt=prompt, max_tokens=length, **how | PLAIN)
        )
        alone = [one for one in alone if one.finish_reason != "stop"]
        ids = [one.token for one in alone]
        assert found.token_ids[place] == ids
        assert found.texts[place] == demo["tokenizer"].decode(ids)
        expected = [one.logprobs[one.token].item() for one in alone]
        assert found.logprobs[place] == pytest.approx(expected, abs=1e-3)


def test_the_answer_is_that_of_mlx_lm(demo: dict[str, Any]) -> None:
    model, tokenizer = demo["model"], demo["tokenizer"]
    how = {"max_tokens": 14, "return_token_ids": True, "return_prompt_caches": True}
    prompts = random_prompts(4)
    theirs = mlx_lm.batch_generate(model, tokenizer, prompts, **how)
    ours = tokalign.batch_generate(model, tokenizer, prompts, **how)
    assert (ours.texts, ours.token_ids) == (theirs.texts, theirs.token_ids)
    assert ours.logprobs is theirs.logprobs is None
    assert ours.stats.generation_tokens == theirs.stats.generation_tokens
    assert ours.stats.generation_tps > 0
    assert ours.stats.prompt_tps > 0
    for own, other in zip(ours.caches, theirs.caches, strict=True):
        assert [layer.offset for layer in own] == [layer.offset for layer in other]
    more = {"prompt_caches": ours.caches, "return_token_ids": True, "max_tokens": 6}
    following = random_prompts(4, most=3)
    again = [tokalign.batch_generate(model, tokenizer, following, **more) for _ in range(2)]
    assert again[0].token_ids == again[1].token_ids, "copies of the caches went on"
    for place, prompt in enumerate(following):
        whole = [*prompts[place], *ours.token_ids[place], *prompt]
        ids = again[0].token_ids[place]
        assert ids == plainly(model, whole, 6)[: len(ids)]


def test_drafts_share_the_passes(demo: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer passes than ids of the longest text, and no model is asked for one prompt alone."""
    asked: list[int] = []
    whole = SharedPasses.round

    def counted(self: SharedPasses, decodings: Any) -> Any:
        asked.append(len(decodings))
        return whole(self, decodings)

    monkeypatch.setattr(SharedPasses, "round", counted)
    itself = {"draft_model": demo["model"], "draft_tokenizer": demo["tokenizer"]}
    how = {"method": "draft", "num_draft_tokens": 3, "max_tokens": 40, "return_token_ids": True}
    found = tokalign.batch_generate(**demo | itself, prompts=random_prompts(3), **how)
    longest = max(map(len, found.token_ids))
    assert asked[0] == 3
    assert found.stats.generation_steps == len(asked) < longest / 2


def test_prompts_of_a_model_that_cannot_share_passes_take_turns() -> None:
    """Such as GPT-2, whose positions are learned."""
    tokenizer = of_merges(bytes(range(32, 32 + zoo.VOCABULARY)), [])
    model, lines = zoo.zoo_model("gpt2"), list[str]()
    found = tokalign.batch_generate(
        model,
        tokenizer,
        [[5, 6, 7], [8, 9]],
        max_tokens=6,
        return_token_ids=True,
        note=lines.append,
    )
    assert "the model cannot share passes: the prompts take turns" in lines
    assert found.token_ids == [plainly(model, ids, 6) for ids in PROMPTS]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"prompts": "Wisła"}, "prompts has to be a list"),
        ({"prompts": None}, "prompts has to be a list"),
        ({"prompts": iter(["Wisła"])}, "prompts has to be a list"),
        ({"sampling": "greedy"}, "sampling has to be of type Sampling"),
        ({"prompts": [[5], []]}, r"prompts\[1\] is empty"),
        ({"prompts": [[5], [10**6]]}, r"prompts\[1\]\[0\] is 1000000"),
        ({"max_tokens": [3]}, "max_tokens has 1 items for 2 prompts"),
        ({"max_tokens": 0}, "max_tokens has to be an integer"),
        ({"prompt_caches": 5}, "prompt_caches has to be a list, one for each prompt, not 5"),
        ({"prompt_caches": []}, "prompt_caches has 0 items for 2 prompts"),
        ({"prompt_caches": [None, [3]]}, "prompt_cache has to be a list"),
        ({"completion_batch_size": 0}, "completion_batch_size has to be"),
    ],
)
def test_wrong_arguments_are_refused_before_any_pass(
    demo: dict[str, Any], wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        tokalign.batch_generate(**demo, **{"prompts": [[5], [6]], **wrong})
