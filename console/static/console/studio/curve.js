// A small line chart: how much a feature moves the output, by strength, with a line at the strength that is set.
const WIDTH = 80;
const HEIGHT = 24;

// `points` are strengths (raw) with their divergences.
export function drawCurve(svg, points, strength) {
  const known = [[0, 0], ...points.filter(([raw, kl]) => raw > 0 && Number.isFinite(kl))].sort(([one], [other]) => one - other);
  svg.toggleAttribute("hidden", known.length < 3);
  if (known.length < 3) return;
  const [far, high] = [known.at(-1)[0], Math.max(...known.map(([, kl]) => kl))];
  const x = (raw) => (WIDTH * Math.min(Math.max(raw / far, 0), 1)).toFixed(1);
  const places = known.map(([raw, kl]) => `${x(raw)},${(HEIGHT - 1 - ((HEIGHT - 2) * kl) / (high || 1)).toFixed(1)}`);
  svg.querySelector("polyline").setAttribute("points", places.join(" "));
  const line = svg.querySelector("line");
  line.setAttribute("x1", x(strength));
  line.setAttribute("x2", x(strength));
  svg.setAttribute("aria-label", `Divergence of the output by strength, up to ${high.toFixed(2)} nats per token`);
}
