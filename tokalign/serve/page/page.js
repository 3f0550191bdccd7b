// What the user does. The files before this one: conversations.js, answers.js, drawing.js.

const say = text => { $("status").textContent = text; };
const action = (name, onclick, more) => element("button", { onclick, ...more }, name);

function actions(message) {
  const chat = current, index = chat.messages.indexOf(message), others = versions(chat, message), at = others.indexOf(message);
  const made = element("div", { class: "actions" });
  if (running.has(chat.id)) return made;
  const turn = by => () => { choose(chat, others[at + by]); save(chat); refresh(chat, false); };
  if (others.length > 1) made.append(action("‹", turn(-1), { "aria-label": "Version before", disabled: at === 0 }),
    element("span", { class: "of" }, `${at + 1} / ${others.length}`),
    action("›", turn(1), { "aria-label": "Version after", disabled: at === others.length - 1 }));
  if (message.content) made.append(copier(() => message.content));
  if (message.role === "user") made.append(action("Edit", () => edit(message)));
  else {
    made.append(action("Regenerate", () => { answer(chat, message.parent); $("text").focus(); }));
    if (message.content && ["stopped", "cut", "length"].includes(message.ended) && message.next === undefined)
      made.append(action("Continue", () => { answer(chat, message.parent, chat.messages[index]); $("text").focus(); }));
  }
  return made;
}
function edit(message) { // in its place; what followed stays, under the version that it followed
  const chat = current, article = articleOf(message);
  const area = element("textarea", { "aria-label": "Edit the message", rows: "3" });
  area.value = message.content;
  const done = () => refresh(chat, false);
  const send = () => {
    const content = area.value.trim();
    if (!content || content === message.content || running.has(chat.id)) return done();
    add(chat, { role: "user", content, parent: message.parent });
    answer(chat, chat.messages.length - 1);
  };
  area.addEventListener("keydown", event => {
    if (event.key === "Escape") { event.stopPropagation(); done(); }
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
  });
  article.replaceChildren(area, element("div", { class: "actions" }, action("Send", send), action("Cancel", done)));
  area.focus();
}
function copier(text) {
  return action("Copy", async ({ currentTarget: button }) => {
    button.textContent = await copied(text()) ? "Copied" : "Not copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}
async function copied(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const area = element("textarea", { class: "unseen" }); // of plain HTTP from another machine
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
function show(id) {
  current = chats.get(id) ?? begun();
  history.replaceState(null, "", chats.has(id) ? `#${id}` : location.pathname); // a reload comes back to it
  $("nav").hidePopover();
  $("text").value = sessionStorage.getItem(DRAFT + (chats.has(id) ? id : "")) ?? "";
  grow();
  refresh(current);
  if (matchMedia("(hover: hover)").matches) $("text").focus();
}
async function send() {
  const chat = current, content = $("text").value.trim();
  if (!content || running.has(chat.id)) return;
  keep("");
  const before = path(chat).at(-1);
  if (before?.role === "user") { // it has no answer: this is the rest of it
    before.content += `\n\n${content}`;
  } else add(chat, { role: "user", content, parent: before ? chat.messages.indexOf(before) : -1 });
  chat.title ||= beginning(content.split("\n", 1)[0], 60);
  chats.set(chat.id, chat);
  save(chat);
  history.replaceState(null, "", `#${chat.id}`);
  $("text").value = "";
  grow();
  answer(chat, chat.messages.indexOf(path(chat).at(-1)));
}
function reopen(text, chat) { // a question that was stopped before its answer began is edited and sent again
  if (chat !== current || $("text").value) return keep(text, chat);
  $("text").value = text;
  keep(text);
  grow();
}
function keep(text, chat = current) { // what is being written survives a reload, if the browser has room
  try { sessionStorage.setItem(DRAFT + (chats.has(chat.id) ? chat.id : ""), text); } catch { say("The browser has no room left to keep the message."); }
}
function grow() {
  $("text").style.height = "auto";
  $("text").style.height = `${$("text").scrollHeight}px`;
  if (current) button();
}
function opened(dialog) { // -> the fields, or null if it was left
  const form = dialog.querySelector("form");
  dialog.returnValue = "cancel";
  if (!dialog.open) dialog.showModal();
  return new Promise(done => dialog.addEventListener("close", () => {
    const given = Object.fromEntries(new FormData(form));
    if (dialog.id === "key") form.reset();
    done(dialog.returnValue === "ok" ? given : null);
  }, { once: true }));
}
async function askKey(wrong) {
  $("key-why").textContent = wrong ? "This key was not accepted." : "This server answers only with a key.";
  const given = await opened($("key"));
  if (given) sessionStorage.setItem(KEY, given.key.trim());
  return given !== null;
}
async function set() {
  const form = $("settings").querySelector("form");
  for (const name of ["system", ...NUMBERS]) form.elements[name].value = settings[name] ?? "";
  $("nav").hidePopover();
  const given = await opened($("settings"));
  if (!given) return;
  settings = { model: settings.model, system: given.system.trim() };
  for (const name of NUMBERS) if (given[name] !== "") settings[name] = Number(given[name]);
  put(SETTINGS, settings);
}
async function remove() {
  const chat = current;
  if (!await opened($("sure"))) return;
  running.get(chat.id)?.stop.abort();
  chats.delete(chat.id);
  localStorage.removeItem(CHAT + chat.id);
  show(newest()[0]?.id);
}
function look(inColours) {
  put(VIEW, inColours);
  $("colours").setAttribute("aria-pressed", inColours);
  $("log").classList.toggle("coloured", inColours);
}

const clicks = { new: () => { show(); $("text").focus(); }, export: () => exported(current), import: () => $("file").click(), delete: remove,
  "open-settings": set, colours: () => look(!$("log").matches(".coloured")), log: explain };
for (const [id, done] of Object.entries(clicks)) $(id).addEventListener("click", done);
$("composer").addEventListener("submit", event => {
  event.preventDefault();
  if (running.has(current.id)) running.get(current.id).stop.abort(); else send();
  $("text").focus();
});
$("text").addEventListener("keydown", event => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
$("text").addEventListener("input", () => { grow(); keep($("text").value); });
$("search").addEventListener("input", list);
$("model").addEventListener("change", () => { put(SETTINGS, settings = { ...settings, model: $("model").value }); refresh(current, false); });
$("file").addEventListener("change", async () => {
  const [file] = $("file").files;
  $("file").value = "";
  try { show(imported(await file.text()).id); } catch { $("log").prepend(element("p", { class: "error", role: "alert" }, `${file.name} has no conversation in it: choose a file that Export or /save of tokalign chat wrote.`)); stick(false); }
});
document.addEventListener("keydown", event => {
  if (event.key === "Escape" && !event.isComposing && !document.querySelector("dialog[open], nav:popover-open")) running.get(current.id)?.stop.abort();
});
$("title").addEventListener("change", () => {
  current.title = $("title").value.trim() || current.title;
  save(current);
  refresh(current, false);
});
$("title").addEventListener("keydown", event => { if (event.key === "Enter") $("text").focus(); });
$("log").addEventListener("mouseover", explain);
$("log").addEventListener("keydown", walk);
window.addEventListener("hashchange", () => show(location.hash.slice(1)));
window.addEventListener("pagehide", () => { isLeft = true; for (const id of running.keys()) save(chats.get(id)); });
window.addEventListener("pageshow", () => { isLeft = false; });
window.addEventListener("storage", ({ key }) => { // another tab has written
  const id = key?.startsWith(CHAT) && key.slice(CHAT.length);
  if (!id || running.has(id)) return;
  load(id);
  if (id !== current.id) list();
  else if (!chats.has(id)) show();
  else if (!$("log").querySelector("textarea")) refresh(current = chats.get(id), false); // else a message is being edited
});

for (const key of Object.keys(localStorage)) if (key.startsWith(CHAT)) load(key.slice(CHAT.length));
look(stored(VIEW, true));
show(location.hash.slice(1));
answered(() => ask("v1/models")).then(showModels).catch(error => say(error.message));
