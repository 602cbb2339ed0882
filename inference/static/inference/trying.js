// What the "Try it" forms of all kinds of models share. A page has one of them.

// Yields the data of each complete event of a stream; the rest waits for its end.
export const events = async function* (body) {
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

// Yields the events of a stream as objects, up to [DONE]. Throws the stream's error.
export const objects = async function* (answer) {
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Error(event.error.message);
    yield event;
  }
};

export const say = (text, isFailure = false) => {
  const state = document.getElementById("try-state");
  state.textContent = text;
  state.classList.toggle("model-failed", isFailure);
};

const refusal = async (answer) => {
  if (answer.status === 413) return new Error("The file is too large for this page. Send it to the API.");
  const body = await answer.json().catch(() => null);
  return new Error(body?.error?.message ?? `Unexpected response from the server (${answer.status}).`);
};

// Sends the form, with the CSRF token in a header. Throws what the server refused.
export const post = async (form, signal, data = new FormData(form)) => {
  data.set("model", form.dataset.model);
  const token = data.get("csrfmiddlewaretoken");
  data.delete("csrfmiddlewaretoken");
  const headers = { "X-CSRFToken": token };
  const answer = await fetch(form.action, { method: "POST", body: data, headers, credentials: "same-origin", signal });
  if (!answer.ok) throw await refusal(answer);
  return answer;
};

export const get = async (url, signal) => {
  const answer = await fetch(url, { credentials: "same-origin", signal });
  if (!answer.ok) throw await refusal(answer);
  return answer;
};

export const sayDone = (form, answer, text) => {
  say(`${text} `);
  if (!form.dataset.log) return; // no link for users who may not see the log
  const link = document.createElement("a");
  link.href = `${form.dataset.log}${encodeURIComponent(answer.headers.get("x-request-id"))}/change/`;
  link.textContent = "View in request log";
  document.getElementById("try-state").append(link);
};

// Calls `ask(signal)` when the form is sent, one at a time, and says how it ends.
export const onSend = (form, ask) => {
  const stop = document.getElementById("try-stop");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!stop.hidden) return;
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
  // The page leaves it disabled: sent before this script runs, the form would open its answer as a page.
  for (const button of form.querySelectorAll("button[type=submit]")) button.disabled = false;
};

// Shows a link that saves `data` as a file; a file that was offered before is forgotten.
export const offer = (link, data, name) => {
  if (link.href.startsWith("blob:")) URL.revokeObjectURL(link.href);
  link.href = URL.createObjectURL(data);
  link.download = name;
  link.hidden = false;
};
