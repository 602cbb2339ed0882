// Anthropic's client for JavaScript.

import Anthropic from "@anthropic-ai/sdk";
import { collect, refusal, run, url } from "./cases.mjs";

const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0, timeout: 60_000 });
const messages = [{ role: "user", content: "Tell me a story." }];
const short = { model: "demo", max_tokens: 24, temperature: 0, messages };
const tool = {
  name: "get_weather",
  description: "Get the weather in a city.",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};

await run({
  message: () => client.messages.create(short),

  async stream() {
    const stream = client.messages.stream(short);
    const types = (await collect(stream)).map((event) => event.type);
    return { types, text: await stream.finalText() };
  },

  async forced_tool() {
    const body = { ...short, max_tokens: 80, tools: [tool], tool_choice: { type: "tool", name: "get_weather" } };
    return (await client.messages.create(body)).content;
  },

  async forced_tool_in_a_stream() {
    const body = { ...short, max_tokens: 80, tools: [tool], tool_choice: { type: "any" } };
    const final = await client.messages.stream(body).finalMessage();
    return { content: final.content, stop_reason: final.stop_reason };
  },

  count_tokens: () => client.messages.countTokens({ model: "demo", messages }),

  errors: async () => [
    await refusal(() => client.messages.create({ ...short, model: "nobody" })),
    await refusal(() => client.messages.create({ ...short, max_tokens: -1 })),
  ],
});
