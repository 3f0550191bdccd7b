"""The fields that the requests of all APIs have, mlx-lm's server's and our own, and what they make.

The fields of one API stand beside its answers. A field that is null counts as left out, and an
unknown field is ignored, as clients send many of both.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from secrets import randbits
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from tokalign.conversation.history import read_messages
from tokalign.conversation.json_calls import NAME
from tokalign.conversation.prompts import effort_variables
from tokalign.conversation.tools import function_of
from tokalign.errors import UsageError, require
from tokalign.runtime.chat import RESERVED
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.options import SamplingOptions
from tokalign.serve import Settings
from tokalign.serve.admission import unserved
from tokalign.serve.request import DEFAULT, ApiRequest, ModelNames
from tokalign.serve.structured import (
    Schema,
    StructuredOutputs,
    allowed_tools,
    grammar_of,
    tool_choice,
)
from tokalign.tokenizer.vocabulary import TargetId

MOST_CHOICES = 128
_MOST_STOP_CHARACTERS = 4096
_SEED_BITS = 32

_SMALLEST_SHARE = 1e-9
"""A `top_p` that leaves one token; much smaller ones are none in 32 bits."""

_LARGEST = 1e30
"""Largest number without a range of its own: what is computed with it stays finite in float32."""

Natural = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Limit = Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)]
"""A number that may be -1, for none."""
Share = Annotated[float, Meta(ge=0, le=1)]
Size = Annotated[float, Meta(ge=0, le=_LARGEST)]
Number = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
Logprobs = Annotated[int, Meta(ge=-1, le=20)]
Texts = str | list[str]
Object = dict[str, Any]
_PENALTIES, _WINDOWS = (
    [f"{kind}_{what}" for kind in ("repetition", "presence", "frequency")]
    for what in ("penalty", "context_size")
)
UNSERVED = {
    "functions": "give the functions as tools",
    "allowed_token_ids": "give a grammar",
    "bad_words": "give logit_bias",
    "chat_template": "start the server with --chat-template",
    "documents": "give them in chat_template_kwargs",
    "dry_multiplier": "give repetition_penalty",
    "dynatemp_range": "give temperature",
    "include_stop_str_in_output": "leave it out; the text that ends an answer is no part of it",
    "min_tokens": "leave it out",
    "mirostat": "give top_p or min_p",
    "n_probs": "give logprobs",
    "no_stop_trim": "leave it out; the text that ends an answer is no part of it",
    "logprob_token_ids": "give top_logprobs",
    "prompt_logprobs": "log-probabilities of prompts are not computed; leave it out",
    "return_token_ids": "give logprobs: each of their entries has the token's id",
    "return_tokens_as_token_ids": "each entry of logprobs has the token's id",
    "stop_regex": "give stop",
    "thinking_budget": "no thought is cut; give reasoning_effort, or max_tokens",
    "thinking_token_budget": "no thought is cut; give reasoning_effort, or max_tokens",
    "top_n_sigma": "give top_p or min_p",
    "truncate_prompt_tokens": "shorten the prompt",
    "typical_p": "give top_p or min_p",
    "use_beam_search": "leave it out",
}
"""OpenAI's older field, and vLLM's, SGLang's, llama.cpp's and Qwen's that would change the answer,
and what to do."""
OFF: Sequence[object] = (0, -1, "", [], {})
"""Values that ask for nothing, False among them, of a field that is not in `OTHERWISE_OFF`."""
OTHERWISE_OFF: Mapping[str, Sequence[object]] = {
    "add_special_tokens": (True,),
    "prompt_logprobs": (),
    "thinking_budget": (-1,),
    "thinking_token_budget": (-1,),
    "typical_p": (1,),
}

_RESERVED = RESERVED | {"tools"}
"""Variables of the template that have a field of their own."""


class Extra(Struct, kw_only=True):
    """Our own field `tokalign`. sources: whether the answer says who proposed each token."""

    sources: bool | None = False


class Common(Struct, kw_only=True):
    """What every API takes. Limits and filters that are off are given as 0 or -1.

    limits: the fields that say how long an answer may be, and the first that is there counts.
    stops: the field with the texts that end it. unserved: fields that are refused unless they ask
    for nothing, with what to give instead.
    """

    limits: ClassVar[Sequence[str]] = ("n_predict", "max_tokens")
    stops: ClassVar[str] = "stop"
    unserved: ClassVar[Mapping[str, str]] = UNSERVED

    model: str = DEFAULT
    draft_model: str = DEFAULT
    adapters: str = DEFAULT
    stream: bool = False
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] = 1
    temperature: Size | UnsetType = UNSET
    top_p: Share | UnsetType = UNSET
    top_k: Limit | UnsetType = UNSET
    min_p: Share | UnsetType = UNSET
    xtc_probability: Share | UnsetType = UNSET
    xtc_threshold: Annotated[float, Meta(ge=0, le=0.5)] | UnsetType = UNSET
    seed: int | None = None
    logit_bias: dict[int, Number] = {}
    repetition_penalty: Annotated[float, Meta(ge=-1, le=_LARGEST)] = 0.0
    repetition_context_size: Natural = 20
    presence_penalty: Number = 0.0
    presence_context_size: Natural = 20
    frequency_penalty: Number = 0.0
    frequency_context_size: Natural = 20
    max_tokens: int | None = None
    n_predict: int | None = None  # llama.cpp's names, which count there where both are given
    repeat_penalty: Annotated[float, Meta(ge=-1, le=_LARGEST)] | UnsetType = UNSET
    repeat_last_n: Limit | UnsetType = UNSET
    num_draft_tokens: Natural | UnsetType = UNSET
    logprobs: bool | Logprobs = False
    top_logprobs: Logprobs = 0
    stop: Texts = []
    stop_token_ids: list[Natural] = []
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    chat_template_kwargs: Object = {}
    reasoning: Any = None  # of responses, and in chats Ollama's
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    thinking: Object = {}
    prediction: Any = None
    tokalign: Extra = msgspec.field(default_factory=Extra)
    response_format: Any = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    guided_choice: list[str] | None = None
    structured_outputs: StructuredOutputs = msgspec.field(default_factory=StructuredOutputs)
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None
    json_schema: Schema | None = None
    best_of: int | None = None
    return_progress: bool = False

    @abstractmethod
    def requests(self, settings: Settings, api_key: str) -> list[ApiRequest]:
        """One request for each answer. Raises: Refusal, UsageError."""

    @property
    def formats(self) -> Object:
        """Forms of an answer as `response_format` has them, by their paths in the request."""
        return {"response_format": self.response_format}

    @property
    def _effort(self) -> Object:
        """Variables of the template that say whether and how much to think."""
        kind, effort = self.thinking.get("type"), self.reasoning_effort
        thinks = self.enable_thinking if kind is None else kind != "disabled"
        match self.reasoning:
            case {"effort": str(given)}:
                effort = given
        return effort_variables(effort, thinks)

    @property
    def _penalties(self) -> Object:
        """As of `ApiRequest`. A factor of 1, the default of others, needs no processor. llama.cpp's
        window is that of every penalty; 0 is none, and -1 the whole text."""
        made = {name: getattr(self, name) for name in (*_PENALTIES, *_WINDOWS)}
        factor = self.repetition_penalty if self.repeat_penalty is UNSET else self.repeat_penalty
        made["repetition_penalty"] = factor if factor > 0 and factor != 1 else 0.0
        if self.repeat_last_n is not UNSET:
            made |= dict.fromkeys(_WINDOWS, self.repeat_last_n % (1 << 31))
        return {} if self.repeat_last_n == 0 else made

    def _request(self, settings: Settings, api_key: str, **more: Any) -> ApiRequest:
        if self.best_of is not None and self.best_of != self.n:
            raise unserved("best_of", "every answer that is made is returned; give n")
        if self.structured_outputs.structural_tag:
            raise unserved("structured_outputs.structural_tag", "give tools, or a grammar")
        if reserved := _RESERVED & self.chat_template_kwargs.keys():
            names = ", ".join(sorted(reserved))
            raise UsageError(f"chat_template_kwargs may not have {names}; leave them out")
        given = {name: getattr(self, name) for name in self.limits}
        limit, drafts = settings.max_tokens, self.num_draft_tokens
        for name, value in reversed(given.items()):
            fits = value is None or value > 0 or value == -1
            require(fits, f"{name} has to be at least 1, or -1 for no limit, not {{}}", value)
            limit = limit if value is None else value
        own = self.chat_template_kwargs
        wants_logprobs = self.logprobs or self.top_logprobs > 0
        return ApiRequest(
            models=ModelNames(self.model, self.draft_model, self.adapters),
            sampling=self._sampling(settings),
            logit_bias=self.logit_bias,
            penalties=self._penalties,
            template_variables={**settings.chat_template_args, **own},
            effort={name: own.get(name, value) for name, value in self._effort.items()},
            stop_texts=_stop_texts(self.stops, getattr(self, self.stops)),
            stop_token_ids=frozenset(map(TargetId, self.stop_token_ids)),
            ignore_eos=self.ignore_eos,
            skips_specials=self.skip_special_tokens,
            max_tokens=None if limit == -1 else limit,
            num_draft_tokens=settings.drafting.num_draft_tokens if drafts is UNSET else drafts,
            top_logprobs=max(0, self.top_logprobs) if wants_logprobs else None,
            prediction=_predicted(self.prediction),
            grammar=grammar_of(self),
            api_key=api_key,
            **more,
        )

    def _chat(
        self,
        settings: Settings,
        api_key: str,
        *,
        messages: Iterable[tuple[str, Object]],
        tools: Sequence[tuple[str, Object | None]],
        choice: Any,
        several: bool | None,
    ) -> list[ApiRequest]:
        """Answers to a chat. messages, tools, choice: as chat completions have them, the first two
        with their paths in the request; None for a tool that is no function."""
        untold = [path for path, tool in tools if tool is None]
        functions = [(path, tool) for path, tool in tools if tool is not None]
        told, choice = allowed_tools(functions, choice)
        told, forced = [] if choice == "none" else told, tool_choice(choice)
        _require_functions(told)
        strict = [path for path, tool in told if tool["function"].get("strict") is True]
        ignored = [*untold, *(f"{path}.strict" for path in strict if forced is None)]
        if self.thinking.get("budget_tokens") is not None:
            ignored.append("thinking.budget_tokens")
        request = self._request(
            settings,
            api_key,
            messages=read_messages(messages),
            tools=tuple(tool for _, tool in told),
            tool_choice=forced,
            several_calls=several,
            not_enforced=tuple(ignored),
        )
        return repeated(request, self.n)

    def _sampling(self, settings: Settings) -> Sampling:
        chosen: dict[str, Any] = {}
        for option in fields(SamplingOptions):
            value = getattr(self, option.name)
            chosen[option.name] = getattr(settings, option.name) if value is UNSET else value
        chosen["top_k"] = max(0, chosen["top_k"])
        if self.top_p is not UNSET:  # 0 is the most probable token; mlx-lm takes it for off
            chosen["top_p"] = max(self.top_p, _SMALLEST_SHARE)
        seed = None if self.seed == -1 else self.seed
        seed = randbits(_SEED_BITS) if seed is None else seed % (1 << _SEED_BITS)
        return Sampling(seed=seed, **chosen)


def repeated(request: ApiRequest, count: int) -> list[ApiRequest]:
    """Several answers to one prompt, with seeds one after another."""
    seed = request.sampling.seed
    return [
        replace(request, sampling=replace(request.sampling, seed=seed + index))
        for index in range(count)
    ]


def _predicted(given: Any) -> str | None:
    """The text of OpenAI's `prediction`, which the answer may repeat. Other forms are ignored."""
    match given:
        case {"content": str(content)}:
            return content
        case {"content": [*parts]}:
            texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
            if all(isinstance(text, str) for text in texts):
                return "".join(str(text) for text in texts)
    return None


def _stop_texts(name: str, stop: Texts) -> tuple[str, ...]:
    texts = (stop,) if isinstance(stop, str) else tuple(stop)
    size = sum(map(len, texts))
    require(
        size <= _MOST_STOP_CHARACTERS,
        f"{name} has {{}} characters in all, but at most {_MOST_STOP_CHARACTERS} are taken",
        size,
    )
    return tuple(filter(None, texts))


def _require_functions(tools: Iterable[tuple[str, Object]]) -> None:
    """Raises: UsageError for a tool that no template takes. tools: with their paths."""
    for path, tool in tools:
        kind = tool.get("type", "function")
        remedy = "a custom tool can be given as a function with one text"
        require(kind == "function", f"{path}.type has to be 'function', not {{}}; {remedy}", kind)
        name = (function_of(tool) or {"name": ""})["name"]
        fits = bool(name) and NAME.fullmatch(name) is not None  # or its calls are not found
        remedy = "a name without spaces, quotes, brackets or , ; ="
        require(fits, f"{path} has to be a function with {remedy}")
