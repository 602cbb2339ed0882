// Streams an answer of the model onto the page. It is inserted as text, never as HTML.
const form = document.getElementById("try-form");

const say = (text, isFailure = false) => {
  const state = document.getElementById("try-state");
  state.textContent = text;
  state.classList.toggle("model-failed", isFailure);
};

// Yields the data of each complete event of a stream; the rest waits for its end.
const events = async function* (body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice("data: ".length);
  }
};

const take = async (answer, place) => {
  let reason = "";
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") break;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    const choice = chunk.choices?.[0];
    place.textContent += (choice?.delta?.reasoning_content ?? "") + (choice?.delta?.content ?? "");
    reason = choice?.finish_reason ?? reason;
  }
  return reason;
};

const refusal = async (answer) => {
  const body = await answer.json().catch(() => null);
  return new Error(body?.error?.message ?? `Unexpected response from the server (${answer.status}).`);
};

const ask = async (signal) => {
  const place = document.getElementById("try-answer");
  place.textContent = "";
  place.hidden = false;
  const data = new FormData(form);
  data.set("model", form.dataset.model);
  const answer = await fetch(form.action, { method: "POST", body: data, credentials: "same-origin", signal });
  if (!answer.ok) throw await refusal(answer);
  const reason = await take(answer, place);
  say(reason === "length" ? "Stopped at the token limit. " : "Finished. ");
  if (!form.dataset.log) return; // no link for users who may not see the log
  const link = document.createElement("a");
  link.href = `${form.dataset.log}${encodeURIComponent(answer.headers.get("x-request-id"))}/change/`;
  link.textContent = "View in request log";
  document.getElementById("try-state").append(link);
};

if (form) {
  const stop = document.getElementById("try-stop");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const abort = new AbortController();
    stop.onclick = () => abort.abort();
    stop.hidden = false;
    say("Waiting for the model. If it is not loaded, it is loaded first.");
    try {
      await ask(abort.signal);
    } catch (error) {
      say(abort.signal.aborted ? "Stopped." : error.message || "The server is not responding.", !abort.signal.aborted);
    }
    stop.hidden = true;
  });
}
