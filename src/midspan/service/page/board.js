// The state of an upgrade in words, a bar and four numbers: to be understood in five seconds.

import { $, announce, make, onChange } from "./dom.js";
import { count, duration, items, moment, percent, rate } from "./words.js";

/** What can be done now follows from this one word. */
export function stateOf(status) {
  const { phase } = status;
  if (phase !== "running") return phase;
  if (status.old > 0) return status.rate || status.job?.running ? "working" : "idle";
  return status.failed > 0 ? "leftovers" : "complete";
}

const HEADLINES = {
  none: () => "No upgrade is open",
  mapping: () => "Mapping the stored vectors",
  working: (s) => `${percent(s.new, s.all)} of ${items(s.all)} ${s.all === 1 ? "is" : "are"} new`,
  idle: (s) => (s.new ? `Stands at ${percent(s.new, s.all)}` : "Open, and ready to run"),
  paused: (s) => `Paused at ${percent(s.new, s.all)}`,
  leftovers: (s) => `Done, except for ${items(s.failed)}`,
  complete: () => "Every item is new",
  finishing: () => "Dropping the old vectors",
};

const LEADS = {
  none: (s) => `${s.old + s.failed
    ? `${items(s.old + s.failed)} of ${count(s.all)} wait for a vector and cannot be found yet.`
    : `All ${items(s.all)} are served as they are.`} Plan an upgrade to see what a new encoder would change; planning writes nothing.`,
  mapping: () => "The old service still answers. When all are mapped, the new encoder takes over.",
  working: (s) => `${s.seconds_left === null ? "" : `${s.seconds_left < 1 ? "Nearly done. " : `About ${duration(s.seconds_left)} left. `}`}The new encoder answers; items that wait are found by their old vectors.`,
  idle: () => "The new encoder answers already, but nobody refreshes the items. Run it to go on.",
  paused: (s) => (s.reason ? `Why: ${s.reason}. Searches go on as they are.` : "Searches go on as they are. Resume it, or roll back."),
  leftovers: (s) => (s.failed === 1
    ? "Its image could not be read; see below. Repair it, finish without it, or roll back."
    : "Their images could not be read; see below. Repair them, finish without them, or roll back."),
  complete: () => "Look at the gate, then finish: that drops the old vectors for good. Until then you can roll back.",
  finishing: () => "There is no way back from here. Searches go on.",
};

let toldState = null;
let toldTenth = null;

export const drawBoard = onChange((status) => {
  const state = stateOf(status);
  const open = state !== "none";
  $("view-upgrade").dataset.state = state;
  $("state-words").textContent = HEADLINES[state](status);
  $("state-lead").textContent = LEADS[state](status);
  $("state-eyebrow").textContent = open
    ? [`${status.from_space ?? "?"} → ${status.to_space ?? "?"}`, status.mode, status.order && `order: ${status.order}`,
      status.started && `since ${moment(status.started)}`].filter(Boolean).join(" · ")
    : "Upgrade";
  for (const id of ["bar", "bar-legend", "tiles", "evidence"]) $(id).hidden = !open;
  if (open) {
    drawBar(status);
    drawTiles(status);
  }
  drawGlance(status, state);
  tell(status, state);
});

function drawBar({ old, new: done, failed, all }) {
  const parts = [["new", done, "new"], ["failed", failed, "could not be embedded"], ["old", old, "still old"]];
  const bar = $("bar");
  const segments = parts.filter(([, n]) => n > 0).map(([tone, n]) => {
    const one = make("span", { class: `segment ${tone}` });
    one.style.flexGrow = String(n); // through the object model: a style attribute is not allowed
    return one;
  });
  bar.replaceChildren(...segments);
  bar.setAttribute("aria-valuenow", String(all ? Math.floor((100 * done) / all) : 100));
  bar.setAttribute("aria-valuetext", `${percent(done, all)}: ${count(done)} new, ${count(old)} old, ${count(failed)} failed`);
  $("bar-legend").replaceChildren(...parts.filter(([tone, n]) => n > 0 || tone !== "failed")
    .map(([tone, n, words]) => make("li", { class: tone }, make("b", {}, count(n)), ` ${words}`)));
}

function drawTiles(status) {
  const tiles = [
    ["Speed", status.rate ? rate(status.rate) : "–", status.rate ? "all workers together" : "nobody works"],
    ["Time left", status.old === 0 ? "done" : status.seconds_left ? duration(status.seconds_left) : "–",
      status.old ? `${items(status.old)} to go` : "no item waits"],
    ["Gate", status.gate ?? "–", status.gate ? "its last word" : "not asked yet"],
    ["Way back", status.phase === "finishing" ? "no" : status.rollback ? "yes" : "in part",
      status.phase === "finishing" ? "old vectors are going" : status.rollback ? "rollback takes seconds" : "new items come without an old vector"],
  ];
  $("tiles").replaceChildren(...tiles.map(([name, big, note]) => make("li", {
    class: `tile ${name === "Gate" && status.gate ? `tile-${status.gate.toLowerCase()}` : ""}`,
  }, make("p", { class: "tile-name" }, name), make("p", { class: "tile-value" }, big), make("p", { class: "tile-note" }, note))));
}

const GLANCE = {
  mapping: () => "mapping", idle: (s) => `stands at ${percent(s.new, s.all)}`, working: (s) => percent(s.new, s.all),
  paused: (s) => `paused at ${percent(s.new, s.all)}`, leftovers: (s) => `${count(s.failed)} left over`,
  complete: () => "all new", finishing: () => "finishing",
};

/** In the page's head, on every view. */
function drawGlance(status, state) {
  const glance = $("glance");
  glance.hidden = state === "none";
  if (state === "none") return;
  const words = GLANCE[state](status);
  const meter = make("span", { class: "mini", "aria-hidden": "true" }, make("span", {}));
  meter.firstChild.style.width = `${status.all ? (100 * status.new) / status.all : 100}%`;
  glance.dataset.state = state;
  glance.setAttribute("aria-label", `Upgrade: ${words}`);
  glance.replaceChildren(meter, make("span", {}, words));
}

/** Screen readers hear a new state, and every tenth of the way. */
function tell(status, state) {
  const tenth = status.all ? Math.floor((10 * status.new) / status.all) : 0;
  if (toldState !== null && (state !== toldState || tenth !== toldTenth)) {
    announce(`Upgrade: ${HEADLINES[state](status)}`);
  }
  toldState = state;
  toldTenth = tenth;
}
