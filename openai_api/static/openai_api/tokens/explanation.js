// The explanation of a token, below an answer: a fragment of the server, with highlighted tokens and a heat map.

const MOST_PERCENT = 45;

export class Explanation {
  // `ask` returns the response for the token at a place of the answer.
  constructor(root, ask) {
    this._ask = ask;
    this._panel = document.createElement("div");
    this._panel.className = "explained";
    this._panel.setAttribute("role", "status");
    this._newest = 0; // a late answer does not replace a newer one
    root.querySelector(".answer-details").after(this._panel);
    for (const kind of ["pointerover", "focusin"]) this._panel.addEventListener(kind, (event) => this._point(event.target));
  }

  clear() {
    this._newest += 1;
    this._panel.replaceChildren();
  }

  button(place) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "button explain";
    button.textContent = "Explain this token";
    button.addEventListener("click", () => this.show(place));
    return button;
  }

  async show(place) {
    this.clear();
    const mine = this._newest;
    this._say("Computing the attribution…", "loading");
    try {
      const text = await (await this._ask(place)).text();
      if (mine !== this._newest) return;
      const part = new DOMParser().parseFromString(text, "text/html");
      this._panel.replaceChildren(...part.body.childNodes);
      this._paintLens();
      this._point(null);
    } catch (error) {
      if (mine === this._newest) this._say(error.message, "failed");
    }
  }

  _say(text, state) {
    const line = document.createElement("p");
    line.className = `state state-${state}`;
    line.textContent = text;
    this._panel.replaceChildren(line);
  }

  _paintLens() {
    for (const cell of this._panel.querySelectorAll("[data-logprob]")) {
      const probability = Math.exp(Number(cell.dataset.logprob));
      cell.title = `${(100 * probability).toFixed(1)} %`;
      cell.style.backgroundColor = `rgb(var(--heat) / ${Math.round(probability * MOST_PERCENT)}%)`;
    }
  }

  // Highlights the tokens of the row under the pointer; of all features without one.
  _point(target) {
    const text = this._panel.querySelector(".explained-text");
    if (!text) return;
    const row = target?.closest?.("tr[data-places]") ?? text;
    const values = new Map(row.dataset.places.split(" ").filter(Boolean).map((pair) => pair.split(":").map(Number)));
    const most = Math.max(...[...values.values()].map(Math.abs), Number.MIN_VALUE);
    for (const token of text.children) {
      const value = values.get(Number(token.dataset.place)) ?? 0;
      const colour = value < 0 ? "--cold" : "--heat";
      token.style.backgroundColor = `rgb(var(${colour}) / ${Math.round((Math.abs(value) / most) * MOST_PERCENT)}%)`;
      token.title = value ? value.toFixed(3) : "";
    }
  }
}
