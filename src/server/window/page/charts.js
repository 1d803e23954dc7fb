// Lines of the last two minutes, a point a second; and the same as a table.

import { prepare } from "./field.js";
import { addRow, make, milliseconds, number, setText, share } from "./words.js";

const SECONDS = 120, HEIGHT = 70;

// The places in WindowSecond, as it is written.
const CHARTS = [
  { title: "Tokens written a second", at: 0, show: number },
  { title: "Prompt tokens read a second", at: 1, show: number },
  { title: "Time to the first token", at: 2, show: milliseconds },
  { title: "Time between tokens", at: 3, show: milliseconds },
  { title: "Blocks in use", at: 4, show: share, most: 1 },
  { title: "Prompt tokens found in the cache", at: 5, show: share, most: 1 },
  { title: "Time in which a step was under way", at: 6, show: share, most: 1 },
];

export class Charts {
  constructor(onToggle) {
    this.table = document.getElementById("table");
    this.table.closest("details").addEventListener("toggle", onToggle);
    const parent = document.getElementById("charts");
    this.charts = CHARTS.map((chart) => {
      const value = make("b"), canvas = make("canvas");
      canvas.setAttribute("role", "img");
      parent.append(make("figure", {}, make("figcaption", {}, `${chart.title}: `, value), canvas));
      return { ...chart, value, canvas };
    });
  }

  draw(frame, style) {
    const seconds = Object.entries(frame.seconds).map(([second, values]) => [Number(second), values]);
    const last = seconds.at(-1)?.[0] ?? 0;
    const { open } = this.table.closest("details");
    const drawn = `${last} ${seconds.length} ${open} ${innerWidth} ${style.panel}`;
    if (this.drawn === drawn) return;
    this.drawn = drawn;
    for (const chart of this.charts) drawChart(chart, seconds, last, style);
    if (!open) return;
    this.table.replaceChildren();
    addRow(this.table, ["second", ...CHARTS.map((chart) => chart.title)], "th");
    for (const [second, values] of seconds.slice(-20).reverse()) {
      const shown = CHARTS.map(({ at, show }) => (values[at] < 0 ? "–" : show(values[at])));
      addRow(this.table, [number(second), ...shown], "td");
    }
  }
}

function drawChart(chart, seconds, last, style) {
  const values = seconds.map(([second, all]) => [second, all[chart.at]]).filter(([, value]) => value >= 0);
  const most = chart.most ?? Math.max(...values.map(([, value]) => value), 1e-9);
  const newest = values.at(-1);
  const now = newest && newest[0] > last - 10 ? chart.show(newest[1]) : "–";
  const text = newest ? `${now}, highest ${chart.show(Math.max(...values.map(([, value]) => value)))}` : "–";
  if (setText(chart.value, text)) chart.canvas.setAttribute("aria-label", `${chart.title}: ${text}`);
  const { context, width } = prepare(chart.canvas, HEIGHT);
  context.strokeStyle = style.line;
  context.lineWidth = 1;
  context.strokeRect(0.5, 0.5, width - 1, HEIGHT - 1);
  const x = (second) => width - ((last - second) / SECONDS) * width;
  const y = (value) => HEIGHT - 4 - (value / most) * (HEIGHT - 8);
  context.strokeStyle = context.fillStyle = style.accent;
  context.lineWidth = 2;
  context.beginPath();
  values.forEach(([second, value], i) => {
    if (i > 0 && second - values[i - 1][0] < 3) context.lineTo(x(second), y(value));
    else context.moveTo(x(second), y(value));
    context.fillRect(x(second) - 1, y(value) - 1, 2, 2);
  });
  context.stroke();
}
