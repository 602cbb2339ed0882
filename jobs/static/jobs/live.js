// Updates the jobs on the page until they have ended. It fetches the page when the connection reports a change, and
// now and then for what the connection does not report. Without a connection it polls often.
"use strict";
{
  const ALONE_MS = 1500;
  const TOLD_MS = 5000; // new lines of the log do not change the topic
  const LIVE = "[data-job-live='1']";
  const told = new Set(); // topics that the connection follows
  let timer = 0;
  let isAsking = false;
  let isStale = false; // something newer than the running fetch was reported

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
    // A job that has ended has other buttons and a result.
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
        // The server is down; the next poll may reach it.
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
