// The preview below a profile's form: the model's answer without steering, and with the form's unsaved edits.
import { Answer } from "../../openai_api/tokens/answer.js";
import { MEASURES, largest } from "../../openai_api/tokens/colours.js";
import { post } from "../../openai_api/tokens/post.js";
import { Labels } from "./labels.js";
import { commonFields, readingFields } from "./request.js";
import { Run } from "./run.js";

const PAUSE_MS = 500;
const ASKED = "_preview"; // the form field that carries the request

class DraftPreview {
  constructor(root, draftForm) {
    this._root = root;
    this._draftForm = draftForm;
    this._form = root.querySelector("form");
    this._labels = new Labels({ url: root.dataset.labels, page: root.dataset.feature });
    this._timer = 0;
    this._baselineOf = null; // the request of the unsteered answer
    this._base = this._side("[data-side=unsteered]");
    this._draft = this._side("[data-side=draft]");
    this._form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.runBoth();
    });
    this._form.elements.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this._form.requestSubmit();
    });
    root.querySelector("[data-act=stop]").addEventListener("click", () => this.stop());
    this._follows.addEventListener("change", () => this._follow());
    // Django's select widgets trigger jQuery events only; jQuery also hears native ones.
    window.django.jQuery(draftForm).on("input change", () => this._edited());
    for (const name of ["formset:added", "formset:removed"]) document.addEventListener(name, () => this._edited());
    root.hidden = false;
  }

  get _follows() { return this._form.elements.follow; }
  get _sae() { return this._root.dataset.sae || null; }

  runBoth() {
    const asked = this._asked();
    if (!asked) return;
    this._runBase(asked);
    this._runDraft(asked);
  }

  stop() {
    window.clearTimeout(this._timer);
    for (const side of [this._base, this._draft]) side.run.stop();
  }

  _side(selector) {
    const root = this._root.querySelector(selector);
    const answer = new Answer(root, { featureOf: (index) => this._labels.link(this._sae, index) });
    const changed = () => this._buttons();
    return { root, answer, run: new Run(root, { answer, logUrl: this._root.dataset.log || null, changed }) };
  }

  // Returns the request of both sides, or null if the panel's fields are incomplete.
  _asked({ silently = false } = {}) {
    if (!(silently ? this._form.checkValidity() : this._form.reportValidity())) return null;
    const form = new FormData(this._form);
    const kind = form.get("kind");
    return { kind, body: { ...commonFields(form), ...readingFields(kind, this._sae) } };
  }

  async _runBase(asked) {
    const { kind, body } = asked;
    this._baselineOf = JSON.stringify(asked);
    const url = this._root.dataset[`${kind}Unsteered`];
    if (await this._base.run.start(url, { ...body, profile: null })) this._learn(this._base.answer);
    else if (!this._base.run.isRunning) this._baselineOf = null;
  }

  async _runDraft({ kind, body }) {
    this._showProblems([]);
    this._draft.root.querySelector(".answer-kl").textContent = "";
    const asked = { ...body };
    delete asked.model; // the profile determines it
    const done = await this._draft.run.start(this._root.dataset[kind], this._posted(asked), (error) => {
      this._showProblems(error.problems ?? []);
    });
    if (done) await this._compare(kind);
  }

  // The form as it would be saved, plus the request.
  _posted(asked) {
    const posted = new FormData(this._draftForm);
    posted.set(ASKED, JSON.stringify(asked));
    return posted;
  }

  // Shows how much the edits changed each token's distribution: the server computes the answer with and without them.
  async _compare(kind) {
    const tokens = this._draft.answer.tokens;
    const line = this._draft.root.querySelector(".answer-kl");
    await this._learn(this._draft.answer);
    if (!tokens.ids.length) return;
    const asked = { kind, prompt_ids: tokens.promptIds, completion_ids: tokens.ids };
    try {
      const found = await (await post(this._root.dataset.inspect, this._posted(asked))).json();
      if (tokens !== this._draft.answer.tokens) return; // a newer run replaced the answer
      const words = tokens.compare(found);
      line.textContent = words && `${words} A stronger colour means a larger change.`;
      this._draft.answer.paint(MEASURES.kl, largest(tokens.list, MEASURES.kl));
    } catch (error) {
      if (tokens === this._draft.answer.tokens) line.textContent = `Could not compare the tokens: ${error.message}`;
    }
  }

  _learn(answer) {
    return this._labels.learn(this._sae, answer.tokens.list.flatMap((token) => token.features ?? []));
  }

  // Applies the checkbox: if checked, the panel stays visible and the draft runs at once.
  _follow() {
    this._root.classList.toggle("preview-docked", this._follows.checked);
    if (this._follows.checked) this._again();
    else window.clearTimeout(this._timer);
  }

  _edited() {
    if (!this._follows.checked) return;
    window.clearTimeout(this._timer);
    this._timer = window.setTimeout(() => this._again(), PAUSE_MS);
  }

  // The unsteered answer is reused while the request is the same: with the same seed it would not change.
  _again() {
    const asked = this._asked({ silently: true });
    if (!asked) return;
    if (this._baselineOf !== JSON.stringify(asked)) this._runBase(asked);
    this._runDraft(asked);
  }

  _showProblems(problems) {
    const list = this._root.querySelector(".preview-problems");
    list.replaceChildren(...problems.map((problem) => this._problem(problem)));
    list.hidden = !problems.length;
    if (problems.length) this._draft.run.say("The draft has errors.", "failed");
  }

  _problem({ field, place, message }) {
    const item = document.createElement("li");
    const input = field && document.getElementById(`id_${field}`);
    if (!input) {
      item.textContent = place ? `${place}: ${message}` : message;
      return item;
    }
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = place;
    button.addEventListener("click", () => show(input));
    item.append(button, `: ${message}`);
    return item;
  }

  _buttons() {
    const isRunning = [this._base, this._draft].some((side) => side?.run.isRunning);
    this._root.querySelector("[data-act=stop]").hidden = !isRunning;
  }
}

// Focuses a field, also if it is collapsed or replaced by a widget.
function show(input) {
  const fold = input.closest("details");
  if (fold) fold.open = true;
  const drawn = input.nextElementSibling?.querySelector?.(".select2-selection");
  (drawn ?? input).focus();
  (drawn ?? input).scrollIntoView({ block: "center" });
}

const root = document.getElementById("draft-preview");
const draftForm = document.getElementById("steeringprofile_form");
if (root && draftForm) new DraftPreview(root, draftForm);
