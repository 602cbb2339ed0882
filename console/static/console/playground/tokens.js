// The tokens of one answer, parsed from its chunks: text, log-probabilities and feature activations.
import { number } from "../../openai_api/tokens/colours.js";

export class Tokens {
  constructor() {
    this.list = []; // {text, logprob, top: [[text, logprob]], id, features, kl, value}
    this.promptIds = [];
    this._early = new Map(); // activations that arrived before their token
    this._decoder = new TextDecoder();
  }

  // Adds a chunk and returns the new tokens.
  take(chunk) {
    const before = this.list.length;
    const choice = chunk.choices?.[0];
    const logprobs = choice?.logprobs;
    if (logprobs?.content) this._chat(logprobs.content);
    else if (logprobs?.tokens) this._completion(logprobs, choice.text);
    for (const read of chunk.millm?.activations ?? []) this._read(read);
    return this.list.slice(before);
  }

  // Returns the known ids of the answer's tokens. The last token was not an input of the model.
  get ids() {
    const known = [];
    for (const token of this.list) {
      if (token.id === undefined) break;
      known.push(token.id);
    }
    return known;
  }

  // Adds the results of recomputing the answer and returns a summary.
  compare({ kl, values }) {
    this.ids.forEach((_, place) => {
      this.list[place].kl = kl?.[place] ?? null;
      this.list[place].value = values?.[place] ?? null;
    });
    if (!kl) return "";
    return `KL(steered‖base) of this answer: ${number(kl.reduce((sum, one) => sum + one, 0) / kl.length)} nats per token.`;
  }

  _chat(content) {
    for (const one of content) {
      // A character that spans several tokens is shown with the last one.
      const text = one.bytes ? this._decoder.decode(Uint8Array.from(one.bytes), { stream: true }) : one.token;
      this._add(text, one.logprob, one.top_logprobs.map((top) => [top.token, top.logprob]));
    }
  }

  _completion(logprobs, text) {
    const isWhole = logprobs.tokens.join("") === text;
    const last = logprobs.tokens.length - 1;
    logprobs.tokens.forEach((token, number) => {
      const top = Object.entries(logprobs.top_logprobs?.[number] ?? {});
      this._add(isWhole ? token : number === last ? text : "", logprobs.token_logprobs[number], top);
    });
  }

  _add(text, logprob, top) {
    top.sort((one, other) => other[1] - one[1]);
    this.list.push({ text, logprob, top, features: null, kl: null, value: null });
    this._attach(this.list.length - 1);
  }

  _read(read) {
    if (read.phase === "prompt") {
      this.promptIds[read.place] = read.id;
      return;
    }
    this._early.set(read.place - this.promptIds.length, read);
    this._attach(read.place - this.promptIds.length);
  }

  _attach(number) {
    const read = this._early.get(number);
    if (!read || !this.list[number]) return;
    this.list[number].id = read.id;
    this.list[number].features = read.features;
    this._early.delete(number);
  }
}
