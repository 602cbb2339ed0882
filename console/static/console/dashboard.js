// The dashboard's live figures; charts.js draws the charts.
import "./charts.js";
import { follow } from "./live.js";

const STATES = { loaded: "badge-good", loading: "badge-busy", failed: "badge-bad" };

const figures = document.querySelectorAll("[data-load]");
if (figures.length) {
  follow("load", (load) => {
    for (const figure of figures) {
      const value = load?.[figure.dataset.load];
      figure.removeAttribute("aria-busy");
      if (value === undefined) figure.textContent = "–";
      else if ("percent" in figure.dataset) figure.textContent = `${Math.round(100 * value)} %`;
      else figure.textContent = value.toLocaleString("en");
      if ("warn" in figure.dataset) figure.classList.toggle("figure-warn", value >= Number(figure.dataset.warn));
    }
  });
}

const models = document.querySelectorAll("[data-model]");
if (models.length) {
  follow("models", (states) => {
    for (const row of models) {
      const now = states?.[row.dataset.model];
      const running = row.querySelector("[data-running]");
      running.removeAttribute("aria-busy");
      if (!now) {
        running.textContent ||= "–";
        continue;
      }
      const badge = row.querySelector("[data-state]");
      badge.textContent = now.state;
      badge.className = `badge ${STATES[now.state] ?? ""}`;
      running.textContent = now.waiting ? `${now.running} + ${now.waiting}` : now.running;
      row.querySelector("[data-kv]").value = now.kv;
    }
  });
}
