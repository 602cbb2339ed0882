// The inline edits of a column: features found by search, each with an operation. They can be saved as a draft.
import { post } from "../../openai_api/tokens/post.js";
import { FeatureBox, nameOf } from "./feature_box.js";

export class Draft {
  constructor(root, { choices, model, changed }) {
    this._root = root;
    this._choices = choices;
    this._model = model;
    this._changed = changed;
    this._rows = root.querySelector(".draft-rows");
    const box = new FeatureBox(root.querySelector(".feature-box"), {
      url: choices.urls.features,
      model,
      chosen: (feature) => this.add(feature),
    });
    this._box = box;
    root.querySelector("[data-act=save]")?.addEventListener("click", () => this._save());
  }

  get edits() {
    return [...this._rows.children].map((row) => ({
      sae: row.dataset.sae,
      index: Number(row.dataset.index),
      operation: row.querySelector("[name=operation]").value,
      strength: Number(row.querySelector("[name=strength]").value),
      unit: row.querySelector("[name=unit]").value,
      phase: row.querySelector("[name=phase]").value,
    }));
  }

  add(feature) {
    const row = document.getElementById("playground-edit").content.firstElementChild.cloneNode(true);
    row.dataset.sae = feature.sae;
    row.dataset.index = feature.index;
    row.querySelector(".edit-name").textContent = nameOf(feature);
    for (const [name, values] of [["operation", "operations"], ["unit", "units"], ["phase", "phases"]]) {
      const select = row.querySelector(`[name=${name}]`);
      select.append(...this._choices[values].map(([value, words]) => new Option(words, value)));
      select.setAttribute("aria-label", `${name} of ${nameOf(feature)}`);
    }
    row.querySelector("[name=unit]").value = feature.max_activation ? "max_act" : "raw";
    row.querySelector("[name=phase]").value = "both";
    row.querySelector("[name=strength]").value = this._choices.strength;
    row.querySelector("[name=strength]").setAttribute("aria-label", `strength of ${nameOf(feature)}`);
    const remove = row.querySelector("[data-act=remove]");
    remove.setAttribute("aria-label", `Remove ${nameOf(feature)}`);
    remove.addEventListener("click", () => {
      row.remove();
      this._changed();
    });
    row.addEventListener("change", () => this._changed());
    this._rows.append(row);
    this._root.querySelector(".feature-box input").value = "";
    this._changed();
  }

  async _save() {
    const state = this._root.querySelector(".draft-state");
    const name = this._root.querySelector("[name=draft_name]").value;
    if (!this.edits.length) return void (state.textContent = "Add a feature first: the draft has no edits.");
    try {
      const fields = { name, model: this._model(), steering: { features: this.edits } };
      const saved = await (await post(this._choices.urls.draft, fields)).json();
      const link = document.createElement("a");
      link.href = saved.url;
      link.textContent = saved.name;
      state.replaceChildren("Saved as draft ", link, ". Publish to use it.");
    } catch (error) {
      state.textContent = error.message;
    }
  }
}
