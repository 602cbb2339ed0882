// One side of the comparison: a conversation whose answers are streamed, and each token's divergence.
import { Answer } from "../../openai_api/tokens/answer.js";
import { largest } from "../../openai_api/tokens/colours.js";
import { post } from "../../openai_api/tokens/post.js";
import { readingFields } from "../playground/request.js";
import { Run } from "../playground/run.js";

class Turn {
  constructor(prompt, { labels, sae, logUrl, changed }) {
    this.root = document.getElementById("studio-turn").content.firstElementChild.cloneNode(true);
    this.prompt = prompt;
    this.root.querySelector(".turn-prompt").textContent = prompt;
    this.answer = new Answer(this.root, { featureOf: (index) => labels.link(sae, index) });
    this.run = new Run(this.root, { answer: this.answer, logUrl, changed, isBrief: true });
    this.isDone = false;
  }

  get list() { return this.answer.tokens?.list ?? []; }
  get text() { return this.list.map((token) => token.text).join(""); }
}

export class Side {
  // `page` gives what all runs need; `url` and `inspectUrl` are those of this side; `steering` returns its fields.
  constructor(root, page, { url, inspectUrl, steering }) {
    this.root = root;
    this._page = page;
    this._url = url;
    this._inspectUrl = inspectUrl;
    this._steering = steering;
    this._turns = [];
    this._playing = 0; // counts plays, so that an older one stops
    this._ran = null; // what the answers are of
  }

  get isRunning() { return this._turns.some((turn) => turn.run.isRunning); }
  get tokens() { return this._turns.flatMap((turn) => turn.list); }
  get isStale() { return this._ran !== null && this._ran !== this._key(); }

  // Shows the prompts; answers of the first `kept` turns stay.
  show(prompts, kept = 0) {
    this.stop();
    const turns = prompts.slice(kept).map((prompt) => new Turn(prompt, { ...this._page.facts(), changed: () => this._page.buttons() }));
    this._turns = [...this._turns.slice(0, kept), ...turns];
    this.root.querySelector(".turns").replaceChildren(...this._turns.map((turn) => turn.root));
    if (!prompts.length) this._ran = null;
  }

  // Answers the turns from `first` on, one after the other. Returns whether all were answered.
  async play(first = 0) {
    this.stop();
    const playing = this._playing;
    const { kind, body } = this._page.request();
    this._ran = this._key();
    this._page.buttons();
    for (const [place, turn] of this._turns.entries()) {
      if (place < first) continue;
      turn.isDone = false;
      turn.root.querySelector(".answer-kl").textContent = "";
      const fields = { ...body, ...this._asked(kind, place), ...this._steering(), ...readingFields(kind, this._page.facts().sae) };
      turn.isDone = await turn.run.start(this._url(kind), fields);
      if (!turn.isDone || playing !== this._playing) return false;
      this.inspect(turn);
    }
    return true;
  }

  stop() {
    this._playing += 1;
    for (const turn of this._turns) turn.run.stop();
  }

  // Lets the server compute the tokens of answers again: with and without the edits, or the activations of a feature.
  async inspect(turn = null) {
    if (turn === null) return void (await Promise.all(this._turns.map((each) => this.inspect(each))));
    const { labels, sae, feature } = this._page.facts();
    const tokens = turn.answer.tokens;
    if (!turn.isDone || turn.run.isRunning || !tokens?.ids.length) return;
    labels.learn(sae, tokens.list.flatMap((token) => token.features ?? []));
    const fields = { kind: this._page.request().kind, model: this._page.request().body.model, ...this._steering() };
    const isUnsteered = fields.profile === null && !fields.edits;
    if (isUnsteered && !feature) return this._page.paint();
    if (feature) Object.assign(fields, { sae: feature.sae, feature: feature.index });
    try {
      const asked = { ...fields, prompt_ids: tokens.promptIds, completion_ids: tokens.ids };
      const found = await (await post(this._inspectUrl, asked)).json();
      if (tokens !== turn.answer.tokens) return; // a newer run replaced the answer
      turn.root.querySelector(".answer-kl").textContent = tokens.compare(found);
    } catch (error) {
      if (tokens === turn.answer.tokens) turn.root.querySelector(".answer-kl").textContent = `Could not compare the tokens: ${error.message}`;
    }
    this._page.paint();
  }

  largest(measure) { return largest(this.tokens, measure); }
  paint(measure, most) {
    for (const turn of this._turns) turn.answer.paint(measure, most);
  }

  _asked(kind, place) {
    if (kind === "completion") return { prompt: this._turns[place].prompt };
    const { system } = this._page.request();
    const before = this._turns.slice(0, place).flatMap(({ prompt, text }) => [
      { role: "user", content: prompt },
      { role: "assistant", content: text },
    ]);
    const start = system.trim() ? [{ role: "system", content: system }] : [];
    return { messages: [...start, ...before, { role: "user", content: this._turns[place].prompt }] };
  }

  _key() {
    return JSON.stringify([this._page.request(), this._steering()]);
  }
}
