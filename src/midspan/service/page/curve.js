// Quality against the share of refreshed items, one small chart per metric, drawn as it grows.

import { make, svg } from "./dom.js";
import { moment, share } from "./words.js";

const WIDTH = 380, HEIGHT = 190;
const BOX = { left: 54, right: 14, top: 14, bottom: 30 };
const LOWER_IS_BETTER = /flip|error|loss/i;

export function drawCurves(host, { points, baseline }) {
  const byMetric = Map.groupBy ? Map.groupBy(points, (point) => point.metric) : grouped(points);
  if (!points.length) {
    host.replaceChildren(make("p", { class: "muted" },
      "No point yet. A point is measured each time the gate looks: ask it, or let the backfill run."));
    return;
  }
  host.replaceChildren(...[...byMetric].map(([metric, some]) => chart(metric, some, baseline?.metric === metric ? baseline.value : null)));
}

function grouped(points) {
  const groups = new Map();
  for (const point of points) groups.set(point.metric, [...(groups.get(point.metric) ?? []), point]);
  return groups;
}

function chart(metric, some, before) {
  const points = [...some].sort((a, b) => a.fraction - b.fraction || a.at - b.at);
  const [low, high] = span([...points.map((point) => point.value), ...(before === null ? [] : [before])]);
  const x = (fraction) => BOX.left + fraction * (WIDTH - BOX.left - BOX.right);
  const y = (value) => HEIGHT - BOX.bottom - ((value - low) / (high - low)) * (HEIGHT - BOX.top - BOX.bottom);
  const last = points.at(-1);
  const line = points.map((point) => `${x(point.fraction).toFixed(1)},${y(point.value).toFixed(1)}`).join(" ");
  const words = `${metric}: ${share(points[0].value)} at ${share(points[0].fraction)} refreshed, `
    + `${share(last.value)} at ${share(last.fraction)}`;
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": words, class: "curve" },
    ...[low, (low + high) / 2, high].map((value) => svg("g", { class: "tick" },
      svg("line", { x1: BOX.left, x2: WIDTH - BOX.right, y1: y(value), y2: y(value) }),
      svg("text", { x: BOX.left - 7, y: y(value) + 4, "text-anchor": "end" }, tick(value, high - low)))),
    ...[0, 0.25, 0.5, 0.75, 1].map((fraction) => svg("text", {
      class: "tick-x", x: x(fraction), y: HEIGHT - 10, "text-anchor": fraction === 1 ? "end" : "middle",
    }, fraction === 1 ? "100 %" : `${100 * fraction} %`)),
    before === null ? null : svg("line", {
      class: "before", x1: BOX.left, x2: WIDTH - BOX.right, y1: y(before), y2: y(before),
    }, svg("title", {}, `the old service: ${share(before)}`)),
    svg("polyline", { class: "line", points: line }),
    ...points.map((point) => svg("circle", {
      class: point === last ? "dot last" : "dot", cx: x(point.fraction), cy: y(point.value), r: point === last ? 5 : 3,
    }, svg("title", {}, `${share(point.value)} at ${share(point.fraction)} refreshed, ${moment(point.at)}`))));
  return make("figure", { "data-metric": metric },
    make("figcaption", {}, make("b", {}, metric.replaceAll("_", " ")), " ", make("span", { class: "now", title: `the newest measurement, at ${share(last.fraction)} refreshed` }, share(last.value)),
      make("span", { class: "muted", title: "what the old service has on the same queries" }, LOWER_IS_BETTER.test(metric) ? " lower is better"
        : before === null ? "" : ` before ${share(before)}`)),
    picture);
}

/** From 0, so that a small change looks small; to a round number above the highest value. */
function span(values) {
  const low = Math.min(0, ...values), high = Math.max(...values);
  const round = [0.02, 0.05, 0.1, 0.2, 0.5, 1].find((top) => top >= high) ?? high;
  return [low, round];
}

function tick(value, range) {
  return `${(100 * value).toFixed(range < 0.04 ? 1 : 0)} %`;
}
