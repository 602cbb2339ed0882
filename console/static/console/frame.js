// Live parts of the frame: the engine's state in the bar, and counts in the sidebar.
import { follow } from "./live.js";

const engine = document.getElementById("engine-state");
if (engine) {
  const dot = engine.querySelector(".dot");
  const words = engine.querySelector(".words");
  const kinds = { good: "dot-good", busy: "dot-busy", down: "dot-bad" };
  follow("engine", (data) => {
    dot.className = `dot ${kinds[data?.state] ?? ""}`;
    words.textContent = data?.words ?? "";
    engine.title = data ? [data.words, data.error].filter(Boolean).join(": ") : "";
  });
}

const jobs = document.querySelector("[data-live=jobs]");
if (jobs) follow("jobs", (data) => (jobs.textContent = data?.open || ""));

// Scripts of other apps do not know the connection. Elements name their topic; the scripts get an event when it changes.
const MOST_TOPICS = 12; // the server accepts 16 per page; scripts poll for further ones
const named = [...document.querySelectorAll("[data-live-topic]")].map((part) => part.dataset.liveTopic);
for (const topic of [...new Set(named)].slice(0, MOST_TOPICS)) {
  follow(topic, (data) => document.dispatchEvent(new CustomEvent("live:told", { detail: { topic, data } })));
}

// Menus close on Escape and on a click outside, also menus that were added later.
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.menu[open]")) menu.open = menu.contains(event.target);
});
document.addEventListener("keydown", (event) => {
  const menu = event.key === "Escape" && event.target.closest("details.menu[open]");
  if (!menu) return;
  menu.open = false;
  menu.querySelector("summary").focus();
});
