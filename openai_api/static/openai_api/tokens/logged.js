// Shows the tokens of a logged request, coloured by their stored data.
import { Answer } from "./answer.js";
import { MEASURES, largest, showLegend } from "./colours.js";
import { Explanation } from "./explanation.js";
import { post } from "./post.js";

const FEATURE = "feature:";

class LoggedTokens {
  constructor(root) {
    this._root = root;
    this._answers = [...root.querySelectorAll("[data-tokens]")].map((part) => this._filled(part));
    this._choice = root.querySelector("[name=colour_by]");
    this._choice.addEventListener("change", () => this._paint());
    this._paint();
  }

  _filled(part) {
    const tokens = { list: JSON.parse(part.dataset.tokens) };
    const answer = new Answer(part, {
      featureOf: (index) => this._labelOf(index),
      explanation: this._explanationOf(part),
    });
    answer.begin(tokens);
    answer.append(tokens.list);
    return { answer, tokens: tokens.list };
  }

  // Tokens of an answer whose request can be read again.
  _explanationOf(part) {
    const { explain } = this._root.dataset;
    if (!explain || part.dataset.answer === undefined) return null;
    const answer = Number(part.dataset.answer);
    return new Explanation(part, (number) => post(explain, { answer, number }));
  }

  _labelOf(index) {
    this._labels ??= JSON.parse(this._root.dataset.labels);
    return this._labels[index] ? `#${index} ${this._labels[index]}` : `#${index}`;
  }

  _paint() {
    const chosen = this._choice.value;
    const feature = chosen.startsWith(FEATURE) ? Number(chosen.slice(FEATURE.length)) : null;
    const measure = MEASURES[feature === null ? chosen : "feature"];
    const all = this._answers.flatMap(({ tokens }) => tokens);
    // Only the strongest features of a token are stored: a missing one is unknown, not zero.
    for (const token of all) token.value = token.features?.find((one) => one.index === feature)?.value ?? null;
    const most = largest(all, measure);
    for (const { answer } of this._answers) answer.paint(measure, most);
    showLegend(this._root.querySelector(".legend"), measure, most);
  }
}

for (const root of document.querySelectorAll(".logged-tokens")) new LoggedTokens(root);
