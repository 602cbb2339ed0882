// Fills in the defaults of the chosen model, except in fields that the user has changed.
const model = document.querySelector("select[data-defaults]");
const defaults = JSON.parse(model.dataset.defaults);
let filled = {};

function current(name) {
  return document.querySelector(`[name=${name}]`);
}

function fill() {
  const next = defaults[model.value] ?? {};
  for (const name of new Set([...Object.keys(filled), ...Object.keys(next)])) {
    if (current(name).value === String(filled[name] ?? "")) current(name).value = next[name] ?? "";
  }
  filled = next;
}

filled = defaults[model.value] ?? {};
model.addEventListener("change", fill);
