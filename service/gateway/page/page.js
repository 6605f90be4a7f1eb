// A chat page without a build step. What people and models say goes into the document as text, never as markup.

import { answer } from "/stream.js";

const $ = (id) => document.getElementById(id);
const scroll = $("scroll"), list = $("messages"), text = $("text"), send = $("send"), stop = $("stop");

let conversation = []; // {role, content}
let session = newSession();
let running = null; // AbortController of the answer that comes
let useSession = true;

/* ---------------------------------------------------------------- one turn */

async function ask(question) {
  if (running) return;
  $("welcome").hidden = true;
  conversation.push({ role: "user", content: question });
  const mine = add("li", "mine", list);
  mine.textContent = question;
  await play();
}

async function play() {
  const item = add("li", "theirs busy", list);
  item.setAttribute("aria-busy", "true");
  const said = add("div", "said", item);
  add("p", "waiting", said).textContent = "…";
  toBottom(true);

  running = new AbortController();
  const { signal } = running;
  const asked = performance.now();
  const turn = { item, said, text: "", first: null, pieces: 0, figures: null, waiting: null, resumed: 0 };
  working(true);
  let failure = null;
  try {
    await answer(request(), $("key").value, signal, (told) => hear(turn, told));
  } catch (error) {
    if (!signal.aborted) failure = error;
  }
  const stopped = signal.aborted;
  running = null;
  working(false);
  item.classList.remove("busy");
  item.removeAttribute("aria-busy");
  if (!item.isConnected) return; // a new chat began meanwhile
  if (failure?.param === "session_id" && useSession) { // a key that may keep no sessions
    useSession = false;
    item.remove();
    return play();
  }
  if (turn.text) conversation.push({ role: "assistant", content: turn.text });
  render(said, turn.text);
  finish(turn, asked, failure, stopped);
  text.focus();
}

function request() {
  const system = $("system").value.trim();
  const body = {
    messages: [...(system ? [{ role: "system", content: system }] : []), ...conversation],
    stream: true,
  };
  const temperature = $("temperature").value, most = $("max-tokens").value;
  if (temperature !== "") body.temperature = Number(temperature);
  if (most !== "") body.max_completion_tokens = Number(most);
  if (useSession) body.session_id = session;
  return body;
}

function hear(turn, told) {
  if ("waiting" in told) {
    if (told.waiting && !turn.waiting) turn.resumed += 1;
    turn.waiting = told.waiting;
  }
  if (told.text) {
    turn.first ??= performance.now();
    turn.pieces += 1;
    turn.text += told.text;
  }
  if (told.figures) turn.figures = told.figures;
  if (!turn.frame) {
    turn.frame = requestAnimationFrame(() => {
      turn.frame = null;
      if (!turn.item.isConnected || turn.done) return;
      const near = atBottom();
      render(turn.said, turn.text, turn.waiting);
      if (near) toBottom();
    });
  }
}

function finish(turn, asked, failure, stopped) {
  turn.done = true;
  const near = atBottom();
  for (const button of list.querySelectorAll(".again")) button.remove();
  const note = add("div", "note", turn.item);
  const shown = add("ul", "figures", note);
  shown.setAttribute("aria-label", "Figures of this answer");
  for (const [words, title, kind] of figures(turn, asked)) {
    const entry = add("li", kind, shown);
    entry.textContent = words;
    entry.title = title;
  }
  if (stopped) add("span", "", note).textContent = "stopped";
  if (turn.figures?.finish_reason === "length") add("span", "", note).textContent = "reached its limit of tokens";
  if (turn.figures?.finish_reason === "deadline") add("span", "", note).textContent = "ran out of time";
  if (failure) problem(turn.item, failure);
  else addButton(note, "Try again", "quiet again", () => again(turn.item));
  if (turn.text) addButton(note, "Copy", "quiet", (button) => copy(turn.text, button));
  if (near) toBottom(true);
}

function figures(turn, asked) {
  const made = turn.figures, shown = [];
  const tokens = made?.completion_tokens ?? turn.pieces;
  const seconds = made?.decode_s || (turn.first && (performance.now() - turn.first) / 1000);
  if (tokens > 1 && seconds > 0) shown.push([`${((tokens - 1) / seconds).toFixed(1)} tokens/s`, "after the first token", ""]);
  if (turn.first) shown.push([`first token ${((turn.first - asked) / 1000).toFixed(2)} s`, "from your click to the first word here", ""]);
  if (made) {
    shown.push([`${made.completion_tokens} tokens`, `${made.prompt_tokens} tokens read, ${made.cached_tokens} of them kept from before`, ""]);
    const eager = Object.values(made.eager_steps).reduce((sum, steps) => sum + steps, 0);
    const why = Object.entries(made.eager_steps).map(([reason, steps]) => `${steps} ${reason}`).join(", ");
    shown.push([`${made.replays} replays, ${eager} eager`, why ? `not replayed: ${why}` : "every step was a graph replay", eager ? "" : "good"]);
  }
  if (turn.resumed) shown.push([`picked up ${turn.resumed}×`, "the connection broke and the answer went on where it stopped", ""]);
  return shown;
}

function problem(item, failure) {
  const box = add("div", "problem", item);
  box.setAttribute("role", "alert");
  add("strong", "", box).textContent = TITLES[failure.status] ?? TITLES[failure.code] ?? "The answer broke off";
  add("span", "", box).textContent = failure.status === 401 ? "This server answers only to keys that it knows." : failure.message;
  const actions = add("div", "", box);
  addButton(actions, "Try again", "again", () => again(item));
  if (failure.status === 401) addButton(actions, "Enter an API key", "again", openSettings);
}

const TITLES = {
  400: "The request was refused", 401: "A key is needed", 403: "Not allowed", 404: "Not found",
  409: "The answer cannot go on", 413: "Too much text", 429: "The server is full",
  502: "The answer broke off", 503: "No server right now", 504: "It took too long", 0: "No connection",
};

function again(item) {
  if (running) return;
  if (conversation.at(-1)?.role === "assistant") conversation.pop();
  item.remove();
  play();
}

/* ---------------------------------------------------------------- the page */

// Text with fenced code, `code` and **bold**; everything else stands as it came.
function render(into, source, waiting = null) {
  const parts = [];
  source.split(/^```[^\n`]*\n?/m).forEach((part, index) => {
    if (index % 2) {
      const pre = document.createElement("pre");
      pre.tabIndex = 0;
      add("code", "", pre).textContent = part.replace(/\n$/, "");
      parts.push(pre);
    } else if (part.trim()) {
      const paragraph = document.createElement("p");
      for (const piece of part.trim().split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/)) {
        if (/^`.+`$/.test(piece)) add("code", "", paragraph).textContent = piece.slice(1, -1);
        else if (/^\*\*.+\*\*$/.test(piece)) add("strong", "", paragraph).textContent = piece.slice(2, -2);
        else paragraph.append(piece);
      }
      parts.push(paragraph);
    }
  });
  if (waiting || (!parts.length && running)) {
    const paragraph = document.createElement("p");
    paragraph.className = "waiting";
    paragraph.textContent = waiting ?? "…";
    parts.push(paragraph);
  }
  into.replaceChildren(...parts);
}

function add(tag, names, parent) {
  const made = document.createElement(tag);
  if (names) made.className = names;
  parent.append(made);
  return made;
}

function addButton(parent, words, names, act) {
  const button = add("button", names, parent);
  button.type = "button";
  button.textContent = words;
  button.addEventListener("click", () => act(button));
}

async function copy(words, button) {
  try {
    await navigator.clipboard.writeText(words);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Cannot copy";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

function working(on) {
  send.hidden = on;
  stop.hidden = !on;
  send.disabled = !text.value.trim();
}

function atBottom() { return scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80; }
function toBottom(smooth = false) { scroll.scrollTo({ top: scroll.scrollHeight, behavior: smooth ? "smooth" : "instant" }); }
function openSettings() { $("settings").showModal(); }

function newSession() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function fit() {
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight}px`;
  send.disabled = !text.value.trim();
}

function submit() {
  const question = text.value.trim();
  if (!question || running) return;
  text.value = "";
  fit();
  ask(question);
}

async function showModel() {
  const show = (words, state) => { $("model-text").textContent = words; $("model").dataset.state = state; };
  try {
    const headers = $("key").value ? { Authorization: `Bearer ${$("key").value}` } : {};
    const response = await fetch("/v1/models", { headers });
    if (response.status === 401) return show("a key is needed", "bad");
    if (!response.ok) return show("no server", "bad");
    const [model] = (await response.json()).data;
    const { device, graphs } = model.soloist;
    show(`${model.id} · ${device} · ${graphs.enabled ? "graph replays" : `eager (${graphs.eager_reason})`}`, "good");
  } catch {
    show("no gateway", "bad");
  }
}

$("composer").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
text.addEventListener("input", fit);
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); submit(); }
});
stop.addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !$("settings").open) running?.abort(); });
$("open-settings").addEventListener("click", openSettings);
$("settings").addEventListener("close", showModel);
$("new").addEventListener("click", () => {
  running?.abort();
  conversation = [];
  session = newSession();
  list.replaceChildren();
  $("welcome").hidden = false;
  text.focus();
});
for (const button of $("suggestions").querySelectorAll("button")) button.addEventListener("click", () => ask(button.textContent));
fit();
showModel();
setInterval(() => { if (!running && !document.hidden) showModel(); }, 15000);
