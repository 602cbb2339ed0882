// Orders a video, follows its progress and plays it.
import { get, onSend, post, say, sayDone } from "./trying.js";

const POLL_MS = 1000;
const form = document.getElementById("try-form");

const wait = (ms, signal) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });

const follow = async (video, bar, signal) => {
  const url = `${form.action}/${encodeURIComponent(video.id)}`;
  while (video.status === "queued" || video.status === "in_progress") {
    bar.value = video.progress;
    say(video.status === "queued" ? "Queued…" : `Generating… ${video.progress} %`);
    await wait(POLL_MS, signal);
    video = await (await get(url, signal)).json();
  }
  if (video.status === "failed") throw new Error(video.error.message);
  return url;
};

const cancel = (video) => {
  const headers = { "X-CSRFToken": form.elements.csrfmiddlewaretoken.value };
  const url = `${form.action}/${encodeURIComponent(video.id)}/cancel`;
  return fetch(url, { method: "POST", headers, credentials: "same-origin" }).catch(() => null);
};

const ask = async (signal) => {
  const bar = document.getElementById("try-progress");
  const result = document.getElementById("try-result");
  const player = result.querySelector("video");
  const save = document.getElementById("try-save");
  result.hidden = true;
  const answer = await post(form, signal);
  const video = await answer.json();
  signal.addEventListener("abort", () => cancel(video));
  bar.hidden = false;
  try {
    const url = await follow(video, bar, signal);
    player.src = save.href = `${url}/content`;
    save.download = `${video.id}.mp4`;
    result.hidden = false;
    sayDone(form, answer, `Finished. Seed ${video.seed}.`);
  } finally {
    bar.hidden = true;
  }
};

if (form) onSend(form, ask);
