// Draws each [data-chart] from the table inside it, in the theme's colours, and again when the theme changes.
import uPlot from "./vendor/uplot/uPlot.esm.js";

const SERIES = ["--series-1", "--series-2", "--series-3", "--series-4"];
const HEIGHT = 190;
const drawn = new Map();

// Resolves the colour of a variable for the canvas: browsers resolve light-dark() only where it is used.
function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function readTable(figure) {
  const rows = [...figure.querySelectorAll("tbody tr")];
  const names = [...figure.querySelectorAll("thead th")].slice(1).map((cell) => cell.textContent);
  const times = rows.map((row) => Number(row.dataset.at));
  const series = names.map((_, number) =>
    rows.map((row) => {
      const value = Number.parseFloat(row.querySelectorAll("td")[number].textContent);
      return Number.isNaN(value) ? null : value;
    }),
  );
  return { names, data: [times, ...series] };
}

// Formats a time in UTC, as everywhere in the console: the day at midnight, otherwise hour and minute.
function timeWords(_, times) {
  return times.map((time) => {
    const [day, hour] = new Date(time * 1000).toISOString().split("T");
    return hour.startsWith("00:00") ? day.slice(5) : hour.slice(0, 5);
  });
}

function draw(figure) {
  const plot = figure.querySelector(".plot");
  if (!plot) return;
  drawn.get(figure)?.destroy();
  const { names, data } = readTable(figure);
  const axis = { stroke: colour("--body-quiet-color"), grid: { stroke: colour("--hairline-color"), width: 1 }, ticks: { show: false } };
  const lines = names.map((label, number) => {
    const stroke = colour(SERIES[number]);
    return { label, stroke, width: 1.5, points: { show: false }, dash: number ? [6, 3 * number] : undefined };
  });
  const options = {
    width: plot.clientWidth,
    height: HEIGHT,
    series: [{}, ...lines],
    axes: [{ ...axis, space: 60, values: timeWords }, { ...axis, size: 46 }],
    scales: { y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.05 : 1] } },
    tzDate: (time) => uPlot.tzDate(new Date(time * 1000), "Etc/UTC"),
    legend: { live: false },
    cursor: { drag: { x: false, y: false } },
  };
  drawn.set(figure, new uPlot(options, data, plot));
}

function drawAll() {
  for (const figure of document.querySelectorAll("[data-chart]")) draw(figure);
}

drawAll();
new MutationObserver(drawAll).observe(document.documentElement, { attributeFilter: ["data-theme"] });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
let waiting = 0;
window.addEventListener("resize", () => {
  window.clearTimeout(waiting);
  waiting = window.setTimeout(drawAll, 150);
});
