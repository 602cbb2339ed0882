// Updates the list while the user types: fetches the page of the new search and replaces the results.
"use strict";

const PAUSE_MS = 250;
const NOTE = "#changelist-search .small.quiet"; // the number of results
const PARTS = ["#changelist-form", "#list-filters"];

document.addEventListener("DOMContentLoaded", () => {
  const bar = document.querySelector("#changelist-search #searchbar");
  if (!bar) return;
  let timer = 0;
  let running = null;

  async function search() {
    const address = new URL(window.location.href);
    address.searchParams.delete("p");
    if (bar.value.trim()) address.searchParams.set("q", bar.value);
    else address.searchParams.delete("q");
    if (running) running.abort();
    running = new AbortController();
    let page;
    try {
      const answer = await fetch(address, { signal: running.signal });
      if (!answer.ok || answer.redirected) return;
      page = new DOMParser().parseFromString(await answer.text(), "text/html");
    } catch {
      return; // a newer search, or no connection: Enter still searches
    }
    const note = document.querySelector(NOTE);
    const newNote = page.querySelector(NOTE);
    if (note) note.remove();
    if (newNote) bar.parentElement.querySelector("[type=submit]").after(newNote);
    for (const part of PARTS) {
      const before = document.querySelector(part);
      const after = page.querySelector(part);
      if (before && after) before.replaceWith(after);
    }
    window.history.replaceState(null, "", address);
  }

  bar.addEventListener("input", () => {
    window.clearTimeout(timer);
    timer = window.setTimeout(search, PAUSE_MS);
  });
});
