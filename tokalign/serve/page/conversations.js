// Conversations, as they are kept in this browser. Read next: answers.js.
//
// A conversation is a tree: every message has the index of the one that it follows (`parent`, -1 for
// a first one) and of the one that is shown after it (`next`). Another answer to a question, and a
// question that was edited, are siblings of what was there. So nothing that was written is lost.

const CHAT = "tokalign.chat.", DRAFT = "tokalign.draft.", SETTINGS = "tokalign.settings", VIEW = "tokalign.view";
const chats = new Map(), unsaved = new Set(); // id -> {id, title, changed, next, messages}; those for which the browser has no room
let settings = stored(SETTINGS, {}), current = null;

function stored(key, otherwise) {
  try { return JSON.parse(localStorage.getItem(key)) ?? otherwise; } catch { return otherwise; }
}
function put(key, value) {
  try { localStorage.setItem(key, JSON.stringify(value)); return true; } catch { return false; }
}
const beginning = (text, most) => [...text.slice(0, 2 * most)].slice(0, most).join(""); // of whole characters
const newest = () => [...chats.values()].sort((a, b) => b.changed - a.changed);
function begun(given = {}) { // a conversation, also one of an older page, whose messages are a list
  const chat = { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", changed: 0, messages: [], ...given };
  const { messages } = chat, isList = messages.length && chat.next === undefined;
  if (isList) messages.forEach((message, i) => Object.assign(message, { parent: i - 1, next: i + 1 < messages.length ? i + 1 : undefined }));
  if (isList) chat.next = 0;
  return chat;
}
function load(id) {
  const chat = stored(CHAT + id);
  if (!Array.isArray(chat?.messages)) return chats.delete(id);
  for (const message of chat.messages) if (message.role === "assistant") message.ended ??= "stopped"; // the page was left
  const known = chats.get(id), read = begun(chat);
  if (known) read.messages = read.messages.map((message, i) => renewed(known.messages[i], message));
  chats.set(id, renewed(known, read));
}
function renewed(old = {}, data) { // the same object, for whoever shows or edits it
  for (const key of Object.keys(old)) delete old[key];
  return Object.assign(old, data);
}
function save(chat) {
  if (!chat.messages.length || !chats.has(chat.id)) return;
  unsaved.delete(chat);
  while (!put(CHAT + chat.id, chat)) { // full: the colours of the oldest answers go first
    const loaded = newest().findLast(other => other.messages.some(message => message.tokens));
    if (!loaded) return unsaved.add(chat);
    for (const message of loaded.messages) delete message.tokens;
    put(CHAT + loaded.id, loaded);
  }
}

// -- the tree --------------------------------------------------------------------------------------

function path(chat, end) { // what is shown, or what comes up to the message with the index `end`
  const found = [];
  if (end !== undefined) for (let i = end; i >= 0; i = chat.messages[i].parent) found.unshift(chat.messages[i]);
  else for (let i = chat.next; i !== undefined; i = chat.messages[i].next) found.push(chat.messages[i]);
  return found;
}
const versions = (chat, message) => chat.messages.filter(one => one.parent === message.parent && one.role === message.role);
function choose(chat, message) { // to be shown among its versions
  (chat.messages[message.parent] ?? chat).next = chat.messages.indexOf(message);
}
function add(chat, message) {
  chat.messages.push(message);
  choose(chat, message);
  chat.changed = Date.now();
}
function takeBack(chat) { // the last message, which has no answer; its text
  const { content, parent } = chat.messages.pop(), others = chat.messages.filter(one => one.parent === parent && one.role === "user");
  (chat.messages[parent] ?? chat).next = others.length ? chat.messages.indexOf(others.at(-1)) : undefined;
  if (!chat.messages.length) { chats.delete(chat.id); localStorage.removeItem(CHAT + chat.id); }
  return content;
}

// -- files -----------------------------------------------------------------------------------------

function exported(chat) {
  const data = JSON.stringify({ ...chat, exported: new Date().toISOString(), settings }, null, 1);
  const url = URL.createObjectURL(new Blob([data], { type: "application/json" }));
  element("a", { href: url, download: `${beginning(chat.title.match(/[\p{L}\p{N}]+/gu)?.join("-") ?? "conversation", 40)}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
function imported(text) { // what `exported` wrote, or a list of messages, as /save of `tokalign chat` writes it
  const given = JSON.parse(text), all = Array.isArray(given) ? given : given.messages;
  const known = all.every(({ role, content }) => ["system", "user", "assistant"].includes(role) && typeof content === "string");
  if (!known || !all.length) throw new Error("no messages");
  const isText = one => typeof one === "string", system = all.find(({ role }) => role === "system")?.content ?? given.system;
  const messages = all.filter(({ role }) => role !== "system");
  const inside = i => i === undefined || (Number.isInteger(i) && i >= -1 && i < messages.length);
  const isTree = messages.every(({ parent, next }, i) => Number.isInteger(parent) && parent < i && inside(parent) && inside(next) && !(next <= i));
  const title = beginning(String(given.title || messages[0].content.split("\n", 1)[0]), 120);
  const chat = begun({ title, system: isText(system) ? system : undefined, changed: Date.now(), messages, next: isTree && inside(given.next) ? given.next : undefined });
  for (const message of messages) { // figures of another kind than ours are left out
    const { tokens = [], by, count, passes } = message, isToken = one => Array.isArray(one) && one.length > 2 && one.slice(0, 3).every(isText);
    const areOurs = Array.isArray(tokens) && tokens.every(isToken) && by && [count, passes, ...Object.values(by)].every(Number.isFinite);
    if (!areOurs) Object.assign(message, { tokens: undefined, by: {}, count: 0, passes: 0 });
    if (!isText(message.thought)) delete message.thought;
    if (message.role === "assistant") message.ended ??= "stop";
  }
  chats.set(chat.id, chat);
  save(chat);
  return chat;
}
