"""mlx-lm's functions that give text: `load`, `stream_generate` and `generate`.

`Grammar` is an argument of theirs, and `clear_session` ends a session that they were given.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from importlib import import_module
from inspect import Parameter, signature
from typing import Any, TypeVar

from mlx_lm.generate import BatchStats
from mlx_lm.generate import GenerationResponse as MlxLmResponse

from tokalign.api.assemble import assemble
from tokalign.api.call import Call
from tokalign.api.objects import (
    AnyTokenizer,
    as_tokenizer,
    check_draft_model,
    check_stream,
    detokenizer_of,
    drops_first_space,
    encode,
    language_model,
    make_sampler,
    remember_tokenizer,
    tokenizer_of,
)
from tokalign.errors import UsageError, require_callable, require_integer, require_kind, shown
from tokalign.names.aliases import check_name
from tokalign.names.registry import resolve_model
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.grammar import Grammar as Grammar
from tokalign.runtime.mlx.machine import peak_memory
from tokalign.runtime.mlx.sampling import LogitsProcessor, Sampling
from tokalign.runtime.mlx.weights import vocabulary_size
from tokalign.runtime.options import ALL_ENDS, MLX_LM_ENDS, CacheOptions, DraftingOptions, take
from tokalign.runtime.remembered import clear_session as clear_session
from tokalign.runtime.remembered import session_store
from tokalign.runtime.rounds import Array
from tokalign.tables.finding import Note, no_note
from tokalign.tokenizer.vocabulary import TargetId

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(kw_only=True)
class GenerationResponse(MlxLmResponse):  # type: ignore[misc]
    """mlx-lm's response, and `source`: the drafter of the token, or "target". text: what can be
    printed now; the last response has the rest. logprobs: f[vocabulary], lazy."""

    source: str


def load(path_or_hf_repo: str, *args: Any, ends: str = ALL_ENDS, **kwargs: Any) -> Any:
    """mlx-lm's function of this name, which also notes the model's tokenizer for `stream_generate`.

    path_or_hf_repo: an alias of `tokalign models`, too.
    ends: "all" ends an output at mlx-lm's `eos_token_ids` and at every other token that ends a text
        or a turn, as the command line does; "mlx-lm" at the former only.
    Raises: UsageError for another value of `ends`, or a name that cannot stand for a model;
    MissingAssetError for a missing folder, or an alias whose model cannot be had; else as mlx-lm.
    """
    if ends not in (ALL_ENDS, MLX_LM_ENDS):
        raise UsageError(f"ends has to be {ALL_ENDS!r} or {MLX_LM_ENDS!r}, not {shown(ends)}")
    if "/" not in check_name(str(path_or_hf_repo)):
        path_or_hf_repo = str(resolve_model(str(path_or_hf_repo)).folder)
    loaded = import_module("mlx_lm").load(path_or_hf_repo, *args, **kwargs)
    model, tokenizer = loaded[:2]
    if ends == ALL_ENDS:
        more = as_tokenizer(tokenizer).vocabulary.roles.eos
        tokenizer.eos_token_ids = {*tokenizer.eos_token_ids, *more}
    remember_tokenizer(model, tokenizer)
    return loaded


def shows_options(function: F) -> F:
    """Have a function's signature name the fields of both options, not its `**options`."""
    own = signature(function)
    more = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in (*fields(DraftingOptions), *fields(CacheOptions))
    ]
    shown = own.replace(parameters=[*[*own.parameters.values()][:-1], *more])
    function.__signature__ = shown  # type: ignore[attr-defined]
    return function


def take_options(function: str, given: dict[str, Any]) -> tuple[DraftingOptions, CacheOptions]:
    """What a function was given as its `**options`. Raises: TypeError for a name of none."""
    drafting, cache = take(DraftingOptions, given), take(CacheOptions, given)
    for name in given:
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
    return drafting, cache


@shows_options
def stream_generate(
    model: Any,
    tokenizer: AnyTokenizer,
    prompt: str | Sequence[int],
    max_tokens: int = 256,
    draft_model: Any = None,
    stream: Any = None,
    *,
    draft_tokenizer: AnyTokenizer = None,
    draft_prompt: str | Sequence[int] | None = None,
    sampling: Sampling | None = None,
    sampler: Callable[[Array], Array] | None = None,
    logits_processors: Sequence[LogitsProcessor] | None = None,
    grammar: Grammar | None = None,
    stop: str | Sequence[str] = (),
    prompt_cache: list[Any] | None = None,
    prompt_progress_callback: Callable[[int, int], None] | None = None,
    input_embeddings: Array | None = None,
    session: str | None = None,
    note: Note = no_note,
    **options: Any,
) -> Generator[GenerationResponse, None, None]:
    """Generate the target's own text, one response per token. Drafting changes the speed.

    model: the target, an mlx-lm model.
    tokenizer: the target's: mlx-lm's or transformers' one, a path to the model's folder, or a
        tokalign `Tokenizer`. The output ends at its `eos_token_ids`, or where the files of a path
        say. Its folder is the first place where tables are looked for.
    prompt: text after the chat template was applied (special tokens spelled out), or ids.
    max_tokens: most tokens to generate, even beyond the context length of the model's
        configuration; -1 for as many as that context holds.
    draft_model: a smaller mlx-lm model to draft with.
    draft_tokenizer: the draft model's; `tokenizer` again if they share one. It may be left out for
        a model that `tokalign.load` has loaded.
    draft_prompt: the draft's own rendering of the prompt; by default it reads the target's.
    options: the fields of `DraftingOptions` (how to draft: method, translation, dictionary and
        others) and of `CacheOptions` (mlx-lm's max_kv_size, prefill_step_size, kv_bits and others).
    sampling: temperature, filters and seed, a `tokalign.Sampling`; greedy decoding by
        default.
    sampler, logits_processors: as in mlx-lm; a sampler instead of `sampling`.
    grammar: what the output has to match, such as `Grammar.json_schema({...})`.
    stop: texts before which the output ends.
    prompt_cache: the target's cache to go on with, then the draft's if there is a draft model;
        `prompt` is what follows. At the end the target's holds the prompt and every token of the
        responses, the draft's what it has read of them, if that is all. If others wrote into a
        cache, its ids are unknown; processors and drafters see what follows.
    prompt_progress_callback: called with how many ids of the prompt have been read, of how many.
    input_embeddings: f[n, dimension], read in the place of the prompt's ids, or without any ids.
    stream: of mlx, to run on.
    session: a name; later outputs may be drafted from those of the same session, until
        `clear_session(name)` or until sixteen other sessions have been used.
    note: called with one line for each thing that was found or chosen.

    Raises: UsageError for arguments that cannot be honoured, IncompatibleError for parts that do
    not fit together, BundleError for a damaged table, MissingAssetError for what is not there.
    """
    check_draft_model(
        draft_model, draft_tokenizer=draft_tokenizer, draft_prompt=draft_prompt, **options
    )
    drafting, cache = take_options("stream_generate", options)
    require_integer("max_tokens", max_tokens, least=-1)
    if max_tokens == 0:
        raise UsageError("max_tokens is 0; pass how many to generate at most, or -1 for no limit")
    require_kind("grammar", grammar, Grammar)
    require_kind("session", session, str)
    if prompt_progress_callback is not None:
        require_callable("prompt_progress_callback", prompt_progress_callback)
    require_callable("note", note)
    check_stream(stream)
    chooser = make_sampler(sampling, sampler, logits_processors)
    target: LanguageModel[TargetId] = language_model(model, tokenizer)
    draft = theirs = store = None
    if draft_model is not None:
        draft = language_model(draft_model, draft_tokenizer, "draft_")
        own = tokenizer_of(draft_model) if draft_tokenizer is None else draft_tokenizer
        theirs = None if draft_prompt is None else encode("draft_prompt", own, draft_prompt)
    if session is not None:
        store = session_store(session, target.tokenizer.fingerprint, vocabulary_size(model))
    decoder = assemble(target, draft, drafting, cache=cache, note=note)
    call = Call(
        decoder,
        encode("prompt", tokenizer, prompt),
        prompt_cache,
        draft_prompt=theirs,
        embeddings=input_embeddings,
        max_tokens=max_tokens,
        stream=stream,
        store=store,
        note=note,
        sampler=chooser,
        grammar=grammar,
        stop=stop,
        ends_with_context=max_tokens < 0,
    )
    # Under a grammar the text is what the grammar matched; mlx-lm would take a space away.
    detokenizer = None if grammar is not None else detokenizer_of(tokenizer)
    return _responses(
        call, prompt_progress_callback, detokenizer, target.stop_ids, stops=bool(stop)
    )


def generate(
    model: Any,
    tokenizer: AnyTokenizer,
    prompt: str | Sequence[int],
    verbose: bool = False,
    **kwargs: Any,
) -> str:
    """The whole text of `stream_generate`, with its keywords and errors. verbose: print the text
    while it is generated, then tokens per second and memory, as mlx-lm."""
    parts, response = [], None
    if verbose:
        print("=" * 10)
    for response in stream_generate(model, tokenizer, prompt, **kwargs):
        parts.append(response.text)
        if verbose:
            print(response.text, end="", flush=True)
    if verbose and response is not None:
        print(f"\n{'=' * 10}")
        print(totals(response) if any(parts) else "No text generated for this prompt")
    return "".join(parts)


def totals(of: GenerationResponse | BatchStats) -> str:
    """What mlx-lm prints at the end if it is verbose."""
    return (
        f"Prompt: {of.prompt_tokens} tokens, {of.prompt_tps:.3f} tokens-per-sec\n"
        f"Generation: {of.generation_tokens} tokens, {of.generation_tps:.3f} tokens-per-sec\n"
        f"Peak memory: {of.peak_memory:.3f} GB"
    )


def _responses(
    call: Call,
    report: Callable[[int, int], None] | None,
    detokenizer: Any,
    silent: frozenset[TargetId],
    *,
    stops: bool,
) -> Generator[GenerationResponse, None, None]:
    """One response per token; the last one has the finish reason and the rest of the text. report:
    as in `Call.pieces`. detokenizer: mlx-lm's; None for ours. silent: ids without text. stops:
    whether a text may end the output; only ours looks for it, and then begins as mlx-lm's."""
    statistics, prompt_tokens = call.generation.statistics, len(call.prompt)
    drops_space = stops and drops_first_space(detokenizer)
    detokenizer = None if stops else detokenizer
    with closing(call.pieces(report=report)) as pieces:
        for number, piece in enumerate(pieces, 1):
            text = piece.text if detokenizer is None else ""
            if detokenizer is not None and piece.token not in silent:
                detokenizer.add_token(piece.token)
                text = detokenizer.last_segment
            if piece.ends is not None and detokenizer is None:
                text += call.generation.rest()
            elif piece.ends is not None:
                detokenizer.finalize()
                text += detokenizer.last_segment
            if drops_space and text:
                text, drops_space = text.removeprefix(" "), False
            share = prompt_tokens / max(1, statistics.prompt_tokens)  # the rest was in the cache
            yield GenerationResponse(
                text=text,
                token=piece.token,
                logprobs=piece.logprobs,
                from_draft=piece.from_draft,
                prompt_tokens=prompt_tokens,
                prompt_tps=statistics.prompt_tokens_per_second * share,
                generation_tokens=number,
                generation_tps=statistics.tokens_per_second,
                peak_memory=peak_memory(),
                finish_reason=piece.ends,
                source=piece.source,
            )
