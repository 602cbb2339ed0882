// The steering studio: features to add, the edits, and answers with and without them. All of it is in the address.
import { MEASURES, showLegend } from "../../openai_api/tokens/colours.js";
import { post } from "../../openai_api/tokens/post.js";
import { Labels } from "../playground/labels.js";
import { Find } from "./find.js";
import { Rows, withoutOff } from "./rows.js";
import { Side } from "./side.js";
import { History, MAX_ADDRESS, decode, encode } from "./state.js";

const PAUSE_MS = 500;
const MAX_LOADING_MS = 1000;
const NUMBERS = ["max_tokens", "temperature", "frequency_penalty", "presence_penalty"];
const SETTINGS = ["kind", "seed", ...NUMBERS, "system"];

class Studio {
  constructor(root) {
    this._root = root;
    this._choices = JSON.parse(root.dataset.choices);
    this._form = this._find(".asked");
    this._labels = new Labels({ url: this._choices.urls.labels, page: this._choices.urls.feature });
    this._profile = null; // what the server said of the profile
    this._saved = "[]"; // its draft
    this._prompts = [];
    this._timer = 0;
    const { urls } = this._choices;
    this._rows = new Rows(this._find(".studio-edits"), {
      choices: this._choices,
      request: () => this._where(),
      changed: ({ isFinal }) => this._changed(isFinal),
      described: (edits) => this._fillColours(edits),
    });
    const panel = this._find(".studio-find");
    this._features = panel.querySelector("#studio-search")
      ? new Find(panel, { urls, request: () => ({ model: this.model }), add: (feature) => this._add(feature) })
      : null;
    this._base = new Side(this._find("[data-side=unsteered]"), this, {
      url: (kind) => urls[`${kind}Unsteered`],
      inspectUrl: urls.inspectUnsteered,
      steering: () => ({ profile: null }),
    });
    this._steered = new Side(this._find("[data-side=steered]"), this, {
      url: (kind) => urls[kind],
      inspectUrl: urls.inspect,
      steering: () => ({ profile: this._profile?.name ?? null, edits: this._rows.active.map(withoutOff) }),
    });
    this._fillColours([]);
    this._listen();
    this._open().finally(() => root.removeAttribute("aria-busy"));
  }

  get model() { return this._find("[name=model]").value; }
  get _sides() { return [this._base, this._steered]; }
  get _facts() { return this._choices.models.find((model) => model.name === this.model); }

  // What requests of all kinds name.
  _where() {
    return { model: this.model, profile: this._profile?.name ?? null };
  }

  // What answers share: the body of requests without prompts and steering.
  request() {
    const form = new FormData(this._form);
    const body = { model: this.model, seed: Number(form.get("seed") || 0) };
    for (const name of NUMBERS) if (form.get(name)) body[name] = Number(form.get(name));
    return { kind: form.get("kind"), system: form.get("system") ?? "", body };
  }

  facts() {
    const sae = this._features?.sae ?? this._facts.saes[0] ?? null;
    return { labels: this._labels, sae, logUrl: this._choices.seesLog ? this._choices.urls.log : null, feature: this._feature };
  }

  get _feature() {
    const value = this._colourBy.value;
    return value.startsWith("{") ? JSON.parse(value) : null;
  }

  get _colourBy() { return this._find("[name=colour_by]"); }

  // From the address: the state after "#", or ?model=…&profile=…&sae=…&index=…&by=…
  async _open() {
    const state = decode(window.location.hash.slice(1));
    const asked = new URLSearchParams(window.location.search);
    const model = state?.model ?? asked.get("model");
    if (this._choices.models.some((one) => one.name === model)) this._find("[name=model]").value = model;
    const found = this._newModel();
    const profile = state ? state.profile : asked.get("profile");
    if (profile) await this._load(profile, { keeps: state?.edits !== undefined });
    if (state) this._restore(state);
    if (asked.get("by")) this._features?.choose(asked.get("by"));
    if (!state && asked.get("index") !== null) await this._addNamed(asked.get("sae"), Number(asked.get("index")));
    this._history = new History(this._snapshot());
    this._shown();
    const pause = new Promise((resolve) => window.setTimeout(resolve, MAX_LOADING_MS));
    await Promise.race([pause, Promise.all([found, this._rows.settle()])]);
  }

  _restore(state) {
    for (const name of SETTINGS) if (state[name] !== undefined) this._form.elements[name].value = state[name];
    if (this._form.elements.kind.selectedIndex < 0) this._form.elements.kind.value = "chat";
    this._prompts = (Array.isArray(state.prompts) ? state.prompts : []).map(String);
    if (this._prompts.length) this._form.elements.prompt.value = "";
    if (state.edits) this._rows.set(state.edits);
    for (const side of this._sides) side.show(this._prompts);
  }

  _state() {
    const form = new FormData(this._form);
    const settings = Object.fromEntries(SETTINGS.map((name) => [name, form.get(name) ?? ""]).filter(([, value]) => value !== ""));
    const profile = this._profile?.name ?? null;
    return { model: this.model, profile, edits: this._rows.edits, ...settings, prompts: this._prompts };
  }

  _snapshot() {
    return JSON.stringify({ profile: this._profile?.name ?? null, edits: this._rows.edits });
  }

  get _isUnsaved() {
    const edits = this._rows.edits.map(withoutOff);
    return JSON.stringify(edits) !== this._saved;
  }

  // After any change: the address, what is stale, the buttons.
  _shown() {
    const address = encode(this._state());
    this._isLong = address.length > MAX_ADDRESS;
    window.history.replaceState(null, "", this._isLong ? window.location.pathname : `#${address}`);
    this._find(".studio-unsaved").hidden = !this._isUnsaved;
    const isStale = this._steered.isStale && !this._steered.isRunning;
    this._steered.root.classList.toggle("is-stale", isStale);
    this._steered.root.querySelector(".answer-stale").hidden = !isStale;
    this._base.root.classList.toggle("is-stale", this._base.isStale && !this._base.isRunning);
    this.buttons();
  }

  buttons() {
    const isRunning = this._sides.some((side) => side.isRunning);
    const hasTurns = this._prompts.length > 0;
    this._act("stop").hidden = !isRunning;
    this._act("send").disabled = isRunning; // the next turn continues whole answers
    this._act("again").hidden = this._act("new").hidden = !hasTurns;
    this._act("send").textContent = hasTurns && this.request().kind === "chat" ? "Send" : "Run";
    this._find(".studio-sides").hidden = !hasTurns;
    this._find(".studio-no-answers").hidden = hasTurns;
    this._act("undo").disabled = !this._history?.canUndo;
    this._act("redo").disabled = !this._history?.canRedo;
    const mayChange = this._profile ? this._profile.mayChange : this._choices.mayAdd;
    this._act("save").hidden = !mayChange;
    this._act("save").textContent = this._profile ? "Save draft" : "Save as draft…";
    this._act("save").disabled = this._profile !== null && !this._isUnsaved;
    const leads = this._profile?.review ? "review" : this._profile?.publish ? "publish" : null;
    this._act("publish").hidden = !leads;
    this._act("publish").textContent = leads === "review" ? "Review…" : this._isUnsaved ? "Save and publish…" : "Publish…";
  }

  paint() {
    const measure = this._feature ? MEASURES.feature : MEASURES[this._colourBy.value];
    const most = Math.max(0, ...this._sides.map((side) => side.largest(measure)));
    for (const side of this._sides) side.paint(measure, most);
    showLegend(this._find(".legend"), measure, most);
  }

  _changed(isFinal) {
    if (isFinal) this._history?.note(this._snapshot());
    this._shown();
    this._follow();
  }

  // Answers again while the user edits.
  _follow() {
    window.clearTimeout(this._timer);
    if (!this._form.elements.follow.checked || !this._prompts.length) return;
    this._timer = window.setTimeout(() => this._again(), PAUSE_MS);
  }

  // The sides whose answers are not of what is set now.
  _again({ all = false } = {}) {
    if (!this._form.reportValidity()) return;
    for (const side of this._sides) if (all || side.isStale) this._play(side);
  }

  async _play(side, first = 0) {
    if (side === this._steered && !this._rows.active.length) {
      side.show(this._prompts);
      return this._say("Add an edit to see its effect.");
    }
    this._say("");
    const playing = side.play(first);
    this._shown();
    await playing;
    this._shown();
    this.paint();
  }

  _send() {
    const field = this._form.elements.prompt;
    if (this._sides.some((side) => side.isRunning)) return;
    if (!field.value.trim()) return void field.focus();
    const isChat = this.request().kind === "chat";
    // Earlier answers of other edits are answered again, so that a conversation is of one set of edits.
    const kept = isChat && !this._sides.some((side) => side.isStale) ? this._prompts.length : 0;
    this._prompts = isChat ? [...this._prompts, field.value] : [field.value];
    if (isChat) field.value = "";
    for (const side of this._sides) side.show(this._prompts, kept);
    this._shown();
    for (const side of this._sides) this._play(side, kept);
  }

  // A feature, or a registered vector.
  _add({ sae, index, set, layer, site, unit, strength }) {
    const target = set ? { set, layer, site } : { sae, index };
    this._rows.add({ ...target, operation: "add", strength: strength ?? this._choices.strength, unit, phase: "both" });
  }

  async _addNamed(sae, index) {
    const edit = { sae, index, operation: "add", strength: "auto", unit: "max_act", phase: "both" };
    const { edits } = await (await post(this._choices.urls.edits, { ...this._where(), edits: [edit] })).json();
    const strength = edits[0].problem ? this._choices.strength : Number(edits[0].strength.toPrecision(3));
    this._rows.add({ ...edit, strength });
  }

  // Profiles

  _newModel() {
    const { profiles, saes } = this._facts;
    const select = this._find("[name=profile]");
    select.replaceChildren(new Option("none (new)", ""), ...profiles.map((name) => new Option(name, name)));
    return this._features?.fill(saes);
  }

  // Loads a draft or a version. With `keeps`, only what is known of the profile: the edits are those of the address.
  async _load(reference, { keeps = false } = {}) {
    if (!reference) return this._take(null, []);
    try {
      const found = await (await post(this._choices.urls.profile, { model: this.model, profile: reference })).json();
      const draft = reference.includes("@") ? await this._draftOf(found.name) : found.edits;
      this._saved = JSON.stringify(draft);
      this._take(found, keeps ? null : found.edits);
    } catch (error) {
      this._say(error.message);
      this._find("[name=profile]").value = this._profile?.name ?? "";
    }
  }

  async _draftOf(profile) {
    return (await (await post(this._choices.urls.profile, { model: this.model, profile })).json()).edits;
  }

  _take(profile, edits) {
    this._profile = profile;
    if (!profile) this._saved = "[]";
    this._find("[name=profile]").value = profile?.name ?? "";
    this._showVersions();
    if (edits) this._rows.set(edits);
    this._say(profile?.state ?? "");
  }

  _showVersions() {
    const { versions = [], page, compare } = this._profile ?? {};
    const list = this._find(".studio-versions ul");
    const items = versions.map((version) => {
      const item = document.createElement("li");
      const load = button(version.label, () => this._choose(version.label));
      load.title = `Load the edits of ${version.label}`;
      item.append(load, ` ${version.published} ${version.note}`);
      if (version.rollBack) item.append(" ", link(version.rollBack, "Roll back…"));
      return item;
    });
    if (this._profile) items.push(linked(page, "Profile page"));
    if (compare) items.push(linked(compare, "Compare versions…"));
    list.replaceChildren(...items);
    this._find(".studio-versions").hidden = !this._profile;
  }

  async _choose(reference) {
    this._find(".studio-versions").open = false;
    await this._load(reference);
    this._changed(true);
  }

  async _undo(step) {
    const { profile, edits } = JSON.parse(this._history[step]());
    if (profile !== (this._profile?.name ?? null)) {
      if (profile) await this._load(profile, { keeps: true });
      else this._take(null, null);
    }
    this._rows.set(edits);
    this._shown();
    this._follow();
  }

  async _save(name = "") {
    const edits = this._rows.edits.map(withoutOff);
    const fields = { ...this._where(), edits, etag: this._profile?.etag ?? "", name };
    try {
      const found = await (await post(this._choices.urls.save, fields)).json();
      this._saved = JSON.stringify(edits);
      if (!this._facts.profiles.includes(found.name)) {
        this._facts.profiles.push(found.name);
        this._find("[name=profile]").append(new Option(found.name, found.name));
      }
      this._take(found, null);
      this._say(`Saved the draft of ${found.name}. ${found.state}`);
      this._history.note(this._snapshot());
      this._shown();
      return true;
    } catch (error) {
      this._say(error.message);
      return false;
    }
  }

  async _publish() {
    if (this._isUnsaved && !(await this._save())) return;
    this._isLeaving = true;
    window.location.assign(this._profile.review || this._profile.publish);
  }

  async _copyLink() {
    if (this._isLong) return this._say("The edits are too long for a link. Save them as a draft, and share that.");
    try {
      await navigator.clipboard.writeText(window.location.href);
      this._say("Copied the link.");
    } catch {
      this._say("The browser blocked copying. Copy the address of this page.");
    }
  }

  _nameDraft(isShown) {
    const form = this._find(".studio-new");
    form.hidden = !isShown;
    if (isShown) form.elements.name.focus();
  }

  _fillColours(edits) {
    const features = this._rows.edits.flatMap(({ sae, index }, place) => (index === undefined || !edits[place]?.name ? [] : [{ sae, index, name: edits[place].name }]));
    const before = this._colourBy.value;
    this._colourBy.replaceChildren(
      new Option("KL(steered‖base)", "kl"),
      new Option("surprisal", "logprob"),
      ...features.map(({ sae, index, name }) => new Option(`activation of ${name}`, JSON.stringify({ sae, index }))),
      new Option("nothing", "none"),
    );
    this._colourBy.value = before;
    if (this._colourBy.selectedIndex < 0) this._colourBy.value = "kl";
  }

  _listen() {
    this._find("[name=model]").addEventListener("change", async () => {
      this._newModel();
      await this._load("");
      this._changed(true);
    });
    this._find("[name=profile]").addEventListener("change", (event) => this._choose(event.target.value));
    this._form.addEventListener("submit", (event) => {
      event.preventDefault();
      this._send();
    });
    this._form.addEventListener("input", (event) => {
      if (event.target.name !== "prompt") this._changed(false);
    });
    this._form.elements.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this._form.requestSubmit();
    });
    this._colourBy.addEventListener("change", () => {
      this.paint();
      if (this._feature) for (const side of this._sides) side.inspect();
    });
    const form = this._find(".studio-new");
    form?.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (await this._save(form.elements.name.value)) this._nameDraft(false);
    });
    const acts = {
      undo: () => this._undo("undo"),
      redo: () => this._undo("redo"),
      link: () => this._copyLink(),
      save: () => (this._profile ? this._save() : this._nameDraft(true)),
      publish: () => this._publish(),
      again: () => this._again({ all: true }),
      new: () => this._newConversation(),
      stop: () => this._sides.forEach((side) => side.stop()),
      cancel: () => this._nameDraft(false),
    };
    for (const [name, act] of Object.entries(acts)) this._act(name)?.addEventListener("click", act);
    document.addEventListener("keydown", (event) => this._key(event));
    window.addEventListener("hashchange", () => window.location.reload()); // another state was pasted
    window.addEventListener("beforeunload", (event) => {
      if (this._isUnsaved && this._rows.edits.length && !this._isLeaving) event.preventDefault();
    });
  }

  _newConversation() {
    this._prompts = [];
    for (const side of this._sides) side.show([]);
    this._form.elements.prompt.value = "Tell me a story.";
    this._form.elements.prompt.focus();
    this._shown();
  }

  // In text fields these keys are the browser's own.
  _key(event) {
    if (event.key.toLowerCase() !== "z" || !(event.ctrlKey || event.metaKey)) return;
    if (event.target.matches("textarea, input[type=search], input:not([type])")) return;
    const step = event.shiftKey ? "redo" : "undo";
    if (!this._history[step === "undo" ? "canUndo" : "canRedo"]) return;
    event.preventDefault();
    this._undo(step);
  }

  _say(text) { this._find(".studio-said").textContent = text; }
  _act(name) { return this._find(`[data-act=${name}]`); }
  _find(selector) { return this._root.querySelector(selector); }
}

function button(text, act) {
  const made = document.createElement("button");
  Object.assign(made, { type: "button", className: "button", textContent: text });
  made.addEventListener("click", act);
  return made;
}

function link(href, text) {
  const made = document.createElement("a");
  Object.assign(made, { href, textContent: text });
  return made;
}

function linked(href, text) {
  const item = document.createElement("li");
  item.append(link(href, text));
  return item;
}

const root = document.getElementById("studio");
if (root) new Studio(root);
