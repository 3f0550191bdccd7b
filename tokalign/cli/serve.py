"""`tokalign serve`: mlx-lm's server, with drafts of any tokenizer and from any source."""

from __future__ import annotations

import logging
import os
from typing import Any

import click

from tokalign.cli.command import (
    AT_LEAST_1,
    FROM_0,
    NAME,
    POSITIVE,
    SHARE,
    Command,
    FiniteRange,
    Option,
    Size,
)
from tokalign.cli.options import CACHE, DRAFTING, EXTRA_EOS_TOKEN, MODEL, read_variables
from tokalign.cli.output import asked, note, print_json
from tokalign.errors import UsageError
from tokalign.runtime.methods import DraftingOptions, take

KEY_VARIABLE = "TOKALIGN_API_KEY"
"""An environment variable with one API key; a command line is visible to other users."""


def _read_names(_context: click.Context, _option: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(",") if name.strip())


_MODEL = Option(
    "--target --model model", "The model: an alias, a folder or a Hub repository.", type=NAME
)
_WHERE_NONE = "Where a request gives none; 0 is off."
_OPTIONS = (
    _MODEL,
    *MODEL[1:],
    *DRAFTING,
    Option("--host", "Address to listen on.", default="127.0.0.1"),
    Option("--port", "0 is any free port.", type=click.IntRange(0, 65535), default=8080),
    Option(
        "--api-key api_keys",
        f"Answer only requests with this key; safer in ${KEY_VARIABLE}.",
        multiple=True,
        metavar="KEY",
    ),
    Option(
        "--allowed-origins",
        "Web origins whose pages may send requests, separated by commas; * allows all. "
        "Default: none.",
        metavar="ORIGINS",
        default="",
        callback=_read_names,
        rare=True,
    ),
    Option("--allow-model-switching", "Load whatever model a request names.", is_flag=True),
    Option(
        "--max-body-size",
        "The longest request; longer ones are refused.",
        type=Size(),
        default="8M",
        rare=True,
    ),
    Option(
        "--read-timeout",
        "Time for sending a request, and for taking a part of the answer.",
        type=POSITIVE,
        default=30.0,
        metavar="SECONDS",
        rare=True,
    ),
    Option(
        "--answer-timeout",
        "Time after which an answer ends where it is.",
        type=POSITIVE,
        default=1800.0,
        metavar="SECONDS",
        rare=True,
    ),
    Option(
        "--max-waiting",
        "Requests that may wait; one more is refused.",
        type=AT_LEAST_1,
        default=128,
        rare=True,
    ),
    Option(
        "--reuse-outputs/--no-reuse-outputs",
        "Draft from earlier answers to the same API key.",
        default=True,
        rare=True,
    ),
    Option(
        "--chat-template",
        "A chat template in place of the model's own.",
        metavar="TEMPLATE",
        default="",
        rare=True,
    ),
    Option(
        "--use-default-chat-template",
        "Use the tokenizer's default template if the model has none.",
        is_flag=True,
        excludes="--chat-template",
        rare=True,
    ),
    Option(
        "--chat-template-args --chat-template-config",
        "Variables of the chat template, such as enable_thinking.",
        metavar="JSON",
        default="{}",
        callback=read_variables,
        rare=True,
    ),
    Option(
        "--temp",
        "Temperature where a request gives none; 0 is greedy.",
        type=FiniteRange(min=0),
        default=0.0,
    ),
    Option("--top-p", "Where a request gives none; 1 is off.", type=SHARE, default=1.0),
    Option("--top-k", _WHERE_NONE, type=FROM_0, default=0),
    Option("--min-p", _WHERE_NONE, type=SHARE, default=0.0),
    Option("--xtc-probability", _WHERE_NONE, type=SHARE, default=0.0, rare=True),
    Option(
        "--xtc-threshold",
        "Where a request gives none.",
        type=FiniteRange(0, 0.5),
        default=0.1,
        rare=True,
    ),
    EXTRA_EOS_TOKEN,
    Option(
        "--max-tokens",
        "Tokens of an answer at most, where a request says nothing.",
        type=AT_LEAST_1,
        default=512,
    ),
    Option(
        "--decode-concurrency", "Requests that are decoded together.", type=AT_LEAST_1, default=32
    ),
    Option(
        "--prompt-concurrency",
        "Prompts that are read together.",
        type=AT_LEAST_1,
        default=8,
        rare=True,
    ),
    Option(
        "--prompt-cache-size",
        "Contexts that are kept for later requests.",
        type=AT_LEAST_1,
        default=10,
    ),
    Option(
        "--prompt-cache-bytes",
        "Bytes that kept contexts may take, such as 4GB.",
        type=Size(),
        rare=True,
    ),
    *CACHE,
    Option(
        "--log-level",
        "INFO logs a line for every request, on stderr.",
        type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]),
        default="WARNING",
        metavar="LEVEL",
    ),
)


@click.command("serve", cls=Command, params=[*_OPTIONS])
def command(**given: Any) -> None:
    """Serve TARGET over HTTP, as OpenAI's clients and mlx_lm.server's users expect.

    A request alone is drafted for; several are decoded together. Drafting changes the speed, never
    the output. With --json one object on stdout says where it listens.
    """
    host, port = given.pop("host"), given.pop("port")
    logging.basicConfig(
        level=given.pop("log_level"), format="%(asctime)s - %(levelname)s - %(message)s"
    )
    settings = _settings(given)
    from tokalign.serve.server import Server, run

    server = Server(settings, host=host, port=port, note=note)

    def ready(server: Server) -> None:
        if asked.as_json:
            print_json({"url": server.url, "model": settings.model})
        note(f"serving {settings.model or 'any model'} at {server.url}/v1")
        note(f"a chat is at {server.url}/")
        if not server.is_local and not settings.api_keys:
            note("anyone who can reach this machine may use it: give --api-key")

    run(server, ready)


def _settings(given: dict[str, Any]) -> Any:
    """The server's settings from the command line. Raises: UsageError."""
    from tokalign.serve import Settings

    if given["model"] is None and not given["allow_model_switching"]:
        raise UsageError(
            "there is no model to serve: give --target NAME, or let requests name one with "
            "--allow-model-switching"
        )
    adapter = given.pop("adapter_path")
    if adapter is not None and not adapter.is_dir():
        raise UsageError(
            f"--adapter-path {adapter} is not a folder; give the one that mlx_lm.lora wrote"
        )
    keys = [key.strip() for key in given.pop("api_keys")]
    if not all(keys):
        raise UsageError("--api-key is empty, and would lock nothing; give a key, or leave it out")
    keys += filter(None, [os.environ.get(KEY_VARIABLE, "").strip()])
    return Settings(
        draft_model=given.pop("draft"),
        adapter_path=None if adapter is None else str(adapter),
        api_keys=tuple(keys),
        drafting=take(DraftingOptions, given),
        **given,
    )
