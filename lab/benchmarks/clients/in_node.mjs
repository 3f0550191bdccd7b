// Checks of clients in JavaScript: node in_node.mjs URL MODEL CHECK PROMPT. See makers.py.
const [url, model, asked, prompt] = process.argv.slice(-4);
const baseURL = `${url}/v1`, apiKey = "none", maxRetries = 0, most = 48;
const messages = [{ role: "user", content: prompt }];
const rivers = ["Vistula", "Oder"];
const properties = { river: { type: "string", enum: rivers } };
const parameters = { type: "object", properties, required: ["river"], additionalProperties: false };
const need = (fits, what) => { if (!fits) throw new Error(what); return fits; };
const joined = async (parts, text) => {
  const found = [];
  for await (const part of parts) if (text(part)) found.push(text(part));
  need(found.length > 1, "no text, or in one part");
  return found.join("");
};

const openai = async (more) => {
  const OpenAI = (await import("openai")).default;
  const client = new OpenAI({ baseURL, apiKey, maxRetries });
  const given = { model, messages, max_tokens: most, ...more };
  const { message } = (await client.chat.completions.stream(given).finalChatCompletion()).choices[0];
  need(message.role === "assistant", `the role is ${message.role}`);
  return message;
};
const anthropic = async (more) => {
  const Anthropic = (await import("@anthropic-ai/sdk")).default;
  const client = new Anthropic({ baseURL: url, apiKey, maxRetries });
  return (await client.messages.stream({ model, messages, max_tokens: most, ...more }).finalMessage()).content;
};
const langchain = async () => {
  const { ChatOpenAI } = await import("@langchain/openai");
  return new ChatOpenAI({ model, apiKey, maxTokens: most, maxRetries, configuration: { baseURL } });
};
const river = async () => {
  const { z } = await import("zod");
  return z.object({ name: z.enum(rivers), length_km: z.number().int().min(1).max(9999) });
};
const vercel = async (more) => {
  const { createOpenAICompatible } = await import("@ai-sdk/openai-compatible");
  const { streamText } = await import("ai");
  const provider = createOpenAICompatible({ name: "here", baseURL, supportsStructuredOutputs: true });
  let failed;
  const onError = ({ error }) => { failed = error; };
  const given = { model: provider(model), prompt, maxOutputTokens: most, maxRetries, onError };
  const stream = streamText({ ...given, ...more });
  await stream.consumeStream();
  if (failed) throw failed;
  return stream;
};

const name = "river_length";
const checks = {
  "openai (Node): chat.completions.stream": async () => need((await openai({})).content, "no text"),
  "openai (Node): chat.completions.stream, a tool that is required": async () => {
    const tools = [{ type: "function", function: { name, parameters } }];
    const { tool_calls } = await openai({ tools, tool_choice: "required" });
    need(rivers.includes(JSON.parse(tool_calls[0].function.arguments).river), "wrong value");
    return tool_calls[0].function.arguments;
  },
  "anthropic (Node): messages.stream": async () => need((await anthropic({}))[0].text, "no text"),
  "anthropic (Node): messages.stream, a tool that has to be used": async () => {
    const tools = [{ name, input_schema: parameters }];
    const blocks = await anthropic({ tools, tool_choice: { type: "any" } });
    const { input } = need(blocks.find(({ type }) => type === "tool_use"), "no call");
    need(rivers.includes(input.river), "wrong value");
    return JSON.stringify(input);
  },
  "LangChain.js: stream": async () =>
    joined(await (await langchain()).stream(prompt), ({ content }) => content),
  "LangChain.js: withStructuredOutput": async () => {
    const given = (await langchain()).withStructuredOutput(await river(), { method: "jsonSchema" });
    return JSON.stringify(await given.invoke(prompt));
  },
  "Vercel AI SDK: streamText": async () => need(await (await vercel({})).text, "no text"),
  "Vercel AI SDK: streamText, an object": async () => {
    const { Output } = await import("ai");
    const stream = await vercel({ output: Output.object({ schema: await river() }) });
    return JSON.stringify(need(await stream.output, "no object"));
  },
  "Vercel AI SDK: streamText, a tool that is required": async () => {
    const { tool } = await import("ai");
    const tools = { river: tool({ description: "Notes a river.", inputSchema: await river() }) };
    const calls = await (await vercel({ tools, toolChoice: "required" })).toolCalls;
    need(calls.length, "no tool was called");
    return JSON.stringify(calls[0].input);
  },
};
console.log(await checks[asked]());
