"""The server: OpenAI's and Anthropic's HTTP APIs, and mlx-lm's flags, decoded by tokalign.

HTTP is Starlette's and uvicorn's, bodies are msgspec's. From the wire to the model:

    server.py        the socket, signals, start and end
    connections.py   what uvicorn's connections lack: bounds, and clients that only stop sending
    app.py           paths and statuses; admission.py: refusals, and who may ask
    page/            the chat page: page.html, page.css, its scripts, and the Markdown of answers
    body.py          the fields of a request, read by json_body.py; structured.py: its grammar
    streams.py       answers on their way to a client; answer.py: what all APIs' forms share
    completions.py   chat completions and completions; responses.py, messages.py: the other APIs
    request.py       one answer to one prompt, whichever API it came by; job.py: its way through
    waiting.py       jobs that have not been started; preparing.py: reading them, in threads
    scheduler.py     the loop that starts, advances and ends jobs; metrics.py: counts
    decoding.py      one job: reading its prompt, handing over what rounds give
    models.py        the models that are served

Only the scheduler's thread touches models and caches. Read next: `scheduler.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tokalign.runtime.options import (
    ALL_ENDS,
    CacheOptions,
    DraftingOptions,
    SamplingOptions,
    declared,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(SamplingOptions):
    """Models, defaults of requests, and what clients may do.

    model, draft_model: names as `resolve_model` takes them; without a model every request has to
    name one. dtype, ends, extra_eos_token: as in `load_models`.
    prompt_cache_bytes: None for a tenth of the machine's memory.
    max_tokens: None for as many as the context holds.
    api_keys: if there are any, every request needs one of them.
    allowed_hosts: further names of a server on this machine. allowed_origins: of web pages; "*"
    allows all. max_body_size: in bytes. answer_timeout: the finish reason is "length" then.
    max_waiting: one more is refused with status 429. max_connections: one more is closed at once.
    The rest is as in `mlx_lm.server`.
    """

    model: str | None = None
    draft_model: str | None = None
    adapter_path: str | None = None
    drafting: DraftingOptions = field(default_factory=DraftingOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    dtype: str | None = None
    trust_remote_code: bool = False
    allow_model_switching: bool = declared(False, "Load whatever model a request names.")
    max_body_size: int = declared(
        8 << 20,
        "The longest request; longer ones are refused.",
        takes="SIZE",
        shown="8M",
        rare=True,
    )
    read_timeout: float = declared(
        30.0,
        "Time for sending a request, and for taking a part of the answer.",
        takes="SECONDS",
        rare=True,
    )
    answer_timeout: float = declared(
        1800.0, "Time after which an answer ends where it is.", takes="SECONDS", rare=True
    )
    max_waiting: int = declared(
        128, "Requests that may wait; one more is refused.", least=1, rare=True
    )
    reuse_outputs: bool = declared(
        True, "Draft from earlier answers to the same API key.", rare=True
    )
    chat_template: str = declared(
        "", "A chat template in place of the model's own.", takes="TEMPLATE", rare=True
    )
    use_default_chat_template: bool = declared(
        False, "Use the tokenizer's default template if the model has none.", rare=True
    )
    chat_template_args: Mapping[str, object] = field(default_factory=dict)
    extra_eos_token: tuple[str, ...] = ()
    ends: str = ALL_ENDS
    max_tokens: int | None = declared(
        None,
        "Tokens of an answer at most, where a request says nothing. Default: as many as the "
        "context holds.",
        least=1,
    )
    decode_concurrency: int = declared(
        32, "Requests that are decoded together, if memory has room.", least=1
    )
    prompt_concurrency: int = declared(8, "Prompts that are read in turns.", least=1, rare=True)
    prompt_cache_size: int = declared(
        10, "Conversations whose contexts are kept for later requests.", least=1
    )
    prompt_cache_bytes: int | None = declared(
        None, "Bytes that kept contexts may take, such as 4GB.", takes="SIZE", rare=True
    )
    disk_cache_bytes: int | None = declared(
        None,
        "Bytes on disk for contexts that outlive the server; 0 keeps none. Default: a tenth of "
        "the free disk.",
        takes="SIZE",
        rare=True,
    )
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    max_connections: int = 512
