// Yields the data of each complete event of a stream as JSON until [DONE]. Throws an error that the stream reports.
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("The connection closed before the answer was complete. Run it again.");
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ")) continue;
      const data = part.slice("data: ".length);
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw refusal(chunk);
      yield chunk;
    }
  }
}

// An error with the API's message.
export function refusal(body, status = 0) {
  const error = body?.error;
  if (!error?.message) {
    const remedy = status >= 500 ? "See the server log." : "Reload the page; you may be logged out.";
    return new Error(`Unexpected response from the server${status ? ` (${status})` : ""}. ${remedy}`);
  }
  const failure = new Error(error.message);
  failure.code = error.code;
  failure.problems = body.problems ?? [];
  return failure;
}

// Posts fields as JSON, or a form, with the session. Throws an error if the request is refused or the connection lost.
export async function post(url, fields, signal) {
  const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
  const isForm = fields instanceof FormData;
  let answer;
  try {
    answer = await fetch(url, {
      method: "POST",
      credentials: "same-origin",
      headers: { "X-CSRFToken": token, ...(isForm ? {} : { "Content-Type": "application/json" }) },
      body: isForm ? fields : JSON.stringify(fields),
      signal,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Error("Can't reach the server. Your input is kept; try again later.");
  }
  if (!answer.ok) throw refusal(await answer.json().catch(() => null), answer.status);
  return answer;
}
