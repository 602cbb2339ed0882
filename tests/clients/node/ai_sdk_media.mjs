// Vercel's AI SDK with OpenAI's provider: speech, its transcription, images.

import { createOpenAI } from "@ai-sdk/openai";
import { generateImage, generateSpeech, transcribe } from "ai";
import { run, url } from "./cases.mjs";

const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const once = { maxRetries: 0 };
let audio;

await run({
  async speech() {
    const found = await generateSpeech({ ...once, model: openai.speech("tts-1"), text: "hello you", voice: "alloy" });
    audio = found.audio.uint8Array;
    return { type: found.audio.mediaType, format: found.audio.format, bytes: audio.length };
  },

  async transcription() {
    const model = openai.transcription("whisper-1");
    const found = await transcribe({ ...once, model, audio });
    return { text: found.text, seconds: found.durationInSeconds, language: found.language, segments: found.segments.length };
  },

  async image() {
    const model = openai.image("gpt-image-1");
    const { image, images } = await generateImage({ ...once, model, prompt: "a cat", size: "64x64", n: 2 });
    return { type: image.mediaType, count: images.length, start: Array.from(image.uint8Array.slice(0, 4)) };
  },
});
