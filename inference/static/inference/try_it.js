// Streams an answer of the model onto the page. It is inserted as text, never as HTML.
import { objects, onSend, post, sayDone } from "./trying.js";

const form = document.getElementById("try-form");

const ask = async (signal) => {
  const place = document.getElementById("try-answer");
  place.textContent = "";
  place.hidden = false;
  const answer = await post(form, signal);
  let reason = "";
  for await (const chunk of objects(answer)) {
    const choice = chunk.choices?.[0];
    place.textContent += (choice?.delta?.reasoning_content ?? "") + (choice?.delta?.content ?? "");
    reason = choice?.finish_reason ?? reason;
  }
  sayDone(form, answer, reason === "length" ? "Stopped at the token limit." : "Finished.");
};

if (form) onSend(form, ask);
