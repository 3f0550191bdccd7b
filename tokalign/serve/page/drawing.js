// Drawing. Texts of models and users only ever become text nodes. Read next: page.js.

const $ = id => document.getElementById(id);
const element = (name, attributes = {}, ...content) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes))
    if (key === "onclick") made.addEventListener("click", value); else if (value) made.setAttribute(key, value);
  made.append(...content);
  return made;
};
const SOURCES = {
  draft: "draft model", dictionary: "dictionary", copy: "context", session: "earlier answers",
  logits: "logit store", grammar: "grammar", drafter: "trained drafter", target: "target itself" };
const OUTCOMES = { corrected: "target itself, in the place of a wrong guess", bonus: "target itself, after right guesses",
  undrafted: "target itself, nothing was guessed" };
const kind = source => source.split(":")[0];

function refresh(chat, toEnd = true) { // after a message came, ended or changed, or another chat was chosen
  list();
  if (chat !== current) return;
  const run = running.get(chat.id), messages = path(chat);
  $("title").value = chat.title;
  document.title = chat.title ? `${chat.title} · tokalign` : "tokalign";
  $("export").disabled = $("delete").disabled = !chat.messages.length;
  $("log").setAttribute("aria-busy", Boolean(run));
  const focus = focused();
  $("log").replaceChildren(...messages.length ? messages.map(view) : [hello()]);
  if (run && !run.began) $("log").append(element("p", { class: "progress wait" }, progress(run)));
  const last = messages.at(-1), waits = !run && last?.role === "user"; // such as after a reload
  const trouble = chat.trouble ?? (waits && { parent: chat.messages.indexOf(last), text: "This message has no answer yet." });
  if (trouble) $("log").append(element("div", { class: "error", role: "alert" }, trouble.text,
    element("div", { class: "actions" }, action("Try again", () => answer(chat, trouble.parent)))));
  if (unsaved.has(chat)) $("log").append(element("p", { class: "error", role: "alert" }, "The browser has no room left to keep this: export it, or delete other conversations."));
  button();
  stick(toEnd);
  focus?.();
}
const nameOf = one => one.getAttribute("aria-label") ?? one.textContent;
function focused() { // how to go on from what has the focus in the log, once it is drawn anew; undefined elsewhere
  const old = document.activeElement, at = [...$("log").querySelectorAll("article")].indexOf(old.closest("article"));
  if (!$("log").contains(old)) return;
  return () => {
    const there = [...$("log").querySelectorAll("article")[at]?.querySelectorAll("button:enabled, .text[tabindex]") ?? []];
    const next = there.find(one => nameOf(one) === nameOf(old)) ?? there[0] ?? $("text");
    if (next !== $("text") || matchMedia("(hover: hover)").matches) next.focus({ preventScroll: true });
  };
}
const progress = ({ read }) => read ? `Reading ${read.processed.toLocaleString("en")} of ${read.total.toLocaleString("en")} tokens` : "Waiting for the answer";
function list() {
  const words = $("search").value.trim().toLowerCase();
  const fits = chat => [chat.title, ...chat.messages.map(message => message.content)].some(text => text.toLowerCase().includes(words));
  $("list").replaceChildren(...newest().filter(fits).map(chat => element("li", {}, element("button", {
    "aria-current": chat === current && "true", onclick: () => show(chat.id), title: chat.title }, chat.title))));
}
function button() {
  const busy = running.has(current.id);
  $("go").className = busy ? "busy" : "";
  $("go").setAttribute("aria-label", busy ? "Stop" : "Send");
  $("go").disabled = !busy && !$("text").value.trim();
}
async function showModels(reply) { // those of a reply of /v1/models
  models = (await reply.json()).data;
  named();
  if (!path(current).length) refresh(current, false);
}
function named() { // the model, and where there are several, the choice
  const name = ({ id }) => id.split("/").filter(Boolean).at(-1);
  $("model").replaceChildren(...models.map(one => element("option", { value: one.id, selected: one === model() }, name(one))));
  $("model").disabled = models.length < 2;
  $("model").title = model()?.id ?? "";
}
function hello() {
  const there = model()?.tokalign?.sources; // unknown of a model that is not loaded
  const about = there?.length === 0 ? "On this server nobody guesses ahead, so nothing is coloured."
    : `Where a word is coloured, someone had guessed it before the model confirmed it${there ? ":" : "."}`;
  return element("div", { id: "hello" }, element("h2", {}, "Ask the model something"),
    element("p", {}, `The model chooses every word itself. ${about}`),
    element("ul", { class: "legend coloured" }, ...(there ?? []).map(source => element("li", {}, sample(source)))));
}
const sample = source => element("span", { class: `t ${source}` }, SOURCES[source] ?? source);

// -- a message -------------------------------------------------------------------------------------

function view(message) {
  const isUser = message.role === "user";
  const article = isUser ? element("article", { class: "user", "aria-label": "You" }, element("div", { class: "said" }, message.content), actions(message))
    : element("article", { class: "assistant", "aria-label": "Answer" }, element("div"), element("div", { class: "text" }), element("div", { class: "figures" }));
  if (!isUser) fill(article, message);
  return article;
}
let frame = 0;
function draw() { // once a frame, however many tokens have come
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    const run = running.get(current.id), last = path(current).at(-1), article = [...$("log").querySelectorAll("article")].at(-1);
    if (run && !run.began) $("log").querySelector(".progress")?.replaceChildren(progress(run));
    else if (last?.role === "assistant" && article?.matches(".assistant")) fill(article, last);
    stick(false);
  });
}
const isLive = message => running.get(current.id)?.message === message;
const WALKED = { tabindex: 0, role: "group", "aria-label": "Words: left and right say who guessed each" };
function fill(article, message) {
  const [thought, text, figures] = article.children, live = isLive(message);
  if (message.thought) {
    if (!thought.firstChild) thought.append(element("details", {}, element("summary", {}, "Thought"), ""));
    thought.firstChild.lastChild.data = message.thought.trim();
  }
  sync(text, parts(message, live));
  text.classList.toggle("wait", live);
  if (message.tokens?.length && !live) for (const [key, value] of Object.entries(WALKED)) text.setAttribute(key, value);
  const note = article.querySelector(".note") ?? element("span", { class: "note", role: "status" });
  const told = [measured(message), ...(message.tokens && message.count ? [legend(message)] : [])];
  figures.replaceChildren(...told, live ? element("div", { class: "actions" }) : actions(message), note);
}
function sync(parent, wanted) { // what stays in its place is not touched, so a selection in it stays
  wanted.forEach((one, i) => { if (parent.children[i] !== one) parent.insertBefore(one, parent.children[i] ?? null); });
  while (parent.children.length > wanted.length) parent.lastElementChild.remove();
}
function measured({ count, passes, timed, rounds, seconds, ended }) {
  const said = [], add = (...content) => said.push(...(said.length ? [" · "] : []), ...content);
  if (count) {
    add(`${count} ${count === 1 ? "token" : "tokens"} in ${passes} ${passes === 1 ? "pass" : "passes"}`);
    add(element("b", {}, (count / passes).toFixed(2)), " tokens per pass");
    if (rounds >= 8 && seconds > 0) { // fewer passes say too little
      const rate = timed / seconds;
      add(`${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s`);
    }
  }
  const why = { length: "cut off: the answer may be no longer (Settings)", cut: "cut off by the server", stopped: "stopped",
    same: "the same answer: at temperature 0 there is only one (Settings)" }[ended];
  if (why) add(why);
  return element("div", { class: "measured" }, ...said);
}
function legend({ by, count }) {
  const shown = Object.keys(by).sort((a, b) => (a === "target") - (b === "target") || by[b] - by[a]);
  return element("ul", { class: "legend" }, ...shown.map(source =>
    element("li", {}, sample(source), ` ${Math.round(100 * by[source] / count)} %`)));
}

// -- Markdown, as the server parses it -------------------------------------------------------------

const drawn = new WeakMap(); // message -> {blocks: [{from, to, element}], to: how much of it was parsed, live: by parts}
function parts(message, live) { // the blocks of an answer, then what has not been parsed, as it is
  const state = drawn.get(message) ?? { blocks: [], to: 0, rest: element("p", { dir: "auto" }), ends: [] };
  drawn.set(message, state);
  if (!state.asking && !state.failed && (state.to < message.content.length || (state.live && !live))) parse(message, state, live);
  const end = Math.min(state.to, state.blocks.at(-1)?.to ?? 0), rest = message.content.slice(end);
  const at = end + rest.length - rest.trimStart().length;
  state.rest.replaceChildren(...pieces({ at, text: message.content.slice(at) }, message, state));
  return [...state.blocks.map(block => block.element), ...(at < message.content.length ? [state.rest] : [])];
}
async function parse(message, state, live) {
  const began = performance.now(), length = message.content.length, from = live ? state.blocks.at(-1)?.from ?? 0 : 0;
  state.asking = true;
  try {
    const reply = await posted("page/markdown", "text/plain", message.content.slice(from));
    if (!reply.ok) throw new Error();
    const { blocks } = await reply.json();
    const made = blocks.map(({ from: begin, to, node }) => ({ from: from + begin, to: from + to, element: build(node, from, message, state)[0] }));
    for (const block of made) block.element.dir ||= "auto";
    Object.assign(state, { blocks: [...state.blocks.filter(block => block.to <= from), ...made], to: length, live });
  } catch { state.failed = true; setTimeout(() => { state.failed = false; }, 2000); } // it stays as it is
  setTimeout(() => { state.asking = false; const article = articleOf(message); if (article) { fill(article, message); stick(false); } }, live ? 80 + 4 * (performance.now() - began) : 0); // most of the server's time is left to the model
}
function articleOf(message) {
  const at = path(current).indexOf(message);
  return at >= 0 ? $("log").querySelectorAll("article")[at] : undefined;
}
function build(node, from, message, state) { // -> elements and texts
  if (node.text !== undefined) return pieces({ at: from + node.at, text: node.text }, message, state);
  const { tag, language, href, checked, align, start, kind: word } = node;
  const children = (node.children ?? []).flatMap(child => build(child, from, message, state));
  const level = /^h([1-6])$/.exec(tag)?.[1];
  if (level) return [element(`h${Math.min(6, Number(level) + 1)}`, {}, ...children)];
  if (tag === "pre") return [block(language, children)];
  if (tag === "table") return [element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table" }, element("table", {}, ...children))];
  if (tag === "input") return [element("input", { type: "checkbox", disabled: "true", checked, "aria-label": "Task" })];
  if (tag === "a") return [element("a", { href, target: "_blank", rel: "noopener noreferrer" }, ...children)];
  return [element(tag, { class: word ?? align, start }, ...children)];
}
function block(language, children) {
  const code = element("code", {}, ...children);
  return element("figure", { dir: "ltr" }, element("figcaption", {}, language, copier(() => code.textContent.trimEnd())),
    element("pre", { tabindex: "0" }, code));
}
function pieces({ at, text }, message, state) { // a text, cut where its tokens end
  const { tokens } = message, { ends } = state;
  if (!tokens) return [text];
  while (ends.length < tokens.length) ends.push((ends.at(-1) ?? 0) + tokens[ends.length][0].length);
  const made = [];
  let i = 0;
  for (let most = ends.length; i < most; ) { const half = (i + most) >> 1; if (ends[half] > at) most = half; else i = half + 1; }
  for (; text; i++) {
    const part = i < ends.length ? text.slice(0, ends[i] - at) : text;
    made.push(i < ends.length ? token(tokens[i], part) : part);
    text = text.slice(part.length);
    at += part.length;
  }
  return made;
}
function token([, source, outcome, pass], text) {
  const own = OUTCOMES[outcome];
  const who = own ?? `guessed by ${SOURCES[kind(source)] ?? kind(source)}${source.slice(kind(source).length)}`;
  return element("span", { class: own ? "t" : `t ${kind(source)}`, "data-note": `${who}, pass ${pass}` }, text);
}
function walk(event) { // through the words of an answer
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step || !event.target.matches(".text")) return;
  const words = [...event.target.querySelectorAll("[data-note]")], at = words.findIndex(word => word.matches(".chosen"));
  const next = words[at < 0 && step < 0 ? words.length - 1 : at + step];
  event.preventDefault();
  if (!next) return;
  explain({ target: next });
  next.scrollIntoView({ block: "nearest" });
}
function explain(event) {
  const chosen = event.target.closest?.("[data-note]");
  for (const old of $("log").querySelectorAll(".chosen")) old.classList.remove("chosen");
  if (!chosen) return;
  chosen.classList.add("chosen");
  chosen.closest("article").querySelector(".note").textContent = `“${chosen.textContent.replaceAll("\n", "↵")}”: ${chosen.dataset.note}`;
}
let follows = true, scrolled = 0; // whether the log's end stays in view: until the reader scrolls up, however much comes at once
function stick(always) {
  follows ||= always;
  if (follows) $("scroll").scrollTop = $("scroll").scrollHeight;
  scrolled = $("scroll").scrollTop; // the browser may tell of this and of the reader's scrolling at once
}
$("scroll").addEventListener("scroll", () => {
  const { scrollHeight, scrollTop, clientHeight } = $("scroll");
  follows = scrollHeight - scrollTop - clientHeight < 120 || (follows && scrollTop >= scrolled); // it may have grown meanwhile
  scrolled = scrollTop;
});
