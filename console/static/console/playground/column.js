// One column: its steering, its answer, and the actions on both.
import { Answer } from "../../openai_api/tokens/answer.js";
import { largest } from "../../openai_api/tokens/colours.js";
import { Explanation } from "../../openai_api/tokens/explanation.js";
import { post } from "../../openai_api/tokens/post.js";
import { Draft } from "./draft.js";
import { readingFields, steeringFields } from "./request.js";
import { Run } from "./run.js";
import { asCurl, asPython } from "./snippets.js";

const NO_EDITS = "Add a feature to steer with first.";

export class Column {
  constructor(root, page) {
    this.root = root;
    this._page = page;
    this._ran = null; // the request of the answer
    this._answer = new Answer(root, {
      featureOf: (index) => this._feature(index),
      explanation: new Explanation(root, (place) => this._explain(place)),
    });
    this._run = new Run(root, {
      answer: this._answer,
      logUrl: page.seesLog ? page.choices.urls.log : null,
      changed: () => this._buttons(),
    });
    this._draft = new Draft(root.querySelector(".draft"), {
      choices: page.choices,
      model: page.model,
      changed: () => this._chose(),
    });
    this._choice.addEventListener("change", () => this._chose());
    this._slider.addEventListener("input", () => {
      this._showIntensity();
      this.forgetCopy();
      this.showStale();
    });
    this._slider.addEventListener("change", () => this._ran && this.run());
    this._act("run", () => this.run());
    this._act("stop", () => this.stop());
    this._act("curl", () => this._copy(asCurl));
    this._act("python", () => this._copy(asPython));
    this._act("remove", () => page.remove(this));
    this.fill();
  }

  get _choice() { return this.root.querySelector("[name=steering]"); }
  get _slider() { return this.root.querySelector("[name=intensity]"); }
  get _snippet() {
    return { area: this.root.querySelector(".snippet"), line: this.root.querySelector(".snippet-state") };
  }
  get isRunning() { return this._run.isRunning; }
  get hasValues() { return this.tokens.some((token) => token.value !== null); }
  get tokens() { return this._answer.tokens?.list ?? []; }
  get _steering() {
    return steeringFields({ choice: this._choice.value, edits: this._draft.edits, intensity: Number(this._slider.value) });
  }

  // Fills in the profiles of the selected model.
  fill() {
    const before = this._choice.value;
    const profiles = this._page.modelFacts().profiles.flatMap(({ name, versions }) => [
      new Option(`${name} (latest)`, `profile:${name}`),
      ...versions.map((version) => new Option(`${name}@${version}`, `profile:${name}@${version}`)),
    ]);
    const draft = this._page.modelFacts().saes.length ? [new Option("Custom edits…", "draft")] : [];
    this._choice.replaceChildren(new Option("No steering", ""), ...profiles, ...draft);
    this._choice.value = before;
    if (this._choice.selectedIndex < 0) this._choice.value = "";
    this._chose();
  }

  choose(value) {
    this._choice.value = value;
    if (this._choice.selectedIndex < 0) this._choice.value = "";
    this._chose();
  }

  async run() {
    if (this._lacksEdits) return this._run.say(NO_EDITS, "failed");
    this.stop();
    const request = this._page.request();
    if (!request) return;
    this._ran = { ...request, steering: this._steering, sae: this._page.sae() };
    this.showStale();
    const { kind, body, sae, steering } = this._ran;
    this.root.querySelector(".answer-kl").textContent = "";
    const fields = { ...body, ...steering, ...readingFields(kind, sae) };
    if (await this._run.start(this._page.choices.urls[kind], fields)) await this.inspect();
  }

  stop() {
    this._run.stop();
  }

  // Shows the effect of steering at each token, the selected feature, and the labels of the features in the answer.
  async inspect() {
    const tokens = this._answer.tokens;
    if (!this._ran || this.isRunning || !tokens?.ids.length) return this._page.paint();
    const features = tokens.list.flatMap((token) => token.features ?? []);
    await Promise.all([this._compare(tokens), this._page.labels.learn(this._ran.sae, features)]);
    this._page.paint();
  }

  // Asks why the model wrote a token. The id of the last one is unknown, because no activations were read there.
  _explain(place) {
    const { body, steering, sae } = this._ran;
    const { promptIds, ids, list } = this._answer.tokens;
    const fields = { model: body.model, ...steering, input: promptIds, position: promptIds.length + place - 1 };
    fields.token = ids[place] ?? list[place].text;
    if (place) fields.completion_ids = ids.slice(0, place);
    if (sae) fields.sae = sae;
    return post(this._page.choices.urls.explain, fields);
  }

  // Lets the server compute the answer's tokens again.
  async _compare(tokens) {
    const feature = this._page.feature();
    if (this._ran.steering.profile === null && !feature) return;
    const fields = { kind: this._ran.kind, model: this._ran.body.model, ...this._ran.steering };
    Object.assign(fields, { prompt_ids: tokens.promptIds, completion_ids: tokens.ids });
    if (feature) Object.assign(fields, { sae: feature.sae, feature: feature.index });
    try {
      const found = await (await post(this._page.choices.urls.inspect, fields)).json();
      const selected = this._page.feature();
      if (tokens !== this._answer.tokens || (selected && selected !== feature)) return; // a newer answer or feature
      const line = this.root.querySelector(".answer-kl");
      line.textContent = tokens.compare(found);
      if (line.textContent) line.append(...this._headline());
    } catch (error) {
      this.root.querySelector(".answer-kl").textContent = `Could not compare the tokens: ${error.message}`;
    }
  }

  // Returns the profile's headline KL with a link to its recipe; nothing for custom edits and other strengths.
  _headline() {
    const { profile, steering_intensity: intensity } = this._ran.steering;
    const [name, number] = (profile ?? "").split("@");
    const facts = this._page.modelFacts().profiles.find((one) => one.name === name);
    const version = number ?? facts?.versions[0];
    const text = facts?.headlines[version];
    if (!text || (intensity ?? 1) !== 1) return [];
    const link = document.createElement("a");
    link.href = this._page.choices.urls.recipe;
    link.textContent = `Headline KL of ${name}@${version}`;
    return [" ", link, `: ${text}.`];
  }

  paint(measure, most) {
    this._answer.paint(measure, most);
  }

  largest(measure) {
    return largest(this.tokens, measure);
  }

  async _copy(write) {
    if (this._lacksEdits) return void (this._snippet.line.textContent = NO_EDITS);
    const request = this._page.request();
    if (!request) return;
    const body = { ...request.body, ...this._steering };
    const { area, line } = this._snippet;
    area.value = write(window.location.origin, request.kind, body, this._page.choices.needs_key);
    area.hidden = false;
    area.select();
    try {
      await navigator.clipboard.writeText(area.value);
      line.textContent = "Copied:";
    } catch {
      line.textContent = "The browser blocked copying. The text is selected below.";
    }
  }

  // The copied snippet belongs to an earlier selection.
  forgetCopy() {
    const { area, line } = this._snippet;
    area.value = line.textContent = "";
    area.hidden = true;
  }

  // A feature of a token: a link to its page, and a button to colour by it.
  _feature(index) {
    const sae = this._ran.sae;
    const act = document.createElement("button");
    act.type = "button";
    act.className = "colour-by";
    act.textContent = "Colour";
    this._page.labels.show(act, sae, index, (name) => act.setAttribute("aria-label", `Colour by ${name}`));
    act.addEventListener("click", () => this._page.colourBy({ sae, index, label: this._page.labels.label(sae, index) }));
    const both = document.createDocumentFragment();
    both.append(this._page.labels.link(sae, index), " ", act);
    return both;
  }

  _chose() {
    this.forgetCopy();
    const isDraft = this._choice.value === "draft";
    this.root.querySelector(".draft").hidden = !isDraft;
    this.root.querySelector(".intensity").hidden = this._choice.value === "";
    this._showIntensity();
    this.showStale();
  }

  // The answer stays until the next run and is marked as outdated.
  showStale() {
    const now = { ...this._page.current(), steering: this._steering };
    const ran = this._ran && { kind: this._ran.kind, body: this._ran.body, steering: this._ran.steering };
    const isStale = ran !== null && JSON.stringify(ran) !== JSON.stringify(now);
    this.root.classList.toggle("is-stale", isStale);
    this.root.querySelector(".answer-stale").hidden = !isStale;
  }

  get _lacksEdits() {
    return this._choice.value === "draft" && this._draft.edits.length === 0;
  }

  _showIntensity() {
    this.root.querySelector(".intensity output").value = `${Number(this._slider.value).toFixed(2)} ×`;
  }

  _buttons() {
    this.root.querySelector("[data-act=stop]").hidden = !this.isRunning;
    this._page.buttons();
  }

  _act(name, act) {
    this.root.querySelector(`.column-acts [data-act=${name}]`)?.addEventListener("click", act);
  }
}
