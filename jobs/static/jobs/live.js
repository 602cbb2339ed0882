// Fetches the page anew while a job on it has not ended, and takes over what it says about its jobs: when the page's
// connection tells of a change, and now and then for what that does not tell. Without a connection it asks often.
"use strict";
{
  const ALONE_MS = 1500;
  const TOLD_MS = 5000; // lines of the log come without a change of what is told
  const LIVE = "[data-job-live='1']";
  const told = new Set(); // topics that the connection follows
  let timer = 0;
  let isAsking = false;
  let isStale = false; // told of something newer than what is being fetched

  const isConnected = () =>
    !document.documentElement.classList.contains("is-disconnected") &&
    [...document.querySelectorAll(LIVE)].every((part) => told.has(part.dataset.liveTopic));

  const refresh = async () => {
    const answer = await fetch(window.location.href, { credentials: "same-origin", cache: "no-store" });
    if (!answer.ok || answer.redirected) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const old of document.querySelectorAll(LIVE)) {
      const now = fresh.getElementById(old.id);
      if (now && (now.innerHTML !== old.innerHTML || now.dataset.jobLive !== old.dataset.jobLive)) old.replaceWith(now);
    }
    // With its end a job gets other buttons and a result.
    if (document.getElementById("job-acts") && !document.querySelector(LIVE)) window.location.reload();
  };

  const watch = async () => {
    timer = 0;
    if (isAsking || !document.querySelector(LIVE)) return;
    isAsking = true;
    isStale = false;
    if (!document.hidden) {
      try {
        await refresh();
      } catch {
        // The server is away; the next round may find it.
      }
    }
    isAsking = false;
    again(isStale ? 0 : isConnected() ? TOLD_MS : ALONE_MS);
  };

  const again = (inMs) => {
    window.clearTimeout(timer);
    timer = window.setTimeout(watch, inMs);
  };

  document.addEventListener("live:told", (event) => {
    if (!event.detail.topic.startsWith("job:")) return;
    told.add(event.detail.topic);
    isStale = true;
    if (!isAsking) again(0);
  });
  document.addEventListener("visibilitychange", () => document.hidden || again(0));
  window.addEventListener("DOMContentLoaded", () => again(ALONE_MS));
}
