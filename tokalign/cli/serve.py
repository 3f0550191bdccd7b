"""`tokalign serve`: mlx-lm's server, with drafts of any tokenizer and from any source."""

from __future__ import annotations

import logging
import os
from typing import Any

import click

from tokalign.cli.drafting_options import DRAFTING, MODEL, MODEL_HELP, take, with_options
from tokalign.cli.generation_options import CACHE, read_variables
from tokalign.cli.idle_options import refuse_idle, refuse_idle_cache, refuse_idle_drafting
from tokalign.cli.option_types import NAME, FiniteRange, Size
from tokalign.cli.output import json_option, note, print_json, quiet_option
from tokalign.errors import UsageError

KEY_VARIABLE = "TOKALIGN_API_KEY"
"""An environment variable with one API key; a command line is visible to other users."""


def _read_names(_context: click.Context, _option: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(",") if name.strip())


@click.command("serve")
@click.option("--target", "--model", "model", type=NAME, metavar="NAME", help=MODEL_HELP)
@with_options(*MODEL[1:], *DRAFTING)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, help="0 is any free port.")
@click.option(
    "--api-key",
    "api_keys",
    multiple=True,
    metavar="KEY",
    help=f"Answer only requests with this key; repeatable. Better in the variable {KEY_VARIABLE}.",
)
@click.option(
    "--allowed-origins",
    metavar="ORIGINS",
    default="",
    callback=_read_names,
    help="Web origins whose pages may send requests, separated by commas; * allows all. "
    "Default: none.",
)
@click.option(
    "--allow-model-switching",
    is_flag=True,
    help="Let a request name any model, which is then loaded.",
)
@click.option(
    "--max-body-size",
    type=Size(),
    default="8M",
    help="The longest request; longer ones are refused.",
)
@click.option(
    "--read-timeout",
    type=FiniteRange(min=0, min_open=True),
    default=30.0,
    metavar="SECONDS",
    help="Time for sending a request, and for taking a part of the answer.",
)
@click.option(
    "--answer-timeout",
    type=FiniteRange(min=0, min_open=True),
    default=1800.0,
    metavar="SECONDS",
    help="Time after which an answer ends where it is.",
)
@click.option(
    "--max-waiting",
    type=click.IntRange(min=1),
    default=128,
    help="Requests that may wait; one more is refused.",
)
@click.option(
    "--reuse-outputs/--no-reuse-outputs",
    default=True,
    help="Draft from earlier answers to the same API key.",
)
@click.option(
    "--chat-template",
    metavar="TEMPLATE",
    default="",
    help="A chat template in place of the model's own.",
)
@click.option(
    "--use-default-chat-template",
    is_flag=True,
    help="Use the tokenizer's default template if the model has none.",
)
@click.option(
    "--chat-template-args",
    "--chat-template-config",
    metavar="JSON",
    default="{}",
    callback=read_variables,
    help="Variables of the chat template, such as enable_thinking.",
)
@click.option(
    "--temp",
    type=FiniteRange(min=0),
    default=0.0,
    help="Temperature where a request gives none; 0 is greedy decoding.",
)
@click.option(
    "--top-p",
    type=FiniteRange(0, 1),
    default=1.0,
    help="Where a request gives none; 1 is off.",
)
@click.option(
    "--top-k", type=click.IntRange(min=0), default=0, help="Where a request gives none; 0 is off."
)
@click.option(
    "--min-p",
    type=FiniteRange(0, 1),
    default=0.0,
    help="Where a request gives none; 0 is off.",
)
@click.option(
    "--xtc-probability",
    type=FiniteRange(0, 1),
    default=0.0,
    help="Where a request gives none; 0 is off.",
)
@click.option(
    "--xtc-threshold",
    type=FiniteRange(0, 0.5),
    default=0.1,
    help="Where a request gives none.",
)
@click.option(
    "--extra-eos-token",
    multiple=True,
    metavar="TOKEN",
    help="A further token that ends every answer; repeatable.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=512,
    help="Tokens of an answer at most, where a request gives no number.",
)
@click.option(
    "--decode-concurrency",
    type=click.IntRange(min=1),
    default=32,
    help="Requests that are decoded together.",
)
@click.option(
    "--prompt-concurrency",
    type=click.IntRange(min=1),
    default=8,
    help="Prompts that are read together.",
)
@click.option(
    "--prompt-cache-size",
    type=click.IntRange(min=1),
    default=10,
    help="Contexts that are kept for later requests.",
)
@click.option(
    "--prompt-cache-bytes",
    type=Size(),
    help="Bytes that kept contexts may take, such as 4GB. Default: no bound.",
)
@with_options(*CACHE)
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]),
    default="WARNING",
    help="What to log on stderr; INFO has a line for every request.",
)
@json_option
@quiet_option
def command(**given: Any) -> None:
    """Serve TARGET over HTTP, as OpenAI's clients and mlx_lm.server's users expect.

    A request alone is drafted for; several are decoded together. Drafting changes the speed, never
    the output. With --json one object on stdout says where it listens.
    """
    host, port = given.pop("host"), given.pop("port")
    as_json, quiet = given.pop("as_json"), given.pop("quiet")
    logging.basicConfig(
        level=given.pop("log_level"), format="%(asctime)s - %(levelname)s - %(message)s"
    )
    settings = _settings(given)
    from tokalign.serve.server import Server, run

    server = Server(settings, host=host, port=port, note=lambda line: note(line, quiet=quiet))

    def ready(server: Server) -> None:
        others = settings.draft_model is not None or settings.allow_model_switching
        if not others and not server.has_drafter:
            refuse_idle(("alternatives",), without="--draft NAME or --drafter FOLDER")
        if as_json:
            print_json({"url": server.url, "model": settings.model})
        note(f"serving {settings.model or 'any model'} at {server.url}/v1", quiet=quiet)
        if not server.is_local and not settings.api_keys:
            note("anyone who can reach this machine may use it: give --api-key", quiet=quiet)

    run(server, ready)


def _settings(given: dict[str, Any]) -> Any:
    """The server's settings from the command line. Raises: UsageError."""
    from tokalign.drafting_options import DraftingOptions
    from tokalign.serve.limits import Limits
    from tokalign.serve.settings import Settings

    if given["model"] is None and not given["allow_model_switching"]:
        raise UsageError(
            "there is no model to serve: give --target NAME, or let requests name one with "
            "--allow-model-switching"
        )
    if given["model"] is None:
        refuse_idle(("draft", "drafter", "adapter_path"), without="--target NAME")
    if given["chat_template"]:
        refuse_idle(("use_default_chat_template",), beside="--chat-template")
    refuse_idle_drafting()
    refuse_idle_cache()
    adapter = given.pop("adapter_path")
    if adapter is not None and not adapter.is_dir():
        raise UsageError(
            f"--adapter-path {adapter} is not a folder; give the one that mlx_lm.lora wrote"
        )
    keys = [key.strip() for key in given.pop("api_keys")]
    if not all(keys):
        raise UsageError("--api-key is empty, and would lock nothing; give a key, or leave it out")
    keys += filter(None, [os.environ.get(KEY_VARIABLE, "").strip()])
    drafting = take(DraftingOptions, given)
    limits = Limits(
        body_bytes=given.pop("max_body_size"),
        read_seconds=given.pop("read_timeout"),
        answer_seconds=given.pop("answer_timeout"),
        waiting=given.pop("max_waiting"),
    )
    return Settings(
        draft_model=given.pop("draft"),
        adapter_path=None if adapter is None else str(adapter),
        api_keys=tuple(keys),
        drafting=drafting,
        num_draft_tokens=drafting.num_draft_tokens,
        limits=limits,
        **given,
    )
