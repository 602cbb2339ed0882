import { refusal } from "../../openai_api/tokens/post.js";

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
