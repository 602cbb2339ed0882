// The edits, one row each: what, how strong, and the rest on demand. What a row does not show is kept as it is.
import { StrengthSlider } from "../../steering/strength_slider.js";
import { post } from "../../openai_api/tokens/post.js";
import { drawCurve } from "./curve.js";

const PAUSE_MS = 200;
const WITHOUT_STRENGTH = new Set(["ablate", "norm_preserving", "reconstruct"]);
const DEFAULTS = { operation: "add", unit: "max_act", phase: "both" };

class Row {
  constructor(edit, { choices, changed, remove }) {
    this._edit = edit;
    this._described = null;
    this.root = document.getElementById("studio-row").content.firstElementChild.cloneNode(true);
    for (const [name, values] of [["operation", "operations"], ["unit", "units"], ["phase", "phases"]]) {
      const select = this._field(name);
      select.append(...choices[values].map(([value, words]) => new Option(words, value)));
      const value = edit[name] ?? DEFAULTS[name];
      if (![...select.options].some((option) => option.value === value)) select.append(new Option(value, value));
      select.value = value;
    }
    this._number.value = edit.strength ?? choices.strength;
    this._field("on").checked = !edit.off;
    this._slider = new StrengthSlider(this._number, { levels: choices.levels, unit: () => this._unit() });
    this.root.querySelector("details").before(this._slider.root);
    this._number.addEventListener("input", () => this._draw());
    this.root.addEventListener("input", () => changed({ isFinal: false }));
    this.root.addEventListener("change", () => changed({ isFinal: true }));
    this.root.querySelector("[data-act=remove]").addEventListener("click", () => remove(this));
    this._name(placeOf(edit));
  }

  // The edit as the server reads it, and `off` if it is switched off here.
  get edit() {
    const { off, ...rest } = this._edit;
    const edit = { ...rest, operation: this._value("operation"), unit: this._value("unit"), phase: this._value("phase") };
    if (this._number.value !== "") edit.strength = Number(this._number.value);
    return this._field("on").checked ? edit : { ...edit, off: true };
  }

  get isOn() { return this._field("on").checked; }

  take(described) {
    this._described = described;
    const problem = this.root.querySelector(".studio-problem");
    problem.hidden = !described.problem;
    problem.textContent = described.problem ?? "";
    this._number.hidden = WITHOUT_STRENGTH.has(this._value("operation"));
    if (described.name) this._name(described.name, described.url);
    const words = [described.words, described.coefficient].filter(Boolean);
    this.root.querySelector(".studio-words").textContent = words.join(" · ");
    this._slider.take({ scale: null, calibrated: null, figure: "", warning: "", ...described });
    this._draw();
  }

  _draw() {
    const { curve = [], scale } = this._described ?? {};
    const raw = scale ? this._number.valueAsNumber * scale.raw_per_one : 0;
    drawCurve(this.root.querySelector(".studio-curve"), scale ? curve : [], raw || 0);
  }

  _name(text, url = "") {
    const place = this.root.querySelector(".studio-row-name");
    const link = document.createElement(url ? "a" : "span");
    if (url) Object.assign(link, { href: url, target: "_blank", rel: "noopener" });
    link.textContent = text;
    place.replaceChildren(link);
    this._field("on").setAttribute("aria-label", `Steer with ${text}`);
    this._number.setAttribute("aria-label", `Strength of ${text}`);
    this.root.querySelector("[data-act=remove]").setAttribute("aria-label", `Remove ${text}`);
    this._slider.root.querySelector("input").setAttribute("aria-label", `Strength of ${text}, as a slider`);
  }

  get _number() { return this._field("strength"); }
  _unit() { return this._value("operation") === "scale" ? "×" : this._field("unit").selectedOptions[0].textContent; }
  _field(name) { return this.root.querySelector(`[name=${name}]`); }
  _value(name) { return this._field(name).value; }
}

const placeOf = (edit) => (edit.set ? `vector ${edit.set}` : edit.index === undefined ? "edit" : `${edit.sae ?? ""} #${edit.index}`.trim());

export class Rows {
  // `changed` is called after each change; `described` after the server has described the edits.
  constructor(root, { choices, request, changed, described }) {
    this._root = root;
    this._choices = choices;
    this._request = request;
    this._changed = changed;
    this._described = described;
    this._rows = [];
    this._timer = 0;
    this._running = null;
    this._last = Promise.resolve();
  }

  get edits() { return this._rows.map((row) => row.edit); }

  // Those that are switched on.
  get active() {
    return this._rows.filter((row) => row.isOn).map((row) => row.edit);
  }

  // Ends when the server has described the edits, or could not.
  set(edits) {
    this._rows = edits.map((edit) => this._row(edit));
    this._show();
    return this._describe();
  }

  // Ends when the latest edits are described.
  settle() {
    return this._timer ? this._describe() : this._last;
  }

  add(edit) {
    const row = this._row(edit);
    this._rows.push(row);
    this._show();
    row.root.scrollIntoView({ block: "nearest" });
    this._edited({ isFinal: true });
  }

  _row(edit) {
    return new Row(edit, {
      choices: this._choices,
      changed: (how) => this._edited(how),
      remove: (row) => {
        const place = this._rows.indexOf(row);
        this._rows.splice(place, 1);
        this._show();
        (this._rows[place] ?? this._rows[place - 1])?.root.querySelector("[name=strength]").focus();
        this._edited({ isFinal: true });
      },
    });
  }

  _show() {
    this._root.querySelector(".studio-rows").replaceChildren(...this._rows.map((row) => row.root));
    this._root.querySelector(".studio-no-edits").hidden = this._rows.length > 0;
  }

  _edited(how) {
    window.clearTimeout(this._timer);
    this._timer = window.setTimeout(() => this._describe(), PAUSE_MS);
    this._changed(how);
  }

  _describe() {
    window.clearTimeout(this._timer);
    this._timer = 0;
    return (this._last = this._ask());
  }

  async _ask() {
    this._running?.abort();
    const running = (this._running = new AbortController());
    const conflict = this._root.querySelector(".studio-conflict");
    const rows = [...this._rows];
    try {
      const edits = rows.map((row) => withoutOff(row.edit));
      const found = await (await post(this._choices.urls.edits, { ...this._request(), edits }, running.signal)).json();
      found.edits.forEach((one, place) => rows[place].take(one));
      conflict.hidden = !found.problem;
      conflict.textContent = found.problem;
      this._described(found.edits);
    } catch (error) {
      if (running.signal.aborted) return;
      conflict.hidden = false;
      conflict.textContent = error.message;
    }
  }
}

export function withoutOff(edit) {
  const { off, ...rest } = edit;
  return rest;
}
