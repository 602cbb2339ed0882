// A slider beside each strength of a profile's form, and a description of each edit. The server returns the scale once
// for each feature, operation and unit, and the description after each change.
import { StrengthSlider } from "./strength_slider.js";

const PAUSE_MS = 200;

class StrengthCard {
  constructor(card, levels) {
    this._card = card;
    this._number = card.querySelector("input.strength");
    this._slider = new StrengthSlider(this._number, { levels, unit: () => this._unit() });
    this._number.closest(".form-row").after(this._slider.root);
    this._number.addEventListener("input", (event) => (this._isTouched ||= event.isTrusted));
  }

  // The server's latest answer about the card.
  take(outcome) {
    this._slider.take(outcome);
    this._say(outcome);
    this._prefill();
  }

  // A new card starts at the feature's calibrated strength, once, unless the user has entered another one.
  _prefill() {
    const id = this._card.querySelector('input[name$="-id"]');
    const { calibrated } = this._slider;
    if (!calibrated || this._isTouched || id?.value || this._number.value !== this._number.defaultValue) return;
    this._isTouched = true;
    this._slider.set(calibrated.strength);
  }

  _unit() {
    const unit = this._card.querySelector("select[name$=-unit]");
    const hidden = unit?.closest(".steering-unused");
    return !unit || hidden ? "×" : unit.selectedOptions[0].textContent;
  }

  // The lines below the fields, as if the form were saved.
  _say({ words, coefficient, push, problem }) {
    const alone = ":not(:has(.form-multiline))"; // a row of several fields has the classes of all of them
    const line = (name) => this._card.querySelector(`:is(.fieldBox.field-${name}, .form-row.field-${name}${alone}) .readonly`);
    const isWarned = push !== null && push > this._slider.levels.strong;
    write(line("words"), words || "–");
    write(line("coefficient"), problem || coefficient || "–", Boolean(problem));
    write(line("push"), push === null ? (problem ? "–" : "unknown") : `${push.toFixed(2)}${isWarned ? " ⚠" : ""}`, isWarned);
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
const scale = document.getElementById("strength-scale");
if (form && scale) {
  const { outcomes, felt, strong } = scale.dataset;
  new Strengths(form, { url: outcomes, levels: { felt: Number(felt), strong: Number(strong) } });
}
