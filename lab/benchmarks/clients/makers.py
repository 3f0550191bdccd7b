"""Clients of those who made the APIs, in Python and JavaScript, and plain HTTP."""

from __future__ import annotations

import json
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from lab.benchmarks.clients.checks import (
    MOST,
    QUESTION,
    SECONDS,
    TOOL,
    Check,
    River,
    Server,
    client,
    require,
    text_of,
    user,
)

# -- OpenAI's --------------------------------------------------------------------------------------

_openai = client("openai", "openai")
_responses = client("openai responses", "openai")


def openai(server: Server, kind: str = "OpenAI") -> Any:
    """OpenAI's client."""
    made = getattr(import_module("openai"), kind)
    return made(base_url=server.v1, api_key="none", timeout=SECONDS, max_retries=0)


def final(server: Server, **more: Any) -> Any:
    """What the stream helper of chats makes of an answer."""
    given = {"model": server.model, "messages": user(), "max_tokens": MOST, **more}
    with openai(server).chat.completions.stream(**given) as stream:
        answer = stream.get_final_completion()
    role = answer.choices[0].message.role
    require(role == "assistant", f"the role is {role!r}")
    return answer


@_openai("chat.completions.stream, with usage")
def chat(server: Server) -> Any:
    """A message, and how many tokens there were."""
    answer = final(server, stream_options={"include_usage": True})
    require(answer.usage and answer.usage.completion_tokens, "no usage")
    require(answer.choices[0].message.content, "no text")
    return answer.choices[0].message.content


@_openai("chat.completions.stream, a tool that is required")
def tool(server: Server) -> Any:
    """A call with arguments that follow the schema; and a next turn after its result."""
    tools = [{"type": "function", "function": {**TOOL, "strict": True}}]
    messages: list[Any] = user("How long is the Vistula?")
    message = (
        final(server, messages=messages, tools=tools, tool_choice="required").choices[0].message
    )
    require(message.tool_calls, f"no call, but {message.content!r}")
    (call,) = message.tool_calls
    require(call.function.parsed_arguments["river"] in ("Vistula", "Oder"), "wrong value")
    result = {"role": "tool", "tool_call_id": call.id, "content": "1047 km"}
    # Without tools, of which the client takes no answer that max_tokens cuts.
    said = final(server, messages=[*messages, message, result]).choices[0].message
    require(said.content, "no answer to the result")
    return f"{call.function.arguments} {said.content}"


@_openai("chat.completions.stream, response_format")
def parse(server: Server) -> Any:
    """An object of a class."""
    found = final(server, response_format=River).choices[0].message.parsed
    require(isinstance(found, River), "nothing was parsed")
    return found


@_openai("completions.create, streamed")
def completion(server: Server) -> Any:
    """The parts of a text."""
    parts = openai(server).completions.create(
        model=server.model, prompt="The Vistula is", max_tokens=8, stream=True
    )
    return text_of(part.choices[0].text for part in parts if part.choices)


def response(server: Server, **more: Any) -> Any:
    """What the stream helper of responses makes of an answer."""
    given = {"model": server.model, "input": QUESTION, "max_output_tokens": MOST, **more}
    with openai(server).responses.stream(**given) as stream:
        return stream.get_final_response()


@_responses("responses.stream")
def responses(server: Server) -> Any:
    """The events up to the last one."""
    found = response(server).output_text
    require(found, "no text")
    return found


@_responses("responses.stream, text_format")
def responses_parse(server: Server) -> Any:
    """An object of a class."""
    found = response(server, text_format=River).output_parsed
    require(isinstance(found, River), "nothing was parsed")
    return found


@_responses("responses.stream, a tool that is required")
def responses_tool(server: Server) -> Any:
    """A call among the items."""
    tools = [{"type": "function", **TOOL, "strict": True}]
    asked = "How long is the Vistula?"
    output = response(server, input=asked, tools=tools, tool_choice="required").output
    calls = [item for item in output if item.type == "function_call"]
    require(calls, "no call")
    return calls[0].parsed_arguments


# -- Anthropic's -----------------------------------------------------------------------------------

_anthropic = client("anthropic", "anthropic")


def message(server: Server, **more: Any) -> Any:
    """What the stream helper of messages makes of an answer."""
    made = import_module("anthropic").Anthropic
    api = made(base_url=server.url, api_key="none", timeout=SECONDS, max_retries=0)
    given = {"model": server.model, "messages": user(), "max_tokens": MOST, **more}
    with api.messages.stream(**given) as stream:
        return stream.get_final_message()


@_anthropic("messages.stream")
def messages(server: Server) -> Any:
    """A block of text."""
    (block,) = message(server, system="Be brief.").content
    require(block.text, "no text")
    return block.text


@_anthropic("messages.stream, a tool that has to be used")
def messages_tool(server: Server) -> Any:
    """A block of type tool_use."""
    given = {"input_schema": TOOL["parameters"], "name": TOOL["name"], "description": "A length."}
    asked = user("How long is the Vistula?")
    answer = message(server, messages=asked, tools=[given], tool_choice={"type": "any"})
    calls = [block for block in answer.content if block.type == "tool_use"]
    require(calls, "no block of type tool_use")
    require(calls[0].input["river"] in ("Vistula", "Oder"), "wrong value")
    return calls[0].input


# -- in Node ---------------------------------------------------------------------------------------

PACKAGES = [
    "openai",
    "@anthropic-ai/sdk",
    "@langchain/openai",
    "@langchain/core",
    "ai",
    "@ai-sdk/openai-compatible",
    "zod",
]
"""What npm installs."""


def in_node(asked: str) -> Check:
    """One of the checks of `in_node.mjs`, in a process of its own."""

    def run(server: Server) -> Any:
        program = Path(__file__).with_name("in_node.mjs").read_text("utf-8")
        found = subprocess.run(
            ["node", "--input-type=module", "-", server.url, server.model, asked, QUESTION],
            cwd=server.node,
            input=program,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        lines = [line for line in found.stderr.splitlines() if "Error" in line]
        require(found.returncode == 0, (lines or [found.stderr[-300:]])[0])
        return found.stdout

    return run


for _name, _package, _asked in (
    ("openai (Node)", "openai", "chat.completions.stream"),
    ("openai (Node)", "openai", "chat.completions.stream, a tool that is required"),
    ("anthropic (Node)", "@anthropic-ai/sdk", "messages.stream"),
    ("anthropic (Node)", "@anthropic-ai/sdk", "messages.stream, a tool that has to be used"),
    ("LangChain.js", "@langchain/openai", "stream"),
    ("LangChain.js", "@langchain/openai", "withStructuredOutput"),
    ("Vercel AI SDK", "ai", "streamText"),
    ("Vercel AI SDK", "ai", "streamText, an object"),
    ("Vercel AI SDK", "ai", "streamText, a tool that is required"),
):
    client(_name, f"npm:{_package}")(_asked)(in_node(f"{_name}: {_asked}"))


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
    client("curl")(_what)(_check)
