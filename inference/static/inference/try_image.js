// Makes an image, with previews. Images are data: URLs, which the page's policy allows.
import { objects, onSend, post, say, sayDone } from "./trying.js";

const form = document.getElementById("try-form");

const ask = async (signal) => {
  const result = document.getElementById("try-result");
  const picture = result.querySelector("img");
  const save = document.getElementById("try-save");
  save.hidden = true;
  const answer = await post(form, signal);
  let seed = null;
  for await (const event of objects(answer)) {
    picture.src = `data:image/png;base64,${event.b64_json}`;
    picture.alt = form.elements.prompt.value;
    result.hidden = false;
    if (event.type.endsWith(".partial_image")) say(`Preview ${event.partial_image_index + 1}…`);
    else seed = event.seed;
  }
  save.href = picture.src;
  save.hidden = false;
  sayDone(form, answer, `Finished. Seed ${seed}.`);
};

if (form) onSend(form, ask);
