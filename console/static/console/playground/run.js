// A running request: sends it, streams the answer onto the page, and reports how it ended.
import { post } from "../../openai_api/tokens/post.js";
import { events } from "./events.js";
import { Tokens } from "./tokens.js";

const FINISHED = { stop: "finished", length: "stopped at the token limit", tool_calls: "called a tool" };

// "68 tokens, finished."
const endText = (count, reason) => `${count} tokens, ${FINISHED[reason] ?? (reason ? `ended with ${reason}` : "ended")}.`;

// "Layer 6 (resid_post): changed 100% of 68 tokens, by 31% of their norm on average."
function effectText({ site, tokens, changed_share: share, mean_change: change }) {
  const size = change === null ? "by an overflowing amount" : `by ${percent(change)} of their norm on average`;
  const place = site.replace(/^layers\.(\d+)\.(\w+)$/, "Layer $1 ($2)");
  return `${place}: changed ${percent(share)} of ${tokens} tokens, ${size}.`;
}

// "gloomy@1: applied at all 68 steering points." A point is one token at one site.
function appliedText({ profile, steering: { expected, applied } }) {
  const share = applied === expected ? `all ${expected}` : `${applied} of ${expected}`;
  return `${profile ?? "Policies"}: applied at ${share} steering points.`;
}

const percent = (value) => `${Number((100 * value).toPrecision(3))}%`;

export class Run {
  // `logUrl`: URL of the request log, null for users who may not see it. `changed` is called on start and end. With
  // `isBrief`, what steering did is a tooltip.
  constructor(root, { answer, logUrl, changed, isBrief = false }) {
    this._line = root.querySelector(".column-state");
    this._answer = answer;
    this._logUrl = logUrl;
    this._changed = changed;
    this._isBrief = isBrief;
    this._abort = null;
  }

  get isRunning() { return this._abort !== null; }

  // Returns whether the run completed. Errors are shown and passed to `failed`. An earlier run is aborted.
  async start(url, body, failed = () => {}) {
    this.stop();
    const abort = (this._abort = new AbortController());
    const tokens = new Tokens();
    this._answer.begin(tokens);
    this._line.removeAttribute("title");
    this.say("Waiting for the model. If it is not loaded, it is loaded first.", "loading");
    this._changed();
    try {
      await this._stream(url, body, tokens, abort.signal);
      return this._abort === abort;
    } catch (error) {
      if (this._abort !== abort && this._abort !== null) return false; // a newer run reports itself
      this.say(abort.signal.aborted ? "Stopped." : error.message, abort.signal.aborted ? "" : "failed");
      if (!abort.signal.aborted) failed(error);
      return false;
    } finally {
      if (this._abort === abort) this._abort = null;
      this._changed();
    }
  }

  stop() {
    this._abort?.abort();
    this._abort = null;
    this._changed();
  }

  say(text, state = "") {
    this._line.textContent = text;
    this._line.className = `column-state ${state ? `state state-${state}` : "quiet"}`;
    this._line.setAttribute("aria-busy", String(state === "loading"));
  }

  async _stream(url, body, tokens, signal) {
    const answer = await post(url, body, signal);
    let reason = "";
    let receipt = null;
    for await (const chunk of events(answer.body)) {
      const fresh = tokens.take(chunk);
      if (tokens !== this._answer.tokens) return;
      this._answer.append(fresh);
      reason = chunk.choices?.[0]?.finish_reason ?? reason;
      if (chunk.millm?.steering) receipt = chunk.millm;
    }
    this._end(tokens, reason, receipt, answer.headers.get("x-request-id"));
  }

  _end(tokens, reason, receipt, id) {
    const words = [endText(tokens.list.length, reason)];
    if (receipt) {
      const { sites, without_effect: inert = [] } = receipt.steering;
      const did = [appliedText(receipt), ...sites.map(effectText)];
      if (this._isBrief) this._line.title = did.join(" ");
      else words.push(...did);
      for (const one of inert) words.push(`Edit ${one.edit + 1} has no effect: ${one.reason}`);
    }
    this.say(words.join(" "));
    if (!this._logUrl || !id) return;
    const link = document.createElement("a");
    link.href = `${this._logUrl}${encodeURIComponent(id)}/change/`;
    link.textContent = "View in request log";
    this._line.append(" ", link);
  }
}
