"""What is built on the makers' clients: libraries, agents and a program."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from functools import reduce
from importlib import import_module
from operator import add
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lab.benchmarks.clients.checks import (
    MOST,
    QUESTION,
    SECONDS,
    Check,
    River,
    Server,
    client,
    parts_of,
    require,
    text_of,
    user,
)
from lab.benchmarks.clients.makers import openai

_ASKED: dict[str, Any] = {
    "api_key": "none",
    "max_tokens": MOST,
    "timeout": SECONDS,
    "max_retries": 0,
}
"""What most of them are made with, beside the address and the model."""

# -- LangChain -------------------------------------------------------------------------------------

_langchain = client("LangChain", "langchain-openai")


def chat_openai(server: Server, **more: Any) -> Any:
    """LangChain's model."""
    made = import_module("langchain_openai").ChatOpenAI
    return made(base_url=server.v1, model=server.model, **_ASKED, **more)


def streamed_and_added(model: Any) -> Any:
    """The text of a message that is the sum of a stream's chunks."""
    chunks = list(model.stream(QUESTION))
    message = reduce(add, chunks)
    require(message.type == "AIMessageChunk" and len(chunks) > 1, "one chunk")
    text = message.text if isinstance(message.text, str) else message.text()
    require(text, "no text")
    return text


@_langchain("stream")
def langchain_stream(server: Server) -> Any:
    """A message that is the sum of the chunks."""
    return streamed_and_added(chat_openai(server))


@_langchain("stream, use_responses_api")
def langchain_responses(server: Server) -> Any:
    """The same by the other API."""
    return streamed_and_added(chat_openai(server, use_responses_api=True))


def structured(mode: str) -> Check:
    """LangChain's `with_structured_output` in one of its modes."""

    def run(server: Server) -> Any:
        # Any JSON does in json_mode, which does not tell the server of the class.
        asked = {"title": "object", "type": "object"} if mode == "json_mode" else River
        found = chat_openai(server).with_structured_output(asked, method=mode).invoke(QUESTION)
        require(found is not None, "nothing was parsed")
        return found

    return run


for _mode in ("json_schema", "function_calling", "json_mode"):
    _langchain(f"with_structured_output, {_mode}")(structured(_mode))


def chat_anthropic(server: Server) -> Any:
    """LangChain's model for Anthropic's API."""
    made = import_module("langchain_anthropic").ChatAnthropic
    return made(base_url=server.url, model=server.model, **_ASKED)


@client("LangChain Anthropic", "langchain-anthropic")("stream")
def langchain_messages(server: Server) -> Any:
    """A message that is the sum of the chunks."""
    return streamed_and_added(chat_anthropic(server))


@client("LangChain Anthropic")("with_structured_output")
def langchain_tool(server: Server) -> Any:
    """An object by a tool that has to be used."""
    found = chat_anthropic(server).with_structured_output(River).invoke(QUESTION)
    require(isinstance(found, River), "nothing was parsed")
    return found


# -- libraries -------------------------------------------------------------------------------------


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


@client("litellm", "litellm")("stream_chunk_builder")
def litellm(server: Server) -> Any:
    """A message of the chunks."""
    chunks = list(completed(server, stream=True))
    message = import_module("litellm").stream_chunk_builder(chunks).choices[0].message
    require(message.role == "assistant" and message.content, "no text")
    return message.content


@client("litellm")("response_format")
def litellm_object(server: Server) -> Any:
    """JSON of a class."""
    answer = completed(server, response_format=River)
    return River.model_validate_json(answer.choices[0].message.content)


@client("instructor", "instructor")("create_partial")
def instructor(server: Server) -> Any:
    """An object that grows, by a tool that has to be called."""
    made = import_module("instructor").from_openai(openai(server))
    partial = made.chat.completions.create_partial
    *_, found = partial(
        model=server.model, messages=user(), response_model=River, max_tokens=MOST, max_retries=0
    )
    return River.model_validate(found.model_dump())


@client("pydantic-ai", "pydantic-ai-slim[openai]")("run_stream, output_type")
def pydantic_ai(server: Server) -> Any:
    """An object by a tool that has to be called."""
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

    async def run() -> Any:
        async with agent.run_stream(QUESTION) as result:
            return await result.get_output()

    return asyncio.run(run())


@client("LlamaIndex", "llama-index-llms-openai-like")("stream_chat")
def llama_index(server: Server) -> Any:
    """Parts of text."""
    kinds = import_module("llama_index.core.llms")
    made = import_module("llama_index.llms.openai_like").OpenAILike(
        model=server.model,
        api_base=server.v1,
        is_chat_model=True,
        **_ASKED,
    )
    parts = made.stream_chat([kinds.ChatMessage(role="user", content=QUESTION)])
    return text_of(part.delta for part in parts)


@client("Haystack", "haystack-ai")("streaming_callback")
def haystack(server: Server) -> Any:
    """Parts of text, and a message of them."""
    made = import_module("haystack.components.generators.chat").OpenAIChatGenerator
    messages = import_module("haystack.dataclasses").ChatMessage
    parts: list[Any] = []
    generator = made(
        api_key=import_module("haystack.utils").Secret.from_token("none"),
        model=server.model,
        api_base_url=server.v1,
        streaming_callback=parts.append,
        generation_kwargs={"max_tokens": MOST},
        timeout=SECONDS,
        max_retries=0,
    )
    (reply,) = generator.run([messages.from_user(QUESTION)])["replies"]
    require(text_of(part.content for part in parts) == reply.text, "the parts are not the text")
    return reply.text


@client("Semantic Kernel", "semantic-kernel")("get_streaming_chat_message_content")
def semantic_kernel(server: Server) -> Any:
    """A message that is the sum of the chunks."""
    kinds = import_module("semantic_kernel.connectors.ai.open_ai")
    history = import_module("semantic_kernel.contents").ChatHistory()
    history.add_user_message(QUESTION)
    model = kinds.OpenAIChatCompletion(
        ai_model_id=server.model, async_client=openai(server, "AsyncOpenAI")
    )
    settings = kinds.OpenAIChatPromptExecutionSettings(max_tokens=MOST)
    stream = model.get_streaming_chat_message_content(history, settings)
    parts = [part for part in asyncio.run(parts_of(stream)) if part is not None]
    text_of(part.content for part in parts)
    return reduce(add, parts).content


@client("Outlines", "outlines[openai]")("stream, a class")
def outlines(server: Server) -> Any:
    """JSON of a class."""
    model = import_module("outlines").from_openai(openai(server), server.model)
    return River.model_validate_json(text_of(model.stream(QUESTION, River, max_tokens=MOST)))


@client("Magentic", "magentic")("StreamedStr")
def magentic(server: Server) -> Any:
    """Parts of text."""
    package = import_module("magentic")
    model = package.OpenaiChatModel(
        server.model, api_key="none", base_url=server.v1, max_tokens=MOST
    )

    def told() -> None: ...

    told.__annotations__["return"] = package.StreamedStr
    return text_of(package.prompt(QUESTION, model=model)(told)())


@client("DSPy", "dspy")("streamify")
def dspy(server: Server) -> Any:
    """Parts of a field, and a prediction of it."""
    package = import_module("dspy")
    package.configure(
        lm=package.LM(
            f"openai/{server.model}",
            api_base=server.v1,
            api_key="none",
            max_tokens=2 * MOST,
            cache=False,
            num_retries=0,
            timeout=SECONDS,
        )
    )
    listener = package.streaming.StreamListener(signature_field_name="answer")
    program = package.streamify(package.Predict("question -> answer"), stream_listeners=[listener])
    parts = asyncio.run(parts_of(program(question="Is the Vistula longer than the Oder?")))
    require(parts[-1].answer, "no answer")
    return parts[-1].answer


# -- agents ----------------------------------------------------------------------------------------


@client("smolagents", "smolagents[openai]")("ToolCallingAgent, stream_outputs")
def smolagents(server: Server) -> Any:
    """A run that ends with a call of its tool for the final answer."""
    package = import_module("smolagents")
    model = package.OpenAIModel(
        model_id=server.model, api_base=server.v1, api_key="none", max_tokens=2 * MOST
    )
    agent = package.ToolCallingAgent(
        tools=[], model=model, max_steps=1, verbosity_level=0, stream_outputs=True
    )
    agent.run("Say yes.")
    calls = [
        call for step in agent.memory.steps for call in getattr(step, "tool_calls", None) or ()
    ]
    require(calls, "no tool was called")
    require(calls[0].name == "final_answer", f"there is no tool {calls[0].name!r}")
    return calls[0].name


def agents(kind: str) -> Check:
    """A tool that has to be called, by one of two APIs; by that of chats also what follows it.

    To the other client a response that max_tokens cuts is an error.
    """
    stops = "Responses" in kind

    def run(server: Server) -> Any:
        package = import_module("agents")
        package.set_tracing_disabled(True)
        called = []

        def river_length(river: str) -> str:
            """How long a river is."""
            called.append(river)
            return "1047 km"

        model = getattr(package, kind)(server.model, openai(server, "AsyncOpenAI"))
        settings = package.ModelSettings(max_tokens=MOST, tool_choice="required")
        agent = package.Agent(
            name="Rivers",
            model=model,
            model_settings=settings,
            tools=[package.function_tool(river_length)],
            tool_use_behavior="stop_on_first_tool" if stops else "run_llm_again",
        )

        async def told() -> Any:
            result = package.Runner.run_streamed(agent, "How long is the Vistula?", max_turns=3)
            await parts_of(result.stream_events())
            return result.final_output

        found = asyncio.run(told())
        require(called and found, "no call" if not called else "no answer")
        return f"{called} {found}"

    return run


for _kind in ("OpenAIChatCompletionsModel", "OpenAIResponsesModel"):
    client("OpenAI Agents", "openai-agents")(f"run_streamed, {_kind}")(agents(_kind))


@client("Agno", "agno", "openai")("run, stream")
def agno(server: Server) -> Any:
    """Parts of text."""
    made = import_module("agno.models.openai.like").OpenAILike(
        id=server.model,
        base_url=server.v1,
        **_ASKED,
    )
    agent = import_module("agno.agent").Agent(model=made, telemetry=False)
    return text_of(part.content for part in agent.run(QUESTION, stream=True))


@client("Strands", "strands-agents[openai]")("stream_async")
def strands(server: Server) -> Any:
    """Parts of text, and a message of them."""
    made = import_module("strands.models.openai").OpenAIModel(
        client_args={"base_url": server.v1, "api_key": "none", "timeout": SECONDS},
        model_id=server.model,
        params={"max_tokens": 2 * MOST},
    )
    agent = import_module("strands").Agent(model=made, callback_handler=None)
    events = asyncio.run(parts_of(agent.stream_async("Say yes, and nothing else. Then: why?")))
    text = text_of(event.get("data") for event in events)
    (block,) = agent.messages[-1]["content"]
    require(block["text"] == text, "the message is not its parts")
    return text


@client("AutoGen", "autogen-ext[openai]", "autogen-agentchat")("create_stream")
def autogen(server: Server) -> Any:
    """Parts of text, and a result of them."""
    made = import_module("autogen_ext.models.openai").OpenAIChatCompletionClient(
        model=server.model,
        base_url=server.v1,
        **_ASKED,
        model_info={
            "vision": False,
            "function_calling": True,
            "json_output": True,
            "structured_output": True,
            "family": "unknown",
        },
    )
    message = import_module("autogen_core.models").UserMessage(content=QUESTION, source="user")
    *parts, result = asyncio.run(parts_of(made.create_stream([message])))
    require(text_of(parts) == result.content, "the result is not its parts")
    return result.content


# -- a program -------------------------------------------------------------------------------------


@client("llm", "llm")("a prompt")
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
