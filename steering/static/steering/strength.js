// A slider beside each strength, and a description of each edit. The number field is what is saved. The server returns
// the scale once for each feature, operation and unit, and the description after each change.
import { bandsOf, levelOf, pushAt, shown } from "./strength_scale.js";

const PAUSE_MS = 200;
const BADGES = { mild: "badge-good", strong: "badge-warn", broken: "badge-bad" };

class StrengthCard {
  constructor(card, levels) {
    this._card = card;
    this._levels = levels;
    this._number = card.querySelector("input.strength");
    this._scale = null;
    this._root = document.getElementById("strength-slider").content.firstElementChild.cloneNode(true);
    this._slider = this._root.querySelector("input");
    this._number.closest(".form-row").after(this._root);
    this._slider.addEventListener("input", () => this._moved("input"));
    this._slider.addEventListener("change", () => this._moved("change"));
    this._number.addEventListener("input", (event) => {
      this._isTouched ||= event.isTrusted;
      this._show();
    });
    this._root.querySelector("button").addEventListener("click", () => this._set(this._calibrated.strength));
  }

  // The server's latest answer about the card.
  take(outcome) {
    this._scale = outcome.scale;
    this._calibrated = outcome.calibrated;
    this._root.hidden = outcome.scale === null;
    if (outcome.scale) this._stretch();
    this._say(outcome);
    this._show();
    this._prefill();
  }

  // A new card starts at the feature's calibrated strength, once, unless the user has entered another one.
  _prefill() {
    const id = this._card.querySelector('input[name$="-id"]');
    if (!this._calibrated || this._isTouched || id?.value || this._number.value !== this._number.defaultValue) return;
    this._isTouched = true;
    this._set(this._calibrated.strength);
  }

  // Measured for the feature, or the same for all.
  _levelsHere() {
    const measured = this._scale?.levels;
    return measured ? { felt: measured[0], strong: measured[1] } : this._levels;
  }

  _stretch() {
    const { low, high, step, points } = this._scale;
    Object.assign(this._slider, { min: low, max: high, step });
    const bands = bandsOf(points, this._levelsHere());
    const place = (strength) => (100 * (strength - low)) / (high - low);
    const stops = bands.map(({ from, to, level }) => `var(--push-${level}) ${place(from)}% ${place(to)}%`);
    this._root.querySelector(".strength-bands").style.background = stops.length ? `linear-gradient(to right, ${stops})` : "";
    const zero = this._root.querySelector(".strength-zero");
    zero.hidden = low >= 0;
    zero.style.insetInlineStart = `${place(0)}%`;
    const mark = this._root.querySelector(".strength-mark");
    mark.hidden = !this._calibrated || this._calibrated.strength < low || this._calibrated.strength > high;
    if (!mark.hidden) mark.style.insetInlineStart = `${place(this._calibrated.strength)}%`;
    const line = this._root.querySelector(".strength-calibrated");
    line.hidden = !this._calibrated;
    if (this._calibrated) line.firstElementChild.textContent = this._calibrated.words;
  }

  _moved(event) {
    this._set(Number(this._slider.value), event);
  }

  _set(strength, event = "change") {
    this._number.value = shown(strength);
    this._number.dispatchEvent(new Event("input", { bubbles: true }));
    if (event === "change") this._number.dispatchEvent(new Event("change", { bubbles: true }));
  }

  _show() {
    const strength = this._number.valueAsNumber;
    const output = this._root.querySelector("output");
    const badge = this._root.querySelector(".badge");
    if (!this._scale || Number.isNaN(strength)) {
      output.value = "";
      badge.hidden = true;
      return;
    }
    if (document.activeElement !== this._slider) this._slider.value = strength;
    const push = pushAt(this._scale.points, strength);
    const level = push === null ? null : levelOf(push, this._levelsHere());
    const words = level ? this._root.dataset[level] : "";
    const raw = `raw ${shown(strength * this._scale.raw_per_one)}`;
    const size = push === null ? "relative size unknown" : `relative size ${push.toFixed(2)}`;
    output.value = `${shown(strength)} ${this._unit()}, ${raw}, ${size}`;
    badge.hidden = level === null;
    badge.className = `badge ${BADGES[level] ?? ""}`;
    badge.textContent = words;
    this._slider.setAttribute("aria-valuetext", [output.value, words].filter(Boolean).join(": "));
  }

  _unit() {
    const unit = this._card.querySelector("select[name$=-unit]");
    const hidden = unit?.closest(".steering-unused");
    return !unit || hidden ? "×" : unit.selectedOptions[0].textContent;
  }

  // The lines below the fields, as if the form were saved.
  _say({ words, coefficient, figure, push, warning, problem }) {
    const alone = ":not(:has(.form-multiline))"; // a row of several fields has the classes of all of them
    const line = (name) => this._card.querySelector(`:is(.fieldBox.field-${name}, .form-row.field-${name}${alone}) .readonly`);
    const isWarned = push !== null && push > this._levelsHere().strong;
    write(line("words"), words || "–");
    write(line("coefficient"), problem || coefficient || "–", Boolean(problem));
    write(line("push"), push === null ? (problem ? "–" : "unknown") : `${push.toFixed(2)}${isWarned ? " ⚠" : ""}`, isWarned);
    const unit = this._root.querySelector(".strength-figure");
    unit.hidden = !figure;
    unit.textContent = figure ? `Unit: ${figure}.` : "";
    const note = this._root.querySelector(".strength-warning");
    note.hidden = !warning;
    note.textContent = warning;
    if (!this._card.classList.contains("steering-changed-card")) return;
    this._card.classList.replace("steering-changed-card", "steering-live-card");
  }
}

function write(line, text, isWarning = false) {
  if (!line) return;
  const span = document.createElement("span");
  span.textContent = text;
  if (isWarning) span.className = "steering-warning";
  line.replaceChildren(span);
}

// All cards of the form. One request for all of them, shortly after the last change.
class Strengths {
  constructor(form, { url, levels }) {
    this._form = form;
    this._url = url;
    this._levels = levels;
    this._cards = new Map(); // by prefix
    this._timer = 0;
    this._running = null;
    // Django's select widgets trigger jQuery events only; jQuery also hears native ones.
    window.django.jQuery(form).on("input change", () => this._edited());
    document.addEventListener("formset:added", () => this._edited());
    document.addEventListener("formset:removed", () => this._edited());
    this._ask();
  }

  _edited() {
    window.clearTimeout(this._timer);
    this._timer = window.setTimeout(() => this._ask(), PAUSE_MS);
  }

  async _ask() {
    this._running?.abort();
    const running = (this._running = new AbortController());
    try {
      const answer = await fetch(this._url, { method: "POST", body: new FormData(this._form), signal: running.signal });
      if (!answer.ok || answer.redirected) return; // the fields work without it, and saving reports errors
      const { cards } = await answer.json();
      for (const outcome of cards) this._card(outcome.prefix)?.take(outcome);
    } catch (error) {
      if (error.name !== "AbortError") this._form.querySelectorAll(".strength-slider").forEach((each) => (each.hidden = true));
    }
  }

  // Django renumbers its cards when one is removed.
  _card(prefix) {
    const card = this._form.querySelector(`[name="${CSS.escape(prefix)}-strength"]`)?.closest(".inline-related");
    if (!card) return null;
    if (!this._cards.has(card)) this._cards.set(card, new StrengthCard(card, this._levels));
    return this._cards.get(card);
  }
}

const form = document.getElementById("steeringprofile_form");
const template = document.getElementById("strength-slider");
if (form && template) {
  const { outcomes, felt, strong } = template.dataset;
  new Strengths(form, { url: outcomes, levels: { felt: Number(felt), strong: Number(strong) } });
}
