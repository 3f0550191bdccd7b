"""`tokalign cache-prompt`: read a long prompt once, and keep what the model computed in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tokalign.atomic_file import require_writable
from tokalign.cli.drafting_options import MODEL, with_options
from tokalign.cli.generation_options import CACHE, TEMPLATE, take_loading
from tokalign.cli.idle_options import refuse_idle_template
from tokalign.cli.output import echo, json_option, note, print_json, progress, quiet_option, table
from tokalign.cli.path_types import PATH
from tokalign.cli.prompt_text import prompt_option, read_prompt
from tokalign.errors import UsageError


@click.command("cache-prompt")
@prompt_option(required=False)
@with_options(*MODEL, *TEMPLATE, *CACHE)
@click.option(
    "--prompt-cache-file",
    "file",
    type=PATH,
    metavar="FILE",
    required=True,
    help="The file to write; its name ends in .safetensors.",
)
@json_option
@quiet_option
def command(
    *,
    prompt: str | None,
    file: Path,
    system_prompt: str | None,
    chat_template_config: dict[str, object],
    ignore_chat_template: bool,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Write the key-value cache of a prompt, for `decode` and `chat`, and for mlx-lm.

    The file also has what the target found likely after each token of the prompt, to draft from.

    `decode --prompt-cache-file FILE -p TEXT` goes on where the prompt ends, in the same message of
    the user. `chat --prompt-cache-file FILE` computes nothing that begins as the file does.
    """
    from tokalign.assemble import load_models
    from tokalign.runtime.chat import as_messages
    from tokalign.runtime.draft.logit_store import LogitStore
    from tokalign.runtime.mlx.prompt_cache import require_suffix, write_prompt_cache
    from tokalign.runtime.mlx.rows_of_text import learn_text
    from tokalign.runtime.mlx.target_session import TargetModelSession

    refuse_idle_template()
    options = take_loading(given)
    require_suffix(file)
    require_writable(file)
    if prompt is None and system_prompt is None:
        raise UsageError("there is nothing to cache; give --prompt, --system-prompt or both")
    messages = as_messages("" if prompt is None else read_prompt(prompt), system=system_prompt)
    if prompt is None:
        messages = messages[:1]
    [model] = load_models(
        [options.target],
        dtype=options.dtype,
        adapter=options.adapter_path,
        trust_remote_code=options.trust_remote_code,
        note=lambda line: note(line, quiet=quiet),
    )
    ids = model.encode_open(
        messages, use_template=not ignore_chat_template, variables=chat_template_config
    )
    session = TargetModelSession(model.model, options.cache, rewinds=False)
    session.require_room(len(ids))
    with progress(len(ids), "reading the prompt", quiet=quiet) as advance:
        learn_text(session, ids, store := LogitStore(), advance)
    session.settle(ids)
    write_prompt_cache(file, session.layers, ids, model, is_open=prompt is not None, logits=store)
    written = {"file": str(file), "prompt_tokens": len(ids), "bytes": file.stat().st_size}
    if as_json:
        print_json(written)
    else:
        echo(table((name.replace("_", " "), value) for name, value in written.items()))
