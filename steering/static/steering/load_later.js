// Loads the page fragment that data-load names into the element. Without scripts it contains a link.
"use strict";

async function loadLater(element) {
  try {
    const answer = await fetch(element.dataset.load, { headers: { "X-Requested-With": "fetch" } });
    if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
    const part = new DOMParser().parseFromString(await answer.text(), "text/html");
    element.replaceChildren(...part.body.childNodes);
  } catch {
    element.append(" It could not be loaded; the link tries again.");
  }
  element.removeAttribute("aria-busy");
}

document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll("[data-load]")) {
    element.setAttribute("aria-busy", "true");
    loadLater(element);
  }
});
