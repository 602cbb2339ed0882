// The live parts of the frame: the engine's state in the bar, and counts in the sidebar.
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

// Scripts of the apps below do not know the connection. What they keep up to date names its topic, and they hear of it.
const MOST_TOPICS = 12; // the server takes 16 of one page; those beyond are looked after by their scripts
const named = [...document.querySelectorAll("[data-live-topic]")].map((part) => part.dataset.liveTopic);
for (const topic of [...new Set(named)].slice(0, MOST_TOPICS)) {
  follow(topic, (data) => document.dispatchEvent(new CustomEvent("live:told", { detail: { topic, data } })));
}

// A menu closes with Escape and with a click beside it.
const menu = document.querySelector(".user-menu");
if (menu) {
  document.addEventListener("click", (event) => menu.contains(event.target) || (menu.open = false));
  menu.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });
}
