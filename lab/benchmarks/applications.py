"""What applications get from a server: twelve clients of OpenAI's and Anthropic's APIs, one by one.

    python -m lab.benchmarks.applications http://127.0.0.1:8080 [--model NAME] [--node FOLDER] \
        [--only WORD]

The server runs already. A check passes if the client gets what it asked for in the shape that it
promises to its own user: a parsed object, a tool call, so many choices. What the text says does not
matter. It prints a row for each check, and at the end how many passed for each application.

The clients have to be installed, each in any version: openai anthropic langchain-openai litellm
instructor "pydantic-ai-slim[openai]" llama-index-llms-openai-like "smolagents[openai]" llm; and in
FOLDER, by npm: ai @ai-sdk/openai-compatible zod. One that is not installed counts as a failure. It
imports nothing of tokalign, so that it runs in an environment of the clients alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple
from urllib.request import Request, urlopen

from pydantic import BaseModel, Field

QUESTION = "Is the Vistula longer than the Oder? Answer as JSON with its name and length."
SECONDS = 600
MOST = 48


class River(BaseModel):
    """A river. Its schema bounds every field, so that an answer that follows it ends."""

    name: Literal["Vistula", "Oder"]
    length_km: int = Field(ge=1, le=9999)


class Server(NamedTuple):
    """url: without a path. node: a folder with the npm packages."""

    url: str
    model: str
    node: Path

    @property
    def v1(self) -> str:
        """The base URL of OpenAI's clients."""
        return f"{self.url}/v1"


Check = Callable[[Server], Any]
CHECKS: dict[tuple[str, str], Check] = {}
"""By application and what is asked: returns what is shown, and raises if it did not work."""


def check(application: str, asked: str) -> Callable[[Check], Check]:
    """Note a function as a check."""

    def noted(made: Check) -> Check:
        CHECKS[application, asked] = made
        return made

    return noted


def require(fits: Any, what: str) -> None:
    """Raises: ValueError unless it fits."""
    if not fits:
        raise ValueError(what)


def user(text: str = QUESTION) -> list[dict[str, Any]]:
    """A conversation of one message."""
    return [{"role": "user", "content": text}]


TOOL = {
    "name": "river_length",
    "description": "Looks up how long a river is.",
    "parameters": {
        "type": "object",
        "properties": {"river": {"type": "string", "enum": ["Vistula", "Oder"]}},
        "required": ["river"],
        "additionalProperties": False,
    },
}


# -- OpenAI's client -------------------------------------------------------------------------------


def openai(server: Server) -> Any:
    """OpenAI's client."""
    made = import_module("openai").OpenAI
    return made(base_url=server.v1, api_key="none", timeout=SECONDS, max_retries=0)


@check("openai", "chat, streamed, with usage")
def chat(server: Server) -> Any:
    """Parts of text, and at the end how many tokens there were."""
    parts = list(
        openai(server).chat.completions.create(
            model=server.model,
            messages=user(),
            max_tokens=MOST,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    require(parts[-1].usage and parts[-1].usage.completion_tokens, "no usage")
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    require(text, "no text")
    return text


@check("openai", "a tool that is required")
def tool(server: Server) -> Any:
    """A call with arguments that follow the schema."""
    answer = openai(server).chat.completions.create(
        model=server.model,
        messages=user("How long is the Vistula?"),
        tools=[{"type": "function", "function": TOOL}],
        tool_choice="required",
        max_tokens=MOST,
    )
    calls = answer.choices[0].message.tool_calls
    require(calls, f"no call, but {answer.choices[0].message.content!r}")
    require(json.loads(calls[0].function.arguments)["river"] in ("Vistula", "Oder"), "wrong value")
    return calls[0].function.arguments


@check("openai", "chat.completions.parse")
def parse(server: Server) -> Any:
    """An object of a class."""
    answer = openai(server).chat.completions.parse(
        model=server.model, messages=user(), response_format=River, max_tokens=MOST
    )
    return answer.choices[0].message.parsed


@check("openai responses", "text, streamed")
def responses(server: Server) -> Any:
    """The events up to the last one."""
    with openai(server).responses.stream(
        model=server.model, input=QUESTION, max_output_tokens=MOST
    ) as stream:
        for _ in stream:
            pass
        found = stream.get_final_response().output_text
    require(found, "no text")
    return found


@check("openai responses", "responses.parse")
def responses_parse(server: Server) -> Any:
    """An object of a class."""
    found = (
        openai(server)
        .responses.parse(
            model=server.model, input=QUESTION, text_format=River, max_output_tokens=MOST
        )
        .output_parsed
    )
    require(found, "nothing was parsed")
    return found


# -- Anthropic's client ----------------------------------------------------------------------------


def anthropic(server: Server) -> Any:
    """Anthropic's client."""
    made = import_module("anthropic").Anthropic
    return made(base_url=server.url, api_key="none", timeout=SECONDS, max_retries=0)


@check("anthropic", "messages, streamed")
def messages(server: Server) -> Any:
    """Its own events, put together by the client."""
    with anthropic(server).messages.stream(
        model=server.model, system="Be brief.", messages=user(), max_tokens=MOST
    ) as stream:
        text = "".join(stream.text_stream)
    require(text, "no text")
    return text


@check("anthropic", "a tool that has to be used")
def messages_tool(server: Server) -> Any:
    """A block of type tool_use."""
    given = {"input_schema": TOOL["parameters"], "name": TOOL["name"], "description": "A length."}
    answer = anthropic(server).messages.create(
        model=server.model,
        messages=user("How long is the Vistula?"),
        tools=[given],
        tool_choice={"type": "any"},
        max_tokens=MOST,
    )
    calls = [block for block in answer.content if block.type == "tool_use"]
    require(calls, "no block of type tool_use")
    return calls[0].input


# -- what is built on them -------------------------------------------------------------------------


def langchain(mode: str) -> Check:
    """LangChain's `with_structured_output` in one of its modes."""

    def run(server: Server) -> Any:
        model = import_module("langchain_openai").ChatOpenAI(
            base_url=server.v1,
            api_key="none",
            model=server.model,
            max_tokens=MOST,
            timeout=SECONDS,
            max_retries=0,
        )
        # Any JSON does in json_mode, which does not tell the server of the class.
        asked = {"title": "object", "type": "object"} if mode == "json_mode" else River
        found = model.with_structured_output(asked, method=mode).invoke(QUESTION)
        require(found is not None, "nothing was parsed")
        return found

    return run


for _mode in ("json_schema", "function_calling", "json_mode"):
    check("LangChain", f"with_structured_output, {_mode}")(langchain(_mode))


def completed(server: Server, **asked: Any) -> Any:
    """What litellm makes of the question."""
    return import_module("litellm").completion(
        model=f"openai/{server.model}",
        api_base=server.v1,
        api_key="none",
        messages=user(),
        max_tokens=MOST,
        timeout=SECONDS,
        **asked,
    )


@check("litellm", "streamed")
def litellm(server: Server) -> Any:
    """Parts of text."""
    parts = completed(server, stream=True)
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    require(text, "no text")
    return text


@check("litellm", "response_format")
def litellm_object(server: Server) -> Any:
    """JSON of a class."""
    answer = completed(server, response_format=River)
    return River.model_validate_json(answer.choices[0].message.content)


@check("instructor", "response_model, by tools")
def instructor(server: Server) -> Any:
    """Its default: a tool that has to be called."""
    made = import_module("instructor").from_openai(openai(server))
    return made.chat.completions.create(
        model=server.model, messages=user(), response_model=River, max_tokens=MOST, max_retries=0
    )


@check("pydantic-ai", "output_type, by tools")
def pydantic_ai(server: Server) -> Any:
    """Its default: a tool that has to be called."""
    models = import_module("pydantic_ai.models.openai")
    provider = import_module("pydantic_ai.providers.openai").OpenAIProvider(
        base_url=server.v1, api_key="none"
    )
    agent = import_module("pydantic_ai").Agent(
        models.OpenAIChatModel(server.model, provider=provider),
        output_type=River,
        model_settings={"max_tokens": MOST, "timeout": SECONDS},
        retries=0,
    )
    return agent.run_sync(QUESTION).output


@check("LlamaIndex", "stream_chat")
def llama_index(server: Server) -> Any:
    """Parts of text."""
    kinds = import_module("llama_index.core.llms")
    made = import_module("llama_index.llms.openai_like").OpenAILike(
        model=server.model,
        api_base=server.v1,
        api_key="none",
        is_chat_model=True,
        max_tokens=MOST,
        timeout=SECONDS,
        max_retries=0,
    )
    parts = made.stream_chat([kinds.ChatMessage(role="user", content=QUESTION)])
    text = "".join(part.delta or "" for part in parts)
    require(text, "no text")
    return text


@check("smolagents", "ToolCallingAgent")
def smolagents(server: Server) -> Any:
    """A run that ends with a call of its tool for the final answer."""
    package = import_module("smolagents")
    model = package.OpenAIModel(
        model_id=server.model, api_base=server.v1, api_key="none", max_tokens=2 * MOST
    )
    agent = package.ToolCallingAgent(tools=[], model=model, max_steps=1, verbosity_level=0)
    agent.run("Say yes.")
    calls = [
        call for step in agent.memory.steps for call in getattr(step, "tool_calls", None) or ()
    ]
    require(calls, "no tool was called")
    require(calls[0].name == "final_answer", f"there is no tool {calls[0].name!r}")
    return calls[0].name


@check("llm", "a prompt")
def llm(server: Server) -> Any:
    """The program, with the server as a model of its own."""
    with TemporaryDirectory() as folder:
        entry = {"model_id": "here", "model_name": server.model, "api_base": server.v1}
        (Path(folder) / "extra-openai-models.yaml").write_text(json.dumps([entry]), "utf-8")
        command = [sys.executable, "-m", "llm", "-m", "here", "-o", "max_tokens", str(MOST)]
        found = subprocess.run(
            [*command, "--key", "none", QUESTION],
            env={**os.environ, "LLM_USER_PATH": folder},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    require(found.returncode == 0 and found.stdout.strip(), found.stderr)
    return found.stdout


NODE = """
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText, Output, tool } from "ai";
import { z } from "zod";
const [url, model, asked, prompt] = process.argv.slice(-4);
const settings = { name: "here", baseURL: url, supportsStructuredOutputs: true };
const provider = createOpenAICompatible(settings);
const given = { model: provider(model), prompt, maxOutputTokens: 48, maxRetries: 0 };
const length_km = z.number().int().min(1).max(9999);
const River = z.object({ name: z.enum(["Vistula", "Oder"]), length_km });
if (asked === "text") {
  let failed, text = "";
  const onError = ({ error }) => { failed = error; };
  for await (const part of streamText({ ...given, onError }).textStream) text += part;
  if (failed) throw failed;
  if (!text) throw new Error("no text");
  console.log(text);
} else if (asked === "object") {
  const output = Output.object({ schema: River });
  console.log(JSON.stringify((await generateText({ ...given, output })).output));
} else {
  const tools = { river: tool({ description: "Notes a river.", inputSchema: River }) };
  const { toolCalls } = await generateText({ ...given, tools, toolChoice: "required" });
  if (!toolCalls.length) throw new Error("no tool was called");
  console.log(JSON.stringify(toolCalls[0].input));
}
"""


def vercel(asked: str) -> Check:
    """Vercel's AI SDK, in a process of its own."""

    def run(server: Server) -> Any:
        found = subprocess.run(
            ["node", "--input-type=module", "-", server.v1, server.model, asked, QUESTION],
            cwd=server.node,
            input=NODE,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        lines = [line for line in found.stderr.splitlines() if "Error" in line]
        require(found.returncode == 0, (lines or [found.stderr[-300:]])[0])
        return found.stdout

    return run


for _asked in ("text", "object", "tool"):
    check("Vercel AI SDK", f"{_asked}, {'streamed' if _asked == 'text' else 'required'}")(
        vercel(_asked)
    )


# -- plain HTTP ------------------------------------------------------------------------------------


def completions(server: Server, **asked: Any) -> list[dict[str, Any]]:
    """The choices of a completion."""
    body = json.dumps({"model": server.model, "max_tokens": 8, **asked}).encode()
    request = Request(f"{server.v1}/completions", body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=SECONDS) as reply:
        choices: list[dict[str, Any]] = json.load(reply)["choices"]
    return choices


def choices_of(count: int, begins: str = "", **asked: Any) -> Check:
    """So many choices, each of which begins with a text."""

    def run(server: Server) -> Any:
        texts = [choice["text"] for choice in completions(server, **asked)]
        require(len(texts) == count, f"{len(texts)} choices")
        require(all(text.startswith(begins) for text in texts), f"it begins {texts[0][:20]!r}")
        return texts

    return run


for _what, _check in {
    "n = 2": choices_of(2, prompt="The Vistula", n=2, temperature=1.0),
    "echo": choices_of(1, "The Vistula", prompt="The Vistula", echo=True),
    # Last: it ends the thread of mlx_lm.server 0.32.2 that answers.
    "two prompts": choices_of(2, prompt=["The Vistula", "The Oder"]),
}.items():
    check("curl", _what)(_check)


# -- the run ---------------------------------------------------------------------------------------


def main() -> None:
    """Run every check, and say what came of it."""
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("url", help="the server's address, without a path")
    options.add_argument("--model", help="its name; else the first of those that it lists")
    options.add_argument("--node", type=Path, default=Path(), help="where npm has installed")
    options.add_argument("--only", default="", help="applications whose name has this word")
    given = options.parse_args()
    warnings.filterwarnings("ignore")
    url, model = given.url.rstrip("/"), given.model
    if model is None:
        with urlopen(f"{url}/v1/models") as reply:
            model = json.load(reply)["data"][0]["id"]
    server = Server(url, model, given.node)
    passed, asked = Counter[str](), Counter[str]()
    for (application, what), run in CHECKS.items():
        if given.only.lower() not in application.lower():
            continue
        asked[application] += 1
        try:
            found, mark = str(run(server)), "passes"
            passed[application] += 1
        except Exception as error:
            found, mark = f"{type(error).__name__}: {error}", "FAILS"
        line = " ".join(found.split())[:160].replace("|", "\\|")
        print(f"| {application} | {what} | {mark} | {line} |", flush=True)
    for application, count in asked.items():
        print(f"{application}: {passed[application]} of {count}")


if __name__ == "__main__":
    main()
