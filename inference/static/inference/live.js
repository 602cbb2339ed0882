// Keeps the models on the page up to date: when the connection reports a change; without a connection it polls, often
// while a model is loading or unloading, rarely otherwise.
const MOVING_MS = 1000;
const RESTING_MS = 10000;
const told = new Set(); // topics that the connection follows
let timer = 0;
let isAsking = false;
let isStale = false; // something newer than the running fetch was reported

const parts = () => [...document.querySelectorAll("[data-model-live]")];
const isMoving = () => parts().some((part) => part.querySelector("progress"));

const url = () => {
  const keys = parts().map((part) => part.dataset.modelLive);
  return `${parts()[0].dataset.liveUrl}?pk=${keys.join(",")}`;
};

const sayLost = (isLost) => {
  for (const line of document.querySelectorAll(".model-lost")) line.hidden = !isLost;
};

const states = () => parts().map((part) => part.querySelector(".model-badge")?.textContent).join();

// A model that was loaded meanwhile has other buttons. Text in fields is kept.
const renewActs = async () => {
  const old = document.querySelector(".model-acts");
  if (!old) return;
  const answer = await fetch(window.location.href, { credentials: "same-origin", cache: "no-store" });
  if (!answer.ok || answer.redirected) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector(".model-acts");
  if (fresh) old.replaceWith(fresh);
};

const refresh = async () => {
  const answer = await fetch(url(), { credentials: "same-origin", cache: "no-store" });
  if (!answer.ok || answer.redirected) throw new Error(`status ${answer.status}`);
  const { models } = await answer.json();
  const before = states();
  for (const part of parts()) {
    const html = models[part.dataset.modelLive];
    if (html !== undefined && html !== part.innerHTML) part.innerHTML = html; // escaped by the server's template
  }
  if (states() !== before) await renewActs();
};

const isConnected = () =>
  !document.documentElement.classList.contains("is-disconnected") &&
  parts().every((part) => told.has(part.dataset.liveTopic));

const watch = async () => {
  timer = 0;
  if (isAsking) return;
  isAsking = true;
  isStale = false;
  if (!document.hidden) {
    try {
      await refresh();
      sayLost(false);
    } catch {
      sayLost(true);
    }
  }
  isAsking = false;
  again(isStale ? 0 : isMoving() && !isConnected() ? MOVING_MS : RESTING_MS);
};

const again = (inMs) => {
  window.clearTimeout(timer);
  timer = window.setTimeout(watch, inMs);
};

if (parts().length) {
  document.addEventListener("live:told", (event) => {
    if (!event.detail.topic.startsWith("model:")) return;
    told.add(event.detail.topic);
    isStale = true;
    if (!isAsking) again(0);
  });
  again(MOVING_MS);
}
