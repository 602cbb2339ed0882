// A slider beside the number field of a strength, on the scale that the server returned. The number field is what counts.
import { bandsOf, levelOf, pushAt, shown } from "./strength_scale.js";

const BADGES = { mild: "badge-good", strong: "badge-warn", broken: "badge-bad" };

export class StrengthSlider {
  // `number` is the field, `levels` are the relative sizes that count as felt and as strong, `unit` returns words.
  constructor(number, { levels, unit }) {
    this._number = number;
    this._levels = levels;
    this._unit = unit;
    this._scale = null;
    this.calibrated = null;
    this.root = document.getElementById("strength-slider").content.firstElementChild.cloneNode(true);
    this._slider = this.root.querySelector("input");
    this._slider.addEventListener("input", () => this.set(Number(this._slider.value), "input"));
    this._slider.addEventListener("change", () => this.set(Number(this._slider.value)));
    this._number.addEventListener("input", () => this.show());
    this.root.querySelector("button").addEventListener("click", () => this.set(this.calibrated.strength));
  }

  // The server's latest answer about the edit.
  take({ scale, calibrated, figure, warning }) {
    this._scale = scale;
    this.calibrated = calibrated;
    this.root.hidden = scale === null;
    if (scale) this._stretch();
    const unit = this.root.querySelector(".strength-figure");
    unit.hidden = !figure;
    unit.textContent = figure ? `Unit: ${figure}.` : "";
    const note = this.root.querySelector(".strength-warning");
    note.hidden = !warning;
    note.textContent = warning;
    this.show();
  }

  set(strength, event = "change") {
    this._number.value = shown(strength);
    this._number.dispatchEvent(new Event("input", { bubbles: true }));
    if (event === "change") this._number.dispatchEvent(new Event("change", { bubbles: true }));
  }

  // Measured for the feature, or the same for all.
  get levels() {
    const measured = this._scale?.levels;
    return measured ? { felt: measured[0], strong: measured[1] } : this._levels;
  }

  _stretch() {
    const { low, high, step, points } = this._scale;
    Object.assign(this._slider, { min: low, max: high, step });
    const bands = bandsOf(points, this.levels);
    const place = (strength) => (100 * (strength - low)) / (high - low);
    const stops = bands.map(({ from, to, level }) => `var(--push-${level}) ${place(from)}% ${place(to)}%`);
    this.root.querySelector(".strength-bands").style.background = stops.length ? `linear-gradient(to right, ${stops})` : "";
    const zero = this.root.querySelector(".strength-zero");
    zero.hidden = low >= 0;
    zero.style.insetInlineStart = `${place(0)}%`;
    const mark = this.root.querySelector(".strength-mark");
    mark.hidden = !this.calibrated || this.calibrated.strength < low || this.calibrated.strength > high;
    if (!mark.hidden) mark.style.insetInlineStart = `${place(this.calibrated.strength)}%`;
    const line = this.root.querySelector(".strength-calibrated");
    line.hidden = !this.calibrated;
    if (this.calibrated) line.firstElementChild.textContent = this.calibrated.words;
  }

  show() {
    const strength = this._number.valueAsNumber;
    const output = this.root.querySelector("output");
    const badge = this.root.querySelector(".badge");
    if (!this._scale || Number.isNaN(strength)) {
      output.value = "";
      badge.hidden = true;
      return;
    }
    if (document.activeElement !== this._slider) this._slider.value = strength;
    const push = pushAt(this._scale.points, strength);
    const level = push === null ? null : levelOf(push, this.levels);
    const words = level ? this.root.dataset[level] : "";
    const raw = `raw ${shown(strength * this._scale.raw_per_one)}`;
    const size = push === null ? "relative size unknown" : `relative size ${push.toFixed(2)}`;
    output.value = `${shown(strength)} ${this._unit()}, ${raw}, ${size}`;
    badge.hidden = level === null;
    badge.className = `badge ${BADGES[level] ?? ""}`;
    badge.textContent = words;
    this._slider.setAttribute("aria-valuetext", [output.value, words].filter(Boolean).join(": "));
  }
}
