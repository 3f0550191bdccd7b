"""The server: mlx-lm's HTTP API and flags, and two APIs more, decoded by tokalign.

It is built on `mlx_lm.server`, which renders prompts, finds thoughts and tool calls in texts, and
keeps contexts. What is new here:

    admission.py     refusals; who may ask, and how much
    body.py          the fields of a request, checked
    structured.py    what an answer has to match
    answer.py        an answer as blocks that grow, and how every API writes them
    completions.py   chat completions and completions; responses.py, messages.py: the other APIs
    metrics.py       counts for `/metrics`
    page.py          the chat page at `/`, which is page.html
    handler.py       one HTTP request: paths, statuses, streams
    models.py        the models that are served
    job.py           one request while it is answered: its ids, its text, its queue
    contexts.py      caches and outputs that later requests go on with
    decoding.py      a request alone: its own decoder, rounds of drafting and verification; several
                     together: mlx-lm's batches
    scheduler.py     the loop that starts, moves and ends requests
    server.py        sockets, signals, start and end

Only the scheduler's thread touches models and caches. `Settings`, below, is what the server is
told at its start. Read next: `scheduler.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tokalign.runtime.methods import DraftingOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Models, defaults of requests, and what clients may do.

    model, draft_model: names as `resolve_model` takes them; no model means that every request has
    to name one. drafting: how to draft where a request does not say. dtype: as in `load_models`.
    extra_eos_token: further tokens that end an answer. max_kv_size: as in `CacheOptions`.
    prompt_cache_bytes: None for no bound besides `prompt_cache_size`, a number of caches.
    api_keys: one of them has to come with every request; none are needed if there are none.
    allowed_origins: of web pages that may ask; "*" allows all of them.
    max_body_size: bytes of a request at most. read_timeout: seconds for sending one, and for taking
    a part of the answer. answer_timeout: seconds after which an answer ends with finish reason
    "length". max_waiting: requests that may wait for their turn; one more is refused with status
    429. max_connections: open at the same time; one more is closed at once.
    The rest is as in `mlx_lm.server`; `pipeline` is there because its model provider reads it.
    """

    model: str | None = None
    draft_model: str | None = None
    adapter_path: str | None = None
    drafting: DraftingOptions = field(default_factory=DraftingOptions)
    dtype: str | None = None
    trust_remote_code: bool = False
    chat_template: str = ""
    use_default_chat_template: bool = False
    chat_template_args: Mapping[str, object] = field(default_factory=dict)
    temp: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    extra_eos_token: tuple[str, ...] = ()
    max_tokens: int = 512
    decode_concurrency: int = 32
    prompt_concurrency: int = 8
    prefill_step_size: int = 2048
    prompt_cache_size: int = 10
    prompt_cache_bytes: int | None = None
    max_kv_size: int | None = None
    kv_bits: int | None = None
    kv_group_size: int = 64
    quantized_kv_start: int = 5000
    allowed_origins: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    allow_model_switching: bool = False
    reuse_outputs: bool = True
    max_body_size: int = 8 << 20
    read_timeout: float = 30.0
    answer_timeout: float = 1800.0
    max_waiting: int = 128
    max_connections: int = 512
    pipeline: bool = False

    @property
    def num_draft_tokens(self) -> int | None:
        """What mlx-lm's handler takes where a request gives no number."""
        return self.drafting.num_draft_tokens
