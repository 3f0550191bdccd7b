// The server: its models, answers as they come, and Markdown. Read next: drawing.js.

const KEY = "tokalign.key", NUMBERS = ["temperature", "top_p", "max_tokens", "seed"]; // which go into a request as they are
const running = new Map(); // id of a chat that is being answered -> {stop, parent, message, began, read}
let models = [], isLeft = false; // as /v1/models lists them; whether the browser has left the page, which ends its answers
const model = () => models.find(one => one.id === settings.model) ?? models[0];

function ask(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  return fetch(path, { ...options, headers: { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) } });
}
const posted = (path, type, body, options) => ask(path, { method: "POST", headers: { "Content-Type": type }, body, ...options });
async function answered(send) { // its reply, once there is the right key
  for (;;) {
    const had = sessionStorage.getItem(KEY) !== null, reply = await send();
    if (reply.ok) return reply;
    const error = (await reply.json().catch(() => null))?.error;
    if (reply.status !== 401) throw new Error(error?.message ?? `The server answered ${reply.status}.`);
    if (!await askKey(had)) throw new Error("This server answers only with an API key.");
  }
}
async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "", part; !(part = await reader.read()).done; ) {
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: {")) yield JSON.parse(line.slice(6));
  }
}
function body(chat, messages) {
  const system = chat.system ?? settings.system;
  const asked = { messages: messages.map(({ role, content }) => ({ role, content })), stream: true, return_progress: true, tokalign: { sources: true } };
  if (system) asked.messages.unshift({ role: "system", content: system });
  if (model()) asked.model = model().id;
  for (const name of NUMBERS) if (Number.isFinite(settings[name])) asked[name] = settings[name];
  return asked;
}

// Have a question answered, or a cut answer continued. What was there stays until the new answer has begun.
async function answer(chat, parent, cut) {
  const message = cut ?? { role: "assistant", content: "", tokens: [], by: {}, passes: 0, count: 0, parent };
  const before = chat.messages[parent].next, old = cut ? undefined : chat.messages[before]?.content;
  const run = { stop: new AbortController(), parent, message, began: Boolean(cut), base: message.passes ?? 0 };
  Object.assign(message, { timed: 0, rounds: 0, ended: undefined });
  delete chat.trouble;
  running.set(chat.id, run);
  refresh(chat);
  say("Answering");
  let saved = Date.now(), began = null;
  try {
    const asked = body(chat, path(chat, cut ? chat.messages.indexOf(cut) : parent));
    const reply = await answered(() => posted("v1/chat/completions", "application/json", JSON.stringify(asked), { signal: run.stop.signal }));
    for await (const event of events(reply)) {
      if (event.error) throw new Error(event.error.message);
      run.read = event.prompt_progress ?? run.read;
      for (const choice of event.choices) {
        if (choice.tokalign?.tokens.length) began ??= performance.now();
        take(message, choice, run.base, (performance.now() - began) / 1000);
      }
      if (!run.began && (message.content || message.thought)) {
        run.began = true;
        add(chat, message);
        refresh(chat, false);
      } else if (chat === current) draw();
      if (run.began && Date.now() - saved > 1000) { save(chat); saved = Date.now(); }
    }
    message.ended ??= "cut";
    if (!run.began) throw new Error(message.ended === "cut" ? "The server ended the answer before it began." : "The model answered nothing.");
  } catch (error) {
    message.ended = run.stop.signal.aborted || (isLeft && run.began) ? "stopped" : "cut";
    if (message.ended === "cut" && !isLeft) chat.trouble = { parent, text: error instanceof TypeError ? "The server cannot be reached." : error.message };
    if (chat.trouble) ask("v1/models").then(reply => reply.ok && showModels(reply)).catch(() => {}); // it may be another server by now
  }
  if (old !== undefined && message.content === old) message.ended = "same";
  running.delete(chat.id);
  if (message.ended === "stopped" && !run.began && chats.has(chat.id) && parent === chat.messages.length - 1) reopen(takeBack(chat), chat);
  save(chat);
  refresh(chat, false);
  say(chat.trouble?.text ?? (message.ended === "stopped" ? "Stopped" : "The answer is complete"));
  return run.began;
}
function take(message, choice, base, seconds) {
  const { delta = {}, tokalign } = choice, tokens = tokalign?.tokens ?? [], text = delta.content ?? "";
  message.thought = (message.thought ?? "") + (delta.reasoning ?? "") || undefined;
  message.content += text;
  const whole = tokens.map(one => one.text).join("") === text; // else something was held back, such as a tag
  for (const one of whole ? tokens : [{ source: "target", outcome: "undrafted", pass: 1, ...tokens.at(-1), text }])
    if (one.text) message.tokens?.push([one.text, one.source, one.outcome, base + one.pass]);
  for (const one of tokens) {
    message.by[kind(one.source)] = (message.by[kind(one.source)] ?? 0) + 1;
    message.passes = Math.max(message.passes, base + one.pass);
    message.rounds = Math.max(message.rounds, one.pass);
    message.count += 1;
    if (one.pass > 1) message.timed += 1;
  }
  if (tokens.length) message.seconds = seconds;
  message.ended = choice.finish_reason ?? undefined;
}
