"""`tokalign serve`: mlx-lm's server, with drafts of any tokenizer and from any source."""

from __future__ import annotations

import logging
import os
import sys
from functools import partial
from typing import Any

import click

from tokalign.cli.command import (
    MODEL_NAME,
    VARIABLES,
    Command,
    Option,
    ReadType,
    Words,
    rare,
    several,
)
from tokalign.cli.login_item import install, uninstall
from tokalign.cli.options import ABOUT_NAME, CACHE, DRAFTING, ENDS, MODEL, declared_options
from tokalign.cli.output import flags, note, print_json, show
from tokalign.errors import UsageError, shown
from tokalign.installation import needing
from tokalign.runtime.options import CacheOptions, DraftingOptions, take
from tokalign.serve import Settings

KEY_VARIABLE = "TOKALIGN_API_KEY"
"""A command line is visible to other users."""


def _read_names(_flag: str, text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


_OPTIONS = (
    Option("--target --model model", ABOUT_NAME, MODEL_NAME),
    *MODEL[1:],
    *DRAFTING,
    Option("--host", "Address to listen on.", default="127.0.0.1"),
    Option("--port", "0 is any free port.", click.IntRange(0, 65535), 8080),
    several(
        "--api-key api_keys",
        f"Answer only requests with this key; repeatable; safer in ${KEY_VARIABLE}.",
        metavar="KEY",
    ),
    rare(
        "--allowed-hosts",
        "Names of this server, such as host.docker.internal,x; * allows all.",
        ReadType("names", _read_names),
        "",
    ),
    rare(
        "--allowed-origins",
        "Web origins whose pages may send requests, such as a,b; * allows all.",
        ReadType("origins", _read_names),
        "",
    ),
    *declared_options(Settings).values(),
    rare(
        "--chat-template-args --chat-template-config",
        "Variables of the chat template, such as enable_thinking.",
        VARIABLES,
        "{}",
    ),
    *ENDS,
    *CACHE,
    Option(
        "--log-level",
        "INFO logs every request.",
        click.Choice(["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]),
        "WARNING",
        metavar="LEVEL",
    ),
    rare("--install", "Do not serve now, but from the next login on.", is_flag=True),
    rare("--uninstall", "Stop the login item and delete it.", is_flag=True),
    Words("[NAME]"),
)


@click.command("serve", cls=Command, params=[*_OPTIONS])
def command(**values: Any) -> None:
    """Serve the model NAME over HTTP, as OpenAI's clients and mlx_lm.server's users expect.

    Requests share passes with the drafts of all. Drafting changes the speed; the text is the
    target's own. Sampling options hold where a request gives none. With --json one object on stdout
    says where it listens.
    """
    installs, uninstalls = values.pop("install"), values.pop("uninstall")
    if uninstalls:
        show({"deleted": str(uninstall())})
        return
    host, port = values.pop("host"), values.pop("port")
    logging.basicConfig(
        level=values.pop("log_level"), format="%(asctime)s - %(levelname)s - %(message)s"
    )
    settings = _settings(values)
    if installs:
        path, start = install([word for word in sys.argv[2:] if word != "--install"])
        show({"login_item": str(path), "start_now": start})
        return
    with needing("serving takes libraries that are not installed; install them", extra="mlx"):
        from tokalign.serve.server import Server, run

    def ready(server: Server) -> None:
        if flags.as_json:
            print_json({"url": server.url, "model": settings.model})
        note(f"serving {settings.model or 'any model'} at {server.url}/v1")
        note(f"a chat is at {server.url}/")
        if not server.is_local and not settings.api_keys:
            note("anyone who can reach this machine may use it: give --api-key")

    run(partial(Server, settings, host=host, port=port, note=note), ready)


def _settings(values: dict[str, Any]) -> Settings:
    if values["model"] is None and not values["allow_model_switching"]:
        raise UsageError(
            "there is no model to serve: give its name, or let requests name one with "
            "--allow-model-switching"
        )
    adapter = values.pop("adapter")
    if adapter is not None and not adapter.is_dir():
        raise UsageError(
            f"--adapter-path {adapter} is not a folder; give the one that mlx_lm.lora wrote"
        )
    if (template := values["chat_template"]) and "{" not in template:
        raise UsageError(
            f"--chat-template {shown(template)} has no place for messages; give the template "
            'itself, of a file with "$(cat FILE)"'
        )
    keys = [key.strip() for key in values.pop("api_keys")]
    if not all(keys):
        raise UsageError("--api-key is empty, and would lock nothing; give a key, or leave it out")
    keys += filter(None, [os.environ.get(KEY_VARIABLE, "").strip()])
    return Settings(
        draft_model=values.pop("draft"),
        adapter_path=None if adapter is None else str(adapter),
        api_keys=tuple(keys),
        drafting=take(DraftingOptions, values),
        cache=take(CacheOptions, values),
        **values,
    )
