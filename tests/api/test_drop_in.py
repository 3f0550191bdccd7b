"""mlx-lm's functions with mlx-lm's keywords, and caches that go on from call to call."""

from __future__ import annotations

import copy
import inspect
import re
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import LRUPromptCache, make_prompt_cache
from mlx_lm.sample_utils import make_sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper
from places import DEMO
from random_models import VOCABULARY, plainly, random_model
from small_tokenizers import of_merges
from transformers import PreTrainedTokenizerFast

import tokalign
from tokalign.api.objects import as_tokenizer
from tokalign.errors import ContextLengthError, UsageError
from tokalign.installation import install_line
from tokalign.runtime.chat import encode_prompt
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import Roles

PROMPT = [5, 17, 3]

METHODS = [{"method": "plain"}, {"method": "copy"}, {"num_draft_tokens": 3, "method": "draft"}, {}]


def tokens(*given: Any, **how: Any) -> list[int]:
    return [response.token for response in tokalign.stream_generate(*given, **how)]


def begins(found: list[int], whole: list[int]) -> bool:
    """Whether an output, which a stop id may have ended, is the beginning of a longer one."""
    return found == whole[: len(found)]


@pytest.mark.parametrize("options", METHODS, ids=str)
@pytest.mark.parametrize("length", [3, 270])
def test_text_goes_on_beyond_the_model_s_positions_as_mlx_lm_s_does(
    pair: dict[str, Any], options: dict[str, Any], length: int
) -> None:
    """`generate_step` does not look at `max_position_embeddings`, here 256; nor may this one.

    Also after a prompt that is longer itself, as in a long chat with a rotating cache.
    """
    ids, count = [5 + i % 250 for i in range(length)], 270 if length < 256 else 20
    pair = {**pair, "tokenizer": without_stop_ids(pair["tokenizer"])}
    found = list(tokalign.stream_generate(prompt=ids, max_tokens=count, **pair, **options))
    assert [one.token for one in found] == plainly(pair["model"], ids, count)
    assert found[-1].finish_reason == "length"


def test_without_another_bound_the_context_length_ends_the_text(pair: dict[str, Any]) -> None:
    pair = {**pair, "tokenizer": without_stop_ids(pair["tokenizer"])}
    found = list(tokalign.stream_generate(prompt=[5, 17, 3], max_tokens=-1, **pair))
    assert len(found) == 253
    with pytest.raises(ContextLengthError):
        tokalign.generate(prompt=[5] * 256, max_tokens=-1, **pair)


def without_stop_ids(tokenizer: Any) -> Any:
    """The same tokenizer without an end of text, so that only limits end an output."""
    return Tokenizer(replace(tokenizer.spec, roles=Roles()))


def new_cache(pair: dict[str, Any]) -> list[Any]:
    return [*make_prompt_cache(pair["model"]), *make_prompt_cache(pair["draft_model"])]


@pytest.mark.parametrize(
    "name", ["load", "generate", "stream_generate", "batch_generate", "speculative_generate_step"]
)
def test_every_keyword_of_mlx_lm_is_taken(name: str) -> None:
    """Those of `generate` and `stream_generate` include what they hand on to `generate_step`."""
    module = import_module("mlx_lm.utils" if name == "load" else "mlx_lm.generate")
    ours = inspect.signature(getattr(tokalign, name)).parameters
    if name == "load":  # it hands everything on
        assert ours["kwargs"].kind is inspect.Parameter.VAR_KEYWORD
        return
    wanted = list(inspect.signature(getattr(module, name)).parameters)
    if name == "batch_generate":
        more = {*inspect.signature(module.BatchGenerator).parameters} - {"stop_tokens"}
        wanted += sorted(more - {*wanted})
    elif name != "speculative_generate_step":
        wanted += inspect.signature(module.generate_step).parameters
        wanted += inspect.signature(module.speculative_generate_step).parameters
        ours = {**ours, **inspect.signature(tokalign.stream_generate).parameters}
    assert set(wanted) - {"kwargs"} <= set(ours)
    order = [key for key in wanted if key in ours][:5]
    assert [key for key in ours if key in order] == order, "positional arguments keep their places"


@pytest.mark.parametrize("name", ["stream_generate", "speculative_generate_step"])
def test_a_type_checker_lets_a_stream_be_closed_as_mlx_lm_s(name: str) -> None:
    assert inspect.signature(getattr(tokalign, name)).return_annotation.startswith("Generator[")


@pytest.mark.parametrize("options", METHODS, ids=str)
def test_a_cache_goes_on_from_call_to_call(pair: dict[str, Any], options: dict[str, Any]) -> None:
    """Also across two tokenizers: each call is given only what is new. Every other one is left
    early by its caller, who finds what it got in the cache."""
    draw, cache, text = Random(3), new_cache(pair), list[int]()
    for taken in (12, 5, 12, 5):
        new = [draw.randrange(1, 300) for _ in range(draw.randint(1, 40))]
        text += new
        how = {"max_tokens": 12, "prompt_cache": cache, **pair, **options}
        stream = tokalign.stream_generate(prompt=new, **how)
        found = list(islice(stream, taken))
        stream.close()  # type: ignore[attr-defined]
        assert begins([one.token for one in found], plainly(pair["model"], text, 12))
        assert found[0].prompt_tokens == len(new)
        text += [response.token for response in found]
        layers = len(pair["model"].layers)
        assert {layer.offset for layer in cache[:layers]} == {len(text)}


SAMPLINGS = [Sampling(), Sampling(temperature=0.8, seed=3)]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("tokenizers", ["two tokenizers", "one tokenizer"])
def test_a_cache_goes_on_after_a_prompt_of_which_a_draft_model_reads_a_part(
    pair: dict[str, Any], tokenizers: str, sampling: Sampling
) -> None:
    """The draft model's cache holds none then, or all where mlx-lm would trim both alike."""
    if is_one := tokenizers == "one tokenizer":
        shared = of_merges(bytes(range(VOCABULARY)), [])
        pair = {"draft_tokenizer": shared, "draft_model": random_model(1)}
        pair |= {"tokenizer": shared, "model": random_model()}
    draw, cache, text = Random(3), new_cache(pair), list[int]()
    drafting = {"method": "draft", "num_draft_tokens": 3}
    how: dict[str, Any] = {"max_tokens": 8, "sampling": sampling, **pair}
    for count in (600, 20):
        new = [draw.randrange(1, VOCABULARY) for _ in range(count)]
        text += new
        stream = tokalign.stream_generate(prompt=new, prompt_cache=cache, **how, **drafting)
        found = [(response.token, cache[-1].offset) for response in stream]
        plain = tokens(prompt=text, method="plain", **how)
        assert [token for token, _ in found] == plain
        text += plain
        assert cache[0].offset == len(text)
        if is_one:
            assert cache[-1].offset == len(text)
        else:
            assert 132 <= max(read for _, read in found) < 256
            assert cache[-1].offset == 0


@pytest.mark.parametrize("read", [0, 16, 32])
def test_a_prompt_that_is_cancelled_leaves_what_was_read(pair: dict[str, Any], read: int) -> None:
    def cancel(done: int, _: int) -> None:
        if done >= read:
            raise TimeoutError

    cache, ids = new_cache(pair), [1 + i % 90 for i in range(60)]
    how = {"prompt_cache": cache, "prefill_step_size": 16, "max_tokens": 8, **pair}
    with pytest.raises(TimeoutError):
        tokens(prompt=ids, prompt_progress_callback=cancel, **how)
    assert cache[0].offset == read
    assert begins(tokens(prompt=ids[read:], **how), plainly(pair["model"], ids, 8))


def test_mlx_lms_store_of_caches_keeps_both_contexts(pair: dict[str, Any]) -> None:
    """It copies caches and trims both models' layers by the target's ids."""
    store, key, how = LRUPromptCache(), "model", {"max_tokens": 9, **pair}
    first = [5, 6, 7, 8, 9, 10, 11, 12]
    cache = new_cache(pair)
    found = tokens(prompt=first, prompt_cache=cache, **how)
    store.insert_cache(key, [*first, *found], cache)
    for edited in ([*first, *found[:4], 33, 34], [*first[:5], 44], [*first, *found, 55]):
        again, rest = store.fetch_nearest_cache(key, edited)
        assert len(rest) < len(edited)
        got = tokens(prompt=rest, prompt_cache=copy.deepcopy(again), **how)
        assert begins(got, plainly(pair["model"], edited, 9))


@pytest.mark.parametrize(("length", "step"), [(3, 32), (80, 32), (25, 5)])
def test_the_progress_of_the_prompt_is_mlx_lms(
    pair: dict[str, Any], length: int, step: int
) -> None:
    ours: list[tuple[int, int]] = []
    theirs: list[tuple[int, int]] = []
    model, ids = pair["model"], [1 + i % 90 for i in range(length)]
    how = {"max_tokens": 2, "prefill_step_size": step}
    told: Any = {"prompt_progress_callback": lambda *done: ours.append(done)}
    tokens(model, pair["tokenizer"], ids, **how, **told)
    told = {"prompt_progress_callback": lambda *done: theirs.append(done)}
    list(generate_step(mx.array(ids), model, **how, **told))
    assert (ours[0], ours[-1]) == (theirs[0], theirs[-1])
    if length == 3:
        assert ours == [(0, 3), (3, 3)], "a prompt that fits a step may be read in one pass"
    else:
        assert ours == theirs


@pytest.mark.parametrize("options", METHODS, ids=str)
@pytest.mark.parametrize("with_ids", [True, False])
def test_embeddings_take_the_place_of_ids(
    pair: dict[str, Any], options: dict[str, Any], with_ids: bool
) -> None:
    model, ids = pair["model"], [3 + i % 60 for i in range(50)]
    how = {"max_tokens": 10, "input_embeddings": model.model.embed_tokens(mx.array(ids)) + 0.3}
    expected = [token for token, _ in generate_step(mx.array(ids), model, **how)]
    given = ids if with_ids else []
    found = tokens(prompt=given, prefill_step_size=16, **how, **pair, **options)
    assert begins(found, expected)
    assert not begins(found, plainly(model, ids, 10))


def test_tokenizers_that_exist_in_memory_only(models: dict[str, str]) -> None:
    """transformers' and mlx-lm's, and one that has got a token since it was loaded."""
    own: Tokenizer[Any] = read_tokenizer(Path(models["target"]))
    loaded = PreTrainedTokenizerFast.from_pretrained(models["target"])
    assert as_tokenizer(loaded).fingerprint == own.fingerprint
    bare = PreTrainedTokenizerFast(tokenizer_object=loaded.backend_tokenizer, eos_token="</s>")
    assert as_tokenizer(bare).encode("Zażółć") == own.encode("Zażółć")
    wrapped = TokenizerWrapper(bare)
    assert as_tokenizer(wrapped) is as_tokenizer(wrapped), "it is read once"
    assert as_tokenizer(wrapped).encode("gęślą jaźń") == own.encode("gęślą jaźń")
    loaded.add_special_tokens({"additional_special_tokens": ["<nowy>"]})
    grown = as_tokenizer(PreTrainedTokenizerFast(tokenizer_object=loaded.backend_tokenizer))
    assert grown.encode("<nowy>", specials=True) == [len(own.vocabulary)]
    with pytest.raises(UsageError, match="cannot tell which tokenizer an object is"):
        as_tokenizer(object())


def test_tokens_that_are_added_after_a_call_count_in_the_next_one() -> None:
    _, tokenizer = mlx_lm.load(str(DEMO / "target"))
    before = as_tokenizer(tokenizer)
    assert as_tokenizer(tokenizer) is before
    tokenizer._tokenizer.add_tokens(["<nowy>"], special_tokens=True)
    after = as_tokenizer(tokenizer)
    assert len(after.vocabulary) == len(before.vocabulary) + 1
    assert as_tokenizer(tokenizer) is after


def changed(name: str) -> tuple[Any, Any]:
    """The demo's target, and its tokenizer with what its files do not say."""
    options = {
        "loaded without BOS": {"add_bos_token": False},
        "loaded with EOS": {"add_eos_token": True},
        "loaded with another end": {"eos_token": "na"},
    }
    model, tokenizer = tokalign.load(str(DEMO / "target"), tokenizer_config=options.get(name, {}))
    if name == "told to leave BOS out":
        tokenizer._tokenizer.add_bos_token = False
    elif name == "with a special token of its vocabulary":
        tokenizer._tokenizer.add_tokens(["na"], special_tokens=True)
    return model, tokenizer


@pytest.mark.parametrize(
    "name",
    [
        *("loaded without BOS", "loaded with EOS", "loaded with another end"),
        *("told to leave BOS out", "with a special token of its vocabulary"),
    ],
)
def test_a_prompt_is_encoded_by_the_tokenizer_that_was_given(name: str) -> None:
    """Not by the files that it was loaded from, which know nothing of options and changes."""
    model, tokenizer = changed(name)
    text = "kolana i rana"

    def prompt_of(stream: Any, **how: Any) -> list[int]:
        seen: list[list[int]] = []

        def see(tokens: Any, logits: Any) -> Any:
            seen.append(tokens.tolist() if hasattr(tokens, "tolist") else [*tokens])
            return logits

        list(stream(model, tokenizer, text, max_tokens=1, logits_processors=[see], **how))
        return seen[0]

    expected = prompt_of(mlx_lm.stream_generate)
    assert prompt_of(tokalign.stream_generate) == expected
    assert expected != encode_prompt(read_tokenizer(DEMO / "target"), text)
    together = tokalign.batch_generate(model, tokenizer, [text, expected], max_tokens=4)
    assert together.texts[0] == together.texts[1]


def test_load_notes_the_tokenizer_of_a_model(models: dict[str, str]) -> None:
    target, (draft, _) = (tokalign.load(models[name]) for name in ("target", "draft"))
    text = tokalign.generate(*target, "Zażółć", max_tokens=12, draft_model=draft)
    assert text == tokalign.generate(*target, "Zażółć", max_tokens=12, method="plain")


@pytest.mark.parametrize("name", ["generate", "batch_generate"])
def test_without_mlx_its_names_say_what_to_install(name: str) -> None:
    script = f"import sys; sys.modules.update(mlx=None, mlx_lm=None); from tokalign import {name}"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: tokalign.{name} runs models with mlx")
    assert last.endswith(f"install it with: {install_line(extra='mlx')}")


@pytest.mark.parametrize(("method", "max_tokens"), [("auto", 1), ("draft", 1), ("draft", 7)])
def test_the_same_tokens_count_as_drafted(method: str, max_tokens: int) -> None:
    """With a given number of draft tokens, the last token of the output may be one of them."""
    model, tokenizer = tokalign.load(str(DEMO / "target"))
    given = {"max_tokens": max_tokens, "draft_model": model, "num_draft_tokens": 2}
    found = tokalign.stream_generate(model, tokenizer, "Wisła jest", method=method, **given)
    theirs = mlx_lm.stream_generate(model, tokenizer, "Wisła jest", **given)
    assert [r.from_draft for r in found] == [r.from_draft for r in theirs]


def test_generate_prints_what_mlx_lm_prints(capsys: pytest.CaptureFixture[str]) -> None:
    model, tokenizer = tokalign.load(str(DEMO / "target"))
    printed = []
    for generate in (mlx_lm.generate, tokalign.generate):
        generate(model, tokenizer, "Wisła jest", verbose=True, max_tokens=6)
        printed.append(re.sub(r"\d+\.\d+", "(measured)", capsys.readouterr().out))
    assert printed[1] == printed[0]
    assert "Generation: 6 tokens" in printed[0]
    for generate in (mlx_lm.generate, tokalign.generate):
        ends = forcing([tokenizer.eos_token_id] * 3)
        generate(model, tokenizer, PROMPT, verbose=True, logits_processors=[ends], max_tokens=2)
    separator, nothing = "=" * 10, "No text generated for this prompt"
    assert capsys.readouterr().out == f"{separator}\n\n{separator}\n{nothing}\n" * 2


def test_a_stream_of_mlx_is_used(pair: dict[str, Any]) -> None:
    stream = mx.new_stream(mx.default_device())
    found = tokalign.stream_generate(prompt=[5, 6], max_tokens=6, stream=stream, **pair)
    assert [r.token for r in found] == plainly(pair["model"], [5, 6], 6)
    assert mx.default_stream(mx.default_device()) != stream


def test_a_translation_that_has_no_tokenizers_is_refused() -> None:
    model = random_model()
    steps = tokalign.speculative_generate_step([1, 2], model, model, translation="exact")
    with pytest.raises(UsageError, match="translation exact needs the tokenizers"):
        next(steps)


def forcing(ids: list[int]) -> Any:
    """A logits processor after which the output begins with these ids."""

    def force(tokens: Any, logits: Any) -> Any:
        place = len(tokens) - len(PROMPT)
        return mx.where(mx.arange(logits.shape[-1]) == ids[place], 0.0, -mx.inf)[None]

    return force


@pytest.mark.parametrize("options", [{"method": "plain"}, {"method": "copy"}, {}], ids=str)
@pytest.mark.parametrize("kind", ["mlx-lm's", "transformers'", "mlx-lm's, with another end"])
def test_the_tokenizer_alone_decides_where_an_output_ends(
    kind: str, options: dict[str, Any]
) -> None:
    """Not the roles that its tokens have, nor the configuration of the model in its folder."""
    model, tokenizer = mlx_lm.load(str(DEMO / "target"))
    tokenizer.eos_token_ids = {9} if kind.endswith("another end") else {4}
    given = tokenizer._tokenizer if kind == "transformers'" else tokenizer
    processors = [forcing([7, 2, 9, 2, 300, 4, 8, 9, 9, 9])]
    expected, found = (
        [
            (r.token, r.text, r.finish_reason)
            for r in stream(model, given, PROMPT, max_tokens=8, logits_processors=processors, **how)
        ]
        for stream, how in ((mlx_lm.stream_generate, {}), (tokalign.stream_generate, options))
    )
    assert found == expected
    assert found[-1][0] == (9 if kind.endswith("another end") else 4)


def test_a_seed_holds_while_a_drafter_is_loaded() -> None:
    """Its layers draw weights when they are made."""
    model, tokenizer = tokalign.load(str(DEMO / "target"))
    how: dict[str, Any] = {"max_tokens": 12, "sampler": make_sampler(temp=1.0)}
    mx.random.seed(3)
    expected = [one.token for one in mlx_lm.stream_generate(model, tokenizer, PROMPT, **how)]
    mx.random.seed(3)
    assert tokens(model, tokenizer, PROMPT, drafter=DEMO / "drafter", **how) == expected
