// Speaks a text and plays it.
import { offer, onSend, post, sayDone } from "./trying.js";

const form = document.getElementById("try-form");

const ask = async (signal) => {
  const result = document.getElementById("try-result");
  const player = result.querySelector("audio");
  const save = result.querySelector("a");
  const startedAt = performance.now();
  const answer = await post(form, signal);
  const sound = await answer.blob();
  offer(save, sound, `speech.${form.elements.response_format.value}`);
  player.src = save.href;
  result.hidden = false;
  sayDone(form, answer, `Finished in ${((performance.now() - startedAt) / 1000).toFixed(1)} s.`);
  await player.play().catch(() => null); // where a browser plays nothing by itself, the button does
};

if (form) onSend(form, ask);
