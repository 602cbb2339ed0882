// An answer on the page: coloured tokens, with details on hover and focus.
import { MEASURES, colour, largest, number } from "./colours.js";

export class Answer {
  // `featureOf` returns the name of a feature: a string or a DOM node. `explanation` explains a token, if it is given.
  constructor(root, { featureOf, explanation = null }) {
    this._text = root.querySelector(".answer-text");
    this._details = root.querySelector(".answer-details");
    this._featureOf = featureOf;
    this._explanation = explanation;
    this._isHeld = false; // a token was clicked: its details stay while the pointer moves
    this._measure = MEASURES.none;
    this._most = 0;
    this.tokens = null;
    this._text.addEventListener("pointerover", (event) => this._isHeld || this._look(event.target));
    this._text.addEventListener("click", (event) => this._hold(event.target));
    this._text.addEventListener("focusin", (event) => this._look(event.target));
    this._text.addEventListener("keydown", (event) => this._key(event));
  }

  begin(tokens) {
    this.tokens = tokens;
    this._text.replaceChildren();
    this._text.setAttribute("role", "group"); // a list without options would not be one
    this._isHeld = false;
    this._explanation?.clear();
    this._details.textContent = "Point at a token or use the arrow keys. Click to keep it selected.";
  }

  append(fresh) {
    if (!fresh.length) return;
    const first = this._text.childElementCount;
    this._text.append(...fresh.map((token, place) => this._span(token, first + place)));
    this._text.setAttribute("role", "listbox");
    if (this._measure === MEASURES.logprob) this.paint(this._measure, largest(this.tokens.list, this._measure));
  }

  paint(measure, most) {
    this._measure = measure;
    this._most = most;
    this.tokens?.list.forEach((token, place) => colour(this._text.children[place], token, measure, most));
  }

  _span(token, place) {
    const span = document.createElement("span");
    span.className = "token";
    span.textContent = token.text;
    span.setAttribute("role", "option");
    if (!token.text.trim()) span.setAttribute("aria-label", JSON.stringify(token.text)); // whitespace is not a name
    span.setAttribute("aria-selected", "false");
    span.tabIndex = place === 0 ? 0 : -1;
    span.dataset.place = place;
    return span;
  }

  _look(span) {
    const token = this.tokens?.list[span.dataset?.place];
    if (!token) return;
    for (const other of this._text.querySelectorAll("[aria-selected=true]")) other.setAttribute("aria-selected", "false");
    span.setAttribute("aria-selected", "true");
    this._details.replaceChildren(...this._lines(token));
    if (this._explanation) this._details.append(this._explanation.button(Number(span.dataset.place)));
  }

  // A second click unpins.
  _hold(span) {
    if (!this.tokens?.list[span.dataset?.place]) return;
    const isAgain = this._isHeld && span.hasAttribute("data-held");
    this._text.querySelector("[data-held]")?.removeAttribute("data-held");
    span.toggleAttribute("data-held", !isAgain);
    this._isHeld = !isAgain;
    this._look(span);
  }

  _lines(token) {
    const facts = [["Token", JSON.stringify(token.text)], ["Log-probability", number(token.logprob)]];
    if (token.kl !== null) facts.push(["KL(steered‖base)", `${number(token.kl)} nats`]);
    if (token.value !== null) facts.push(["Selected feature", number(token.value)]);
    facts.push(...(token.notes ?? []));
    const list = document.createElement("dl");
    for (const [name, value] of facts) list.append(cell("dt", name), cell("dd", value));
    const top = token.top.map(([text, logprob]) => `${JSON.stringify(text)} ${(100 * Math.exp(logprob)).toFixed(1)} %`);
    if (top.length) list.append(cell("dt", "Top tokens"), cell("dd", top.join(", ")));
    list.append(cell("dt", "Strongest features"), this._features(token.features));
    return [list];
  }

  _features(features) {
    if (!features?.length) return cell("dd", features ? "none" : "not captured");
    const list = document.createElement("ul");
    for (const { index, value } of features) {
      const item = document.createElement("li");
      item.append(this._featureOf(index), ` ${number(value, 2)}`);
      list.append(item);
    }
    const place = cell("dd", "");
    place.append(list);
    return place;
  }

  _key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
    const place = Number(event.target.dataset?.place);
    if (!step || Number.isNaN(place)) return;
    event.preventDefault();
    const next = this._text.children[place + step];
    if (!next) return;
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
}

function cell(name, text) {
  const element = document.createElement(name);
  element.textContent = text;
  return element;
}
