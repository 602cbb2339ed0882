// Vercel's AI SDK with both of its ways to us: the provider for compatible servers, and OpenAI's own, which speaks the
// Responses API unless it is told otherwise.

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embed, embedMany, generateObject, generateText, Output, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";
import { collect, refusal, run, url } from "./cases.mjs";

const settings = { baseURL: `${url}/v1`, apiKey: "none" };
const compatible = createOpenAICompatible({ name: "millm", ...settings, includeUsage: true, supportsStructuredOutputs: true });
const openai = createOpenAI(settings);
const prompt = "Tell me a story.";
const common = { maxRetries: 0, temperature: 0, maxOutputTokens: 24 };
const schema = z.object({ kind: z.enum(["cat", "dog"]), isTame: z.boolean() });

const kinds = {
  compatible: { chat: compatible("demo"), vectors: compatible.embeddingModel("vectors") },
  responses: { chat: openai("demo"), vectors: openai.embedding("vectors") },
  chat: { chat: openai.chat("demo"), vectors: openai.embedding("vectors") },
};

function weather(asked) {
  return {
    get_weather: tool({
      description: "Get the weather in a city.",
      inputSchema: z.object({ city: z.string() }),
      execute: async (input) => (asked.push(input), { weather: "sunny", degrees: 20 }),
    }),
  };
}

function casesOf(name, { chat, vectors }) {
  const question = { ...common, model: chat, prompt: "What is the weather in Paris?", maxOutputTokens: 80 };
  const cases = {
    async generate_text() {
      const { text, finishReason, usage } = await generateText({ ...common, model: chat, prompt });
      return { text, finishReason, usage };
    },

    async stream_text() {
      const stream = streamText({ ...common, model: chat, prompt, onError: () => {} });
      const types = (await collect(stream.fullStream)).map((part) => part.type);
      return { types, text: await stream.text, finishReason: await stream.finishReason, usage: await stream.usage };
    },

    async system_and_history() {
      const messages = [
        { role: "user", content: "Hello." },
        { role: "assistant", content: "Hello to you." },
        { role: "user", content: [{ type: "text", text: prompt }] },
      ];
      return (await generateText({ ...common, model: chat, instructions: "Be brief.", messages })).text;
    },

    // The model calls, the SDK runs the tool and asks again with its result.
    async tools() {
      const asked = [];
      const { text, steps } = await generateText({ ...question, tools: weather(asked), stopWhen: stepCountIs(3) });
      return { asked, text, steps: steps.map((step) => step.finishReason) };
    },

    async tools_in_a_stream() {
      const asked = [];
      const stream = streamText({ ...question, tools: weather(asked), stopWhen: stepCountIs(3) });
      const types = (await collect(stream.fullStream)).map((part) => part.type);
      return { asked, types, text: await stream.text };
    },

    async forced_tool() {
      const asked = [];
      const toolChoice = { type: "tool", toolName: "get_weather" };
      const { toolCalls } = await generateText({ ...question, prompt, tools: weather(asked), toolChoice });
      return { asked, calls: toolCalls.map((call) => [call.toolName, call.input]) };
    },

    generate_object: async () => (await generateObject({ ...common, model: chat, prompt, schema, maxOutputTokens: 60 })).object,

    async stream_object() {
      const stream = streamObject({ ...common, model: chat, prompt, schema, maxOutputTokens: 60 });
      const partial = await collect(stream.partialObjectStream);
      return { partial: partial.length, object: await stream.object };
    },

    async output_object() {
      const options = { ...common, model: chat, prompt, maxOutputTokens: 60 };
      return (await generateText({ ...options, output: Output.object({ schema }) })).output;
    },

    async embeddings() {
      const one = await embed({ model: vectors, value: "The cat sat.", maxRetries: 0 });
      const many = await embedMany({ model: vectors, values: ["The cat sat.", "a"], maxRetries: 0 });
      return { one: one.embedding, many: many.embeddings, usage: many.usage };
    },

    async error() {
      const model = { compatible, responses: openai, chat: openai.chat }[name]("nobody");
      return refusal(() => generateText({ ...common, model, prompt }));
    },
  };
  return Object.entries(cases).map(([key, action]) => [`${name}_${key}`, action]);
}

const completion = {
  compatible: compatible.completionModel("demo"),
  openai: openai.completion("demo"),
};

await run({
  ...Object.fromEntries(Object.entries(kinds).flatMap(([name, models]) => casesOf(name, models))),

  ...Object.fromEntries(
    Object.entries(completion).map(([name, model]) => [
      `${name}_completion`,
      async () => (await generateText({ ...common, model, prompt: "Once upon a time" })).text,
    ]),
  ),

  // Fields of ours ride along as the provider's options.
  async profile() {
    const providerOptions = { millm: { profile: "gloomy" } };
    const { response } = await generateText({ ...common, model: compatible("demo"), prompt, providerOptions });
    return response.headers["x-millm-profile"];
  },
});
