// Requests of pages to the server, with the session.

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

// Posts fields as JSON, or a form. Throws an error if the request is refused or the connection lost.
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
