// The panel that finds what to steer with: features by meaning, features active on a text, or registered vectors.
import { post } from "../../openai_api/tokens/post.js";

const PAUSE_MS = 250;

export class Find {
  // `request` returns the fields of all requests; `add` gets the card's feature.
  constructor(root, { urls, request, add }) {
    this._root = root;
    this._urls = urls;
    this._request = request;
    this._add = add;
    this._timer = 0;
    this._running = null;
    this._query.addEventListener("input", () => {
      window.clearTimeout(this._timer);
      this._timer = window.setTimeout(() => this.search(), PAUSE_MS);
    });
    this._query.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.isComposing) return;
      event.preventDefault();
      this.search();
    });
    root.querySelector("[data-act=read]").addEventListener("click", () => this._read());
    for (const by of root.querySelectorAll("[name=by]")) by.addEventListener("change", () => this._choose(by.value));
  }

  get _query() { return this._root.querySelector("#studio-search"); }
  get _state() { return this._root.querySelector(".studio-found-state"); }
  get _list() { return this._root.querySelector(".studio-found"); }
  get _sae() { return this._root.querySelector("[name=sae]"); }
  get sae() { return this._sae.value || null; }

  // Ends when features are shown.
  async fill(saes) {
    this._sae.replaceChildren(...saes.map((name) => new Option(name, name)));
    this._root.querySelector(".studio-sae").hidden = saes.length < 2;
    this._list.replaceChildren();
    if (saes.length) return this.search();
    this._state.textContent = "The model has no SAE.";
  }

  // As if the user had chosen it.
  choose(by) {
    const choice = this._root.querySelector(`[name=by][value="${CSS.escape(by)}"]`);
    if (!choice) return;
    choice.checked = true;
    this._choose(by);
  }

  search() {
    window.clearTimeout(this._timer);
    const q = this._query.value.trim();
    return this._show(this._urls.features, { q }, q ? "No matching features." : "No features.");
  }

  _read() {
    const text = this._root.querySelector("#studio-text").value;
    if (!text.trim()) return void (this._state.textContent = "Enter a text first.");
    this._show(this._urls.text, { text, sae: this.sae }, "No feature is active on this text.");
  }

  _choose(by) {
    for (const part of this._root.querySelectorAll("[data-by]")) part.hidden = part.dataset.by !== by;
    if (by === "vectors") this._show(this._urls.vectors, {}, "The model has no vectors.");
    if (by === "words") this.search();
  }

  async _show(url, fields, none) {
    this._running?.abort();
    const running = (this._running = new AbortController());
    this._state.textContent = "Searching …";
    this._list.setAttribute("aria-busy", "true");
    try {
      const { features } = await (await post(url, { ...this._request(), ...fields }, running.signal)).json();
      this._list.replaceChildren(...features.map((feature) => this._card(feature)));
      this._state.textContent = features.length ? "" : none;
    } catch (error) {
      if (!running.signal.aborted) this._state.textContent = error.message;
    } finally {
      if (this._running === running) this._list.removeAttribute("aria-busy");
    }
  }

  _card(feature) {
    const card = document.getElementById("studio-card").content.firstElementChild.cloneNode(true);
    const name = card.querySelector(".studio-card-name");
    name.href = feature.url;
    name.textContent = feature.set ? feature.label : `#${feature.index} ${feature.label || "(no label)"}`;
    const add = card.querySelector("[data-act=add]");
    add.setAttribute("aria-label", `Add ${name.textContent}`);
    add.addEventListener("click", () => this._add(feature));
    card.querySelector(".studio-card-facts").append(...(feature.set ? vectorFacts(feature) : facts(feature)));
    const examples = card.querySelector(".studio-card-examples");
    examples.append(...feature.examples.map(example));
    if (!feature.examples.length && feature.sample) examples.append(sample(feature.sample));
    return card;
  }
}

function facts({ steersWell, strength, tokens, outputs }) {
  const parts = [];
  if (steersWell !== null) {
    const meter = document.createElement("meter");
    Object.assign(meter, { min: 0, max: 0.5, value: steersWell, title: `Steers well: ${steersWell.toFixed(3)} of 1` });
    meter.setAttribute("aria-label", "Steers well");
    parts.push(meter, strength === null ? " unstable" : "");
  } else parts.push("effect not measured");
  if (tokens.length) parts.push(` · fires on ${words(tokens)}`);
  return [...parts, ...writes(outputs)];
}

const vectorFacts = (vector) => [vector.facts, ...writes(vector.outputs)];
const writes = (outputs) => outputs.length ? [` · writes ${words(outputs)}`] : [];

const words = (tokens) => tokens.map((token) => token.trim() || JSON.stringify(token)).join(", ");

// How the model answered when it was steered with the feature.
function sample(text) {
  const line = document.createElement("p");
  line.className = "steering-example";
  line.textContent = `Steered: ${text}`;
  return line;
}

// The tokens of a text with their activations.
function example(tokens) {
  const line = document.createElement("p");
  line.className = "steering-example";
  for (const [text, heat, value] of tokens) {
    const part = document.createElement(heat ? "mark" : "span");
    part.textContent = text;
    if (heat) Object.assign(part, { className: `steering-heat-${heat}`, title: value.toFixed(2) });
    line.append(part);
  }
  return line;
}
