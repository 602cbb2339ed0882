// Keeps what a page says about its models up to date: often while one moves, seldom otherwise.
const MOVING_MS = 1000;
const RESTING_MS = 10000;

const parts = () => [...document.querySelectorAll("[data-model-live]")];
const isMoving = () => parts().some((part) => part.querySelector("progress"));

const url = () => {
  const keys = parts().map((part) => part.dataset.modelLive);
  return `${parts()[0].dataset.liveUrl}?pk=${keys.join(",")}`;
};

const sayLost = (isLost) => {
  for (const line of document.querySelectorAll(".model-lost")) line.hidden = !isLost;
};

const refresh = async () => {
  const answer = await fetch(url(), { credentials: "same-origin", cache: "no-store" });
  if (!answer.ok || answer.redirected) throw new Error(`status ${answer.status}`);
  const { models } = await answer.json();
  for (const part of parts()) {
    const html = models[part.dataset.modelLive];
    if (html !== undefined && html !== part.innerHTML) part.innerHTML = html; // escaped by the server's template
  }
};

const watch = async () => {
  if (!document.hidden) {
    try {
      await refresh();
      sayLost(false);
    } catch {
      sayLost(true);
    }
  }
  window.setTimeout(watch, isMoving() ? MOVING_MS : RESTING_MS);
};

if (parts().length) window.setTimeout(watch, MOVING_MS);
