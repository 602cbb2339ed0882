// The cards of a profile's edits: explains the chosen operation, unit and phase, shows only the fields that the
// operation uses, and opens conditions that are set. Without scripts all fields are visible and nothing is explained.
"use strict";
(() => {
  const SITE = ["sae", "norm_layer", "norm_site"]; // of operations on a whole site
  const UNUSED = {
    add: ["lower", ...SITE],
    clamp: ["lower", ...SITE],
    scale: ["lower", "unit", ...SITE],
    ablate: ["strength", "unit", "lower", ...SITE],
    at_least: ["lower", ...SITE],
    at_most: ["lower", ...SITE],
    orthogonal: ["lower", "unit", ...SITE],
    projection_cap: SITE,
    norm_preserving: ["strength", "unit", "lower", "plain_vector", "sae"],
    reconstruct: ["strength", "unit", "lower", "plain_vector", "norm_layer", "norm_site"],
  };
  const FIELDS = ["strength", "unit", "lower", "plain_vector", ...SITE];

  function explain(select) {
    const texts = JSON.parse(select.dataset.explain);
    let note = select.parentElement.querySelector(".steering-explained");
    if (!note) {
      note = document.createElement("span");
      note.className = "steering-explained help";
      note.id = `${select.id}_explained`;
      note.setAttribute("aria-live", "polite");
      select.setAttribute("aria-describedby", note.id);
      select.after(note);
    }
    note.textContent = texts[select.value] || "";
  }

  function showUsed(card, operation) {
    const unused = UNUSED[operation] || [];
    for (const name of FIELDS) {
      for (const field of card.querySelectorAll(`.fieldBox.field-${name}, .form-row.field-${name}:not(:has(.form-multiline))`)) {
        const whole = field.matches(".fieldBox") ? field.parentElement : field; // with its help text
        whole.classList.toggle("steering-unused", unused.includes(name));
      }
    }
  }

  function isSet(field) {
    if (field.type === "hidden" || /-gate_(unit|measure|side|scope)$/.test(field.name)) return false;
    if (field.name.endsWith("-scope")) return field.value !== "everything";
    return field.type === "checkbox" ? field.checked : field.value !== "" && field.value !== "null";
  }

  function prepare(card) {
    for (const select of card.querySelectorAll("select[data-explain]")) explain(select);
    const operation = card.querySelector("select[name$=-operation]");
    if (operation) showUsed(card, operation.value);
    for (const details of card.querySelectorAll("details")) {
      const fields = details.querySelectorAll("input, select, textarea");
      if ([...fields].some(isSet) || details.querySelector(".errorlist")) details.open = true;
    }
  }

  function changed(event) {
    const card = event.target.closest(".inline-related");
    if (!card) return;
    if (event.target.matches("select[data-explain]")) explain(event.target);
    if (event.target.matches("select[name$=-operation]")) showUsed(card, event.target.value);
    card.classList.add("steering-changed-card");
  }

  document.addEventListener("change", changed);
  document.addEventListener("input", changed);
  document.addEventListener("formset:added", (event) => prepare(event.target));
  document.addEventListener("DOMContentLoaded", () => {
    for (const card of document.querySelectorAll(".inline-related")) prepare(card);
  });
})();
