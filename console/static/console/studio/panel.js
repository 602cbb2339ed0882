// The panel of a feature's or vector's page that steers with it: one edit, one prompt, answers with and without it.
import { MEASURES } from "../../openai_api/tokens/colours.js";
import { Labels } from "../playground/labels.js";
import { Rows, withoutOff } from "./rows.js";
import { Side } from "./side.js";
import { encode } from "./state.js";

const PAUSE_MS = 500;
const BODY = { seed: 1, max_tokens: 60 }; // as the studio begins

class Panel {
  constructor(root) {
    this._root = root;
    this._choices = { ...JSON.parse(root.dataset.choices), urls: root.dataset };
    this._labels = new Labels({ url: root.dataset.labels, page: root.dataset.feature });
    this._form = root.querySelector("form");
    this._timer = 0;
    this._rows = new Rows(root.querySelector(".studio-edits"), {
      choices: this._choices,
      request: () => ({ model: this._choices.model }),
      changed: () => this._follow(),
      described: () => {},
    });
    this._base = this._side("unsteered", "chatUnsteered", "inspectUnsteered", () => ({ profile: null }));
    this._steered = this._side("steered", "chat", "inspect", () => ({ edits: this._rows.active.map(withoutOff) }));
    this._form.addEventListener("submit", (event) => {
      event.preventDefault();
      this._run(this._sides);
    });
    this._form.elements.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this._form.requestSubmit();
    });
    this._act("stop").addEventListener("click", () => this._sides.forEach((side) => side.stop()));
    this._act("studio").addEventListener("click", () => this._lead());
    // Shown with its whole edit, because one that grows would move the buttons away from a click.
    this._rows.set([this._choices.edit]).finally(() => { root.hidden = false; });
  }

  get _sides() { return [this._base, this._steered]; }

  request() {
    return { kind: "chat", system: "", body: { model: this._choices.model, ...BODY } };
  }

  facts() {
    const sae = this._choices.edit.sae ?? this._choices.sae ?? null;
    return { labels: this._labels, sae, logUrl: this._root.dataset.log ?? null, feature: null };
  }

  buttons() {
    this._act("stop").hidden = !this._sides.some((side) => side?.isRunning);
  }

  paint() {
    this._steered.paint(MEASURES.kl, this._steered.largest(MEASURES.kl));
  }

  _side(name, chat, inspect, steering) {
    const { dataset } = this._root;
    const root = this._root.querySelector(`[data-side=${name}]`);
    return new Side(root, this, { url: () => dataset[chat], inspectUrl: dataset[inspect], steering });
  }

  async _run(sides) {
    this._root.querySelector(".studio-sides").hidden = false;
    const started = sides.map((side) => {
      side.show([this._form.elements.prompt.value]);
      return side === this._steered && !this._rows.active.length ? null : side.play();
    });
    await Promise.all(started);
    this.buttons();
  }

  _follow() {
    window.clearTimeout(this._timer);
    if (!this._form.elements.follow.checked || !this._steered.isStale) return;
    this._timer = window.setTimeout(() => this._run([this._steered]), PAUSE_MS);
  }

  // The studio opens with what is set here.
  _lead() {
    const state = { model: this._choices.model, profile: null, edits: this._rows.edits, prompts: [this._form.elements.prompt.value] };
    this._act("studio").href = `${this._root.dataset.studio}#${encode(state)}`;
  }

  _act(name) { return this._root.querySelector(`[data-act=${name}]`); }
}

const root = document.getElementById("try");
if (root) new Panel(root);
