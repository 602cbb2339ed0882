// One column: what steers it, its answer, and what can be done with both.
import { Answer } from "../../openai_api/tokens/answer.js";
import { largest, number } from "../../openai_api/tokens/colours.js";
import { Draft } from "./draft.js";
import { events, post } from "./events.js";
import { readingFields, steeringFields } from "./request.js";
import { asCurl, asPython } from "./snippets.js";
import { Tokens } from "./tokens.js";

export class Column {
  constructor(root, page) {
    this.root = root;
    this._page = page;
    this._abort = null;
    this._ran = null; // the request that the answer is of
    this._answer = new Answer(root, { labelOf: (index) => page.labels.of(this._ran?.sae, index) });
    this._draft = new Draft(root.querySelector(".draft"), {
      choices: page.choices,
      model: page.model,
      changed: () => this._chose(),
    });
    this._choice.addEventListener("change", () => this._chose());
    this._slider.addEventListener("input", () => this._showIntensity());
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
  get isRunning() { return this._abort !== null; }
  get tokens() { return this._answer.tokens?.list ?? []; }
  get _steering() {
    return steeringFields({ choice: this._choice.value, edits: this._draft.edits, intensity: Number(this._slider.value) });
  }

  // The profiles of the model that is chosen.
  fill() {
    const before = this._choice.value;
    const profiles = this._page.modelFacts().profiles.flatMap(({ name, versions }) => [
      new Option(`${name} (newest)`, `profile:${name}`),
      ...versions.map((version) => new Option(`${name}@${version}`, `profile:${name}@${version}`)),
    ]);
    const draft = this._page.modelFacts().saes.length ? [new Option("Edits of my own …", "draft")] : [];
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
    this.stop();
    const request = this._page.request();
    if (!request) return;
    const abort = (this._abort = new AbortController());
    this._ran = { ...request, steering: this._steering, sae: this._page.sae() };
    const tokens = new Tokens();
    this._answer.begin(tokens);
    this._say("Asking; a model that is not loaded is loaded first.", "loading");
    this._buttons();
    try {
      await this._stream(tokens, abort.signal);
      if (this._abort === abort) this._abort = null;
      await this.inspect();
    } catch (error) {
      if (this._abort !== abort && this._abort !== null) return; // a newer run says its own
      this._say(abort.signal.aborted ? "Stopped." : error.message, abort.signal.aborted ? "" : "failed");
    } finally {
      if (this._abort === abort) this._abort = null;
      this._buttons();
    }
  }

  stop() {
    this._abort?.abort();
    this._abort = null;
    this._buttons();
  }

  // What steering did to each token, and the chosen feature at each: the server computes the answer's tokens again.
  async inspect() {
    const feature = this._page.feature();
    const isSteered = this._ran?.steering.profile !== null;
    const tokens = this._answer.tokens;
    const ids = tokens?.ids ?? [];
    if (!this._ran || this.isRunning || !ids.length || !(isSteered || feature)) return this._page.paint();
    const fields = { kind: this._ran.kind, model: this._ran.body.model, ...this._ran.steering };
    Object.assign(fields, { prompt_ids: tokens.promptIds, completion_ids: ids });
    if (feature) Object.assign(fields, { sae: feature.sae, feature: feature.index });
    try {
      const found = await (await post(this._page.choices.urls.inspect, fields)).json();
      if (tokens !== this._answer.tokens) return; // run again meanwhile
      ids.forEach((_, place) => {
        tokens.list[place].kl = found.kl?.[place] ?? null;
        tokens.list[place].value = found.values?.[place] ?? null;
      });
      this.root.querySelector(".answer-kl").textContent = found.kl
        ? `KL against unsteered: ${number(found.kl.reduce((sum, one) => sum + one, 0) / found.kl.length)} nats a token.`
        : "";
    } catch (error) {
      this.root.querySelector(".answer-kl").textContent = `Its tokens could not be compared: ${error.message}`;
    }
    await this._page.labels.learn(this._ran.sae, tokens.list.flatMap((token) => token.features ?? []));
    this._page.paint();
  }

  paint(measure, most) {
    this._answer.paint(measure, most);
  }

  largest(measure) {
    return largest(this.tokens, measure);
  }

  async _stream(tokens, signal) {
    const { kind, body, sae, steering } = this._ran;
    const fields = { ...body, ...steering, ...readingFields(kind, sae) };
    this.root.querySelector(".answer-kl").textContent = "";
    const answer = await post(this._page.choices.urls[kind], fields, signal);
    let reason = "";
    let receipt = null;
    for await (const chunk of events(answer.body)) {
      const fresh = tokens.take(chunk);
      if (tokens !== this._answer.tokens) return;
      this._answer.append(fresh);
      reason = chunk.choices?.[0]?.finish_reason ?? reason;
      if (chunk.millm?.steering) receipt = chunk.millm;
    }
    this._end(tokens, reason, receipt, answer.headers.get("x-request-id"));
  }

  _end(tokens, reason, receipt, id) {
    const words = [`${tokens.list.length} tokens, ended by ${reason || "nothing"}.`];
    if (receipt) {
      const { expected, applied } = receipt.steering;
      words.push(`${receipt.profile ?? "Policies"} acted ${applied} of ${expected} times.`);
    }
    this._say(words.join(" "));
    if (!this._page.seesLog || !id) return;
    const link = document.createElement("a");
    link.href = `${this._page.choices.urls.log}${encodeURIComponent(id)}/change/`;
    link.textContent = "Its log row";
    this.root.querySelector(".column-state").append(" ", link);
  }

  async _copy(write) {
    const request = this._page.request();
    if (!request) return;
    const body = { ...request.body, ...this._steering };
    const area = this.root.querySelector(".snippet");
    area.value = write(window.location.origin, request.kind, body, this._page.choices.needs_key);
    area.hidden = false;
    area.select();
    try {
      await navigator.clipboard.writeText(area.value);
      this._say("Copied.");
    } catch {
      this._say("The browser does not let pages copy here: the text is below, selected.");
    }
  }

  _chose() {
    const isDraft = this._choice.value === "draft";
    this.root.querySelector(".draft").hidden = !isDraft;
    this.root.querySelector(".intensity").hidden = this._choice.value === "";
    this._showIntensity();
  }

  _showIntensity() {
    this.root.querySelector(".intensity output").value = `${Number(this._slider.value).toFixed(2)} ×`;
  }

  _say(text, state = "") {
    const line = this.root.querySelector(".column-state");
    line.textContent = text;
    line.className = `column-state ${state ? `state state-${state}` : "quiet"}`;
    line.setAttribute("aria-busy", String(state === "loading"));
  }

  _buttons() {
    this.root.querySelector("[data-act=stop]").hidden = !this.isRunning;
    this._page.buttons();
  }

  _act(name, act) {
    this.root.querySelector(`.column-acts [data-act=${name}]`)?.addEventListener("click", act);
  }
}
