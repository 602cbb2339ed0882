// The command palette: Ctrl+K or Cmd+K opens it, typing searches, Enter opens the chosen result. The server decides what
// the user can find. Follows the ARIA combobox pattern: the focus stays in the field, aria-activedescendant moves.

const WAIT_MS = 120; // after the last key, before the server is asked
const KEY = /^(sk-millm-.{4}).+$/s; // a pasted API key: only the prefix that lists show leaves the browser

const dialog = document.getElementById("palette");
const field = dialog.querySelector("input");
const list = document.getElementById("palette-found");
const state = dialog.querySelector(".palette-state");
const button = document.getElementById("search-button");

let timer = 0;
let running = null; // AbortController of the request under way
let opensWhenFound = false; // Enter was pressed before the results were there

export function openPalette() {
  if (dialog.open) return;
  field.value = "";
  list.replaceChildren();
  dialog.showModal();
  search();
}

export function isPaletteOpen() {
  return dialog.open;
}

const isMac = /Mac|iPhone|iPad/.test(navigator.platform);
if (isMac) button.querySelector("kbd").textContent = "⌘K";

button.addEventListener("click", (event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return; // in a new tab
  event.preventDefault();
  openPalette();
});
document.addEventListener("keydown", (event) => {
  const isShortcut = event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey;
  if (!isShortcut) return;
  event.preventDefault();
  if (dialog.open) dialog.close();
  else openPalette();
});
dialog.addEventListener("click", (event) => {
  if (event.target === dialog || event.target.closest(".palette-close")) dialog.close();
});
dialog.addEventListener("close", stop);
field.addEventListener("input", () => {
  stop();
  list.setAttribute("aria-busy", "true");
  timer = window.setTimeout(search, WAIT_MS);
});
field.addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step) {
    event.preventDefault();
    const found = options();
    if (found.length) choose(found[(found.indexOf(chosen()) + step + found.length) % found.length]);
  }
});
dialog.querySelector("form").addEventListener("submit", (event) => {
  if (list.getAttribute("aria-busy") === "true") {
    event.preventDefault();
    opensWhenFound = true;
  } else if (chosen()) {
    event.preventDefault();
    chosen().click();
  } else if (!field.value.trim()) {
    event.preventDefault();
  }
});
list.addEventListener("pointermove", (event) => {
  const option = event.target.closest("[role=option]");
  if (option && option !== chosen()) choose(option, false);
});
list.addEventListener("mousedown", (event) => event.preventDefault()); // the focus stays in the field

function stop() {
  window.clearTimeout(timer);
  running?.abort();
  running = null;
  opensWhenFound = false;
  list.setAttribute("aria-busy", "false");
}

async function search() {
  const asked = (running = new AbortController());
  list.setAttribute("aria-busy", "true");
  try {
    const url = `${dialog.dataset.url}?${new URLSearchParams({ q: field.value.trim().replace(KEY, "$1") })}`;
    const answer = await fetch(url, { signal: asked.signal, headers: { Accept: "application/json" } });
    if (answer.redirected) throw new Error("You are logged out. Reload the page to log in.");
    if (!answer.ok) throw new Error(`The search failed with status ${answer.status}. Try again.`);
    show((await answer.json()).groups);
  } catch (error) {
    if (asked.signal.aborted) return;
    show([]);
    state.textContent = error instanceof TypeError ? "The server cannot be reached. Try again." : error.message;
  }
  if (asked !== running) return;
  const opens = opensWhenFound;
  stop();
  if (opens) chosen()?.click();
}

function show(groups) {
  const parts = groups.map((group, number) => groupPart(group, `palette-group-${number}`));
  list.replaceChildren(...parts);
  const found = options();
  found.forEach((option, number) => (option.id = `palette-option-${number}`));
  list.hidden = found.length === 0;
  field.setAttribute("aria-expanded", String(found.length > 0));
  const text = field.value.trim();
  state.textContent = found.length || !text ? "" : `No results for "${text}".`;
  if (found.length && text) choose(found[0]);
  else field.removeAttribute("aria-activedescendant");
  list.scrollTop = 0;
}

function groupPart(group, id) {
  const part = document.createElement("div");
  part.setAttribute("role", "group");
  part.setAttribute("aria-labelledby", id);
  const title = document.createElement("h2");
  title.id = id;
  title.setAttribute("role", "presentation");
  title.textContent = group.title;
  part.append(title, ...group.hits.map((hit) => optionOf(hit.url, hit.name, hit.note, hit.icon)));
  if (group.more) part.append(optionOf(group.more, `More ${group.title.toLowerCase()} …`, "", "ellipsis"));
  return part;
}

// Names and notes are texts of users and clients: set as text, never as HTML.
function optionOf(url, name, note, icon) {
  const option = document.createElement("a");
  option.href = url;
  option.tabIndex = -1;
  option.setAttribute("role", "option");
  option.setAttribute("aria-selected", "false");
  option.append(iconOf(icon), textOf("palette-name", name), textOf("palette-note", note));
  return option;
}

function textOf(className, text) {
  const part = document.createElement("span");
  part.className = className;
  part.textContent = text;
  return part;
}

function iconOf(name) {
  const icon = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  icon.setAttribute("class", "icon");
  icon.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `${dialog.dataset.icons}#${name}`);
  icon.append(use);
  return icon;
}

function options() {
  return [...list.querySelectorAll("[role=option]")];
}

function chosen() {
  return list.querySelector("[aria-selected=true]");
}

function choose(option, scrolls = true) {
  chosen()?.setAttribute("aria-selected", "false");
  option.setAttribute("aria-selected", "true");
  field.setAttribute("aria-activedescendant", option.id);
  if (scrolls) option.scrollIntoView({ block: "nearest" });
}
