// The colour strength of a token, 0 to 1, and the text of the legend.

const MOST_PERCENT = 45; // opacity of the colour; above it, light text is hard to read in the dark theme

export const MEASURES = {
  none: { value: () => null, words: "" },
  kl: { value: (token) => token.kl, words: "KL(steered‖base), nats" },
  logprob: { value: (token) => (token.logprob === null ? null : -token.logprob), words: "Surprisal: negative log-probability (nats)" },
  feature: { value: (token) => token.value, words: "Feature activation" },
};

export function largest(tokens, measure) {
  return tokens.reduce((most, token) => Math.max(most, measure.value(token) ?? 0), 0);
}

export function colour(element, token, measure, most) {
  const value = measure.value(token);
  const share = value === null || value === undefined || most <= 0 ? 0 : Math.max(0, value) / most;
  element.style.backgroundColor = `rgb(var(--heat) / ${Math.round(share * MOST_PERCENT)}%)`;
}

export const number = (value, digits = 3) => (value === null || value === undefined ? "–" : Number(value).toFixed(digits));

export function showLegend(legend, measure, most, words = measure.words) {
  legend.hidden = measure === MEASURES.none;
  legend.querySelector(".legend-words").textContent = words;
  legend.querySelector(".legend-most").textContent = most.toFixed(2);
}
