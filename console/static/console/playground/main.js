// The playground: one prompt and up to four columns, each with its own steering and all with the same seed.
import { MEASURES, showLegend } from "../../openai_api/tokens/colours.js";
import { Column } from "./column.js";
import { FeatureBox } from "./feature_box.js";
import { Labels } from "./labels.js";
import { commonFields } from "./request.js";

const MOST = 4;

class Playground {
  constructor(root) {
    this._root = root;
    this._form = root.querySelector("form");
    this._columns = [];
    this._feature = null;
    this.choices = JSON.parse(root.dataset.choices);
    this.seesLog = root.dataset.seesLog === "yes";
    this.labels = new Labels({ url: this.choices.urls.labels, page: this.choices.urls.feature });
    this.model = () => this._form.elements.model.value;
    this._form.addEventListener("input", () => {
      for (const column of this._columns) {
        column.forgetCopy();
        column.showStale();
      }
    });
    this._form.addEventListener("submit", (event) => {
      event.preventDefault();
      this._columns.forEach((column) => column.run());
    });
    this._form.elements.model.addEventListener("change", () => this._newModel());
    this._form.elements.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this._form.requestSubmit();
    });
    for (const kind of this._form.elements.kind) kind.addEventListener("change", () => this._newKind());
    this._on("stop", () => this._columns.forEach((column) => column.stop()));
    this._on("add", () => this.add());
    this._colours();
    this._newModel();
    this.add();
    this.add();
    this._begin();
  }

  modelFacts() {
    return this.choices.models.find((model) => model.name === this.model());
  }

  sae() {
    return this._form.elements.sae.value || null;
  }

  feature() {
    return this._colourBy.value === "feature" ? this._feature : null;
  }

  // Returns the request fields of all columns, or null if the form is incomplete.
  request() {
    return this._form.reportValidity() ? this.current() : null;
  }

  // The same without the check.
  current() {
    const form = new FormData(this._form);
    return { kind: form.get("kind"), body: commonFields(form) };
  }

  add() {
    const template = document.getElementById("playground-column").content.firstElementChild;
    const root = template.cloneNode(true);
    this._named(root, this._columns.length + 1);
    this._root.querySelector(".columns").append(root);
    this._columns.push(new Column(root, this));
    this.buttons();
  }

  remove(column) {
    column.stop();
    column.root.remove();
    this._columns = this._columns.filter((one) => one !== column);
    this._columns.forEach((one, place) => this._named(one.root, place + 1));
    this.paint();
    this.buttons();
  }

  paint() {
    const measure = MEASURES[this._colourBy.value];
    const most = Math.max(0, ...this._columns.map((column) => column.largest(measure)));
    this._columns.forEach((column) => column.paint(measure, most));
    const isSilent = measure === MEASURES.feature && most === 0 && this._columns.some((column) => column.hasValues);
    const words = isSilent ? "The feature is not active on these tokens." : measure.words;
    showLegend(this._root.querySelector(".legend"), measure, most, words);
  }

  buttons() {
    this._root.querySelector("[data-act=stop]").hidden = !this._columns.some((column) => column.isRunning);
    this._root.querySelector("[data-act=add]").disabled = this._columns.length >= MOST;
    for (const column of this._columns) {
      column.root.querySelector("[data-act=remove]").hidden = this._columns.length === 1;
    }
  }

  // Selects a feature as if the user had searched for it.
  colourBy(feature) {
    this._featureBox.choose(feature);
  }

  // A link may preselect values: ?model=…&profile=…
  _begin() {
    const asked = new URLSearchParams(window.location.search);
    if (this.choices.models.some((model) => model.name === asked.get("model"))) {
      this._form.elements.model.value = asked.get("model");
      this._newModel();
    }
    const first = this.modelFacts().profiles[0]?.name;
    const profile = asked.get("profile") ?? first;
    if (profile) this._columns[1].choose(`profile:${profile}`);
    this.paint();
  }

  _newModel() {
    const { saes } = this.modelFacts();
    this._form.elements.sae.replaceChildren(...saes.map((name) => new Option(name, name)), new Option("none", ""));
    this._columns.forEach((column) => column.fill());
  }

  _newKind() {
    this._root.querySelector(".system").hidden = this._form.elements.kind.value === "completion";
  }

  _colours() {
    this._colourBy = this._root.querySelector("[name=colour_by]");
    const box = this._root.querySelector(".colours .feature-box");
    const showBox = () => { box.hidden = this._colourBy.value !== "feature"; };
    this._colourBy.addEventListener("change", () => {
      showBox();
      this.paint();
      if (this.feature()) this._columns.forEach((column) => column.inspect());
    });
    this._featureBox = new FeatureBox(box, {
      url: this.choices.urls.features,
      model: this.model,
      chosen: (feature) => {
        this._feature = feature;
        this._colourBy.value = "feature";
        showBox();
        this._columns.forEach((column) => column.inspect());
      },
    });
  }

  _named(root, place) {
    root.querySelector("h2").textContent = `Column ${place}`;
    root.querySelector(".answer-text").setAttribute("aria-label", `Answer of column ${place}`);
    for (const field of root.querySelectorAll("[data-label]")) {
      field.setAttribute("aria-label", `${field.dataset.label} of column ${place}`);
    }
  }

  _on(name, act) {
    this._root.querySelector(`.playground-acts [data-act=${name}]`).addEventListener("click", act);
  }
}

const root = document.getElementById("playground");
if (root) new Playground(root);
