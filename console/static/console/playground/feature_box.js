// A field that searches features while the user types. Results are a list of buttons, reached with the arrow keys.
const PAUSE_MS = 200;

export class FeatureBox {
  constructor(root, { url, model, chosen }) {
    this._input = root.querySelector("input");
    this._list = root.querySelector("ul");
    this._url = url;
    this._model = model;
    this._chosen = chosen;
    this._timer = 0;
    this._running = null;
    this._input.addEventListener("input", () => {
      window.clearTimeout(this._timer);
      this._timer = window.setTimeout(() => this._search(), PAUSE_MS);
    });
    root.addEventListener("keydown", (event) => this._key(event));
    root.addEventListener("focusout", (event) => {
      if (!root.contains(event.relatedTarget)) this._close();
    });
  }

  async _search() {
    this._running?.abort();
    this._running = new AbortController();
    const text = this._input.value.trim();
    if (!text) return this._close();
    const query = new URLSearchParams({ q: text, model: this._model() });
    try {
      const answer = await fetch(`${this._url}?${query}`, { credentials: "same-origin", signal: this._running.signal });
      if (!answer.ok || answer.redirected) throw new Error("refused");
      this._show((await answer.json()).features);
    } catch (error) {
      if (error.name !== "AbortError") this._say("Search failed. Try again.");
    }
  }

  _show(features) {
    if (!features.length) return this._say("No matching features.");
    this._list.replaceChildren(...features.map((feature) => this._item(feature)));
    this._list.hidden = false;
  }

  choose(feature) {
    this._input.value = nameOf(feature);
    this._close();
    this._chosen(feature);
  }

  _item(feature) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = nameOf(feature);
    button.title = feature.sae;
    button.addEventListener("click", () => {
      this.choose(feature);
      this._input.focus();
    });
    const item = document.createElement("li");
    item.append(button);
    return item;
  }

  _say(text) {
    const item = document.createElement("li");
    item.textContent = text;
    item.className = "quiet";
    this._list.replaceChildren(item);
    this._list.hidden = false;
  }

  _close() {
    window.clearTimeout(this._timer);
    this._running?.abort();
    this._list.hidden = true;
  }

  _key(event) {
    if (event.key === "Escape") this._close();
    if (event.key === "Enter" && event.target === this._input) {
      event.preventDefault();
      this._list.querySelector("button")?.click();
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const buttons = [...this._list.querySelectorAll("button")];
    if (!step || this._list.hidden || !buttons.length) return;
    event.preventDefault();
    const place = buttons.indexOf(document.activeElement) + step;
    if (place < 0) this._input.focus();
    else buttons[Math.min(place, buttons.length - 1)].focus();
  }
}

export const nameOf = (feature) => `#${feature.index}${feature.label ? ` ${feature.label}` : ""}`;
