// OpenAI's client for JavaScript, with its helpers for streams, tools, parsed answers and files.

import OpenAI, { toFile } from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { VERSION } from "openai/version";
import { z } from "zod";
import { collect, refusal, run, url } from "./cases.mjs";

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000 });
const messages = [{ role: "user", content: "Tell me a story." }];
const short = { model: "demo", messages, max_tokens: 24, temperature: 0 };
const response = { model: "demo", input: "Tell me a story.", max_output_tokens: 24, temperature: 0 };
const Animal = z.object({ kind: z.enum(["cat", "dog"]), is_tame: z.boolean() });
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Get the weather in a city.",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};
const question = { ...short, messages: [{ role: "user", content: "What is the weather in Paris?" }], max_tokens: 80 };

await run({
  version: () => VERSION,

  chat: () => client.chat.completions.create(short),

  async chat_stream() {
    const options = { ...short, stream: true, stream_options: { include_usage: true } };
    return collect(await client.chat.completions.create(options));
  },

  async stream_helper() {
    const stream = client.chat.completions.stream(short);
    const deltas = [];
    stream.on("content", (delta) => deltas.push(delta));
    return { text: await stream.finalContent(), deltas: deltas.join(""), usage: (await stream.finalChatCompletion()).choices.length };
  },

  // The client calls the function by itself and sends its result back until the model answers.
  async run_tools() {
    const asked = [];
    const tool = { ...weather.function, parse: JSON.parse, function: (args) => (asked.push(args), "sunny, 20 degrees") };
    const runner = client.chat.completions.runTools({ ...question, tools: [{ type: "function", function: tool }] });
    return { answer: await runner.finalContent(), asked, roles: runner.messages.map((message) => message.role) };
  },

  async run_tools_in_a_stream() {
    const asked = [];
    const tool = { ...weather.function, parse: JSON.parse, function: (args) => (asked.push(args), "sunny, 20 degrees") };
    const runner = client.chat.completions.runTools({ ...question, stream: true, tools: [{ type: "function", function: tool }] });
    return { answer: await runner.finalContent(), asked };
  },

  async parse() {
    const format = zodResponseFormat(Animal, "animal");
    const answer = await client.chat.completions.parse({ ...short, max_tokens: 60, response_format: format });
    return answer.choices[0].message.parsed;
  },

  responses: async () => (await client.responses.create(response)).output_text,

  async responses_stream() {
    const stream = client.responses.stream(response);
    const types = (await collect(stream)).map((event) => event.type);
    return { types, text: (await stream.finalResponse()).output_text };
  },

  async responses_parse() {
    const text = { format: zodTextFormat(Animal, "animal") };
    return (await client.responses.parse({ ...response, max_output_tokens: 60, text })).output_parsed;
  },

  async responses_continue() {
    const first = await client.responses.create(response);
    const second = await client.responses.create({ ...response, input: "And then?", previous_response_id: first.id });
    const items = await collect(client.responses.inputItems.list(second.id));
    return { items: items.map((item) => item.role), more: second.usage.input_tokens > first.usage.input_tokens };
  },

  async completions() {
    return client.completions.create({ model: "demo", prompt: "Once upon a time", max_tokens: 4, echo: true, logprobs: 1 });
  },

  async embeddings() {
    const input = ["The cat sat.", "a"];
    const chosen = await client.embeddings.create({ model: "vectors", input });
    const plain = await client.embeddings.create({ model: "vectors", input, encoding_format: "float" });
    return { default: chosen.data.map((item) => item.embedding), float: plain.data.map((item) => item.embedding) };
  },

  async with_response() {
    const { data, response: raw, request_id } = await client.chat.completions.create(short).withResponse();
    return { status: raw.status, header: raw.headers.get("x-request-id"), request_id, of_answer: data._request_id };
  },

  async as_response() {
    const raw = await client.chat.completions.create({ ...short, stream: true }).asResponse();
    return { type: raw.headers.get("content-type"), text: await raw.text() };
  },

  // An aborted stream ends without an error, and the next request is served.
  async abort() {
    const stream = await client.chat.completions.create({ ...short, max_tokens: 900, stream: true, ignore_eos: true });
    let count = 0;
    for await (const _ of stream) if (++count === 3) stream.controller.abort();
    return { count, next: (await client.chat.completions.create(short)).choices.length };
  },

  async models() {
    return (await collect(client.models.list())).map((model) => model.id).sort();
  },

  async files() {
    const file = await client.files.create({ file: await toFile(Buffer.from("The cat sat."), "cat.txt"), purpose: "user_data" });
    const content = await (await client.files.content(file.id)).text();
    const listed = (await collect(client.files.list({ limit: 1 }))).map((each) => each.id);
    return { content, is_listed: listed.includes(file.id), deleted: (await client.files.delete(file.id)).deleted };
  },

  async vector_store() {
    const store = await client.vectorStores.create({ name: "notes" });
    const text = await toFile(Buffer.from("The cat sat by the sea."), "cats.md");
    const file = await client.vectorStores.files.uploadAndPoll(store.id, text, { pollIntervalMs: 100 });
    const hits = await collect(client.vectorStores.search(store.id, { query: "cats" }));
    await client.vectorStores.delete(store.id);
    return { status: file.status, hits: hits.map((hit) => hit.content[0].text) };
  },

  async errors() {
    const wrongKey = client.withOptions({ apiKey: "sk-millm-wrong" });
    return [
      await refusal(() => client.chat.completions.create({ ...short, temperature: 9 })),
      await refusal(() => client.chat.completions.create({ ...short, model: "nobody" })),
      await refusal(() => wrongKey.chat.completions.create(short)),
      await refusal(() => client.responses.retrieve("resp_nobody")),
    ];
  },
});
