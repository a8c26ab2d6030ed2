// The state of an upgrade in words, a bar and four numbers: to be understood in five seconds.

import { $, announce, make, onChange } from "./dom.js";
import { progressWords } from "./jobs.js";
import { count, duration, items, moment, percent, rate } from "./words.js";

/** What can be done now follows from this one word. */
export function stateOf(status) {
  const { phase } = status;
  if (phase === "none" && status.jobs?.some((job) => job.kind === "upgrade start")) return "starting";
  if (phase !== "running") return phase;
  if (status.old > 0) return status.rate || status.job?.running ? "working" : "idle";
  return status.failed > 0 ? "leftovers" : "complete";
}

const HEADLINES = {
  none: () => "No upgrade is open",
  starting: () => "Starting the upgrade",
  mapping: () => "Mapping the stored vectors",
  working: (s) => `${percent(s.new, s.all)} of ${items(s.all)} ${s.all === 1 ? "is" : "are"} new`,
  idle: (s) => (s.new ? `Stopped at ${percent(s.new, s.all)}` : "Open, and ready to run"),
  paused: (s) => `Paused at ${percent(s.new, s.all)}`,
  leftovers: (s) => `Done, except for ${items(s.failed)}`,
  complete: () => "Every item is new",
  finished: () => "Finished: the new vectors answer",
  forgetting: () => "Dropping the old vectors",
};

const LEADS = {
  none: (s) => `${s.old + s.failed
    ? `${items(s.old + s.failed)} of ${count(s.all)} wait for a vector and cannot be found yet.`
    : `${s.all === 1 ? "The 1 item is" : `All ${items(s.all)} are`} in one space.`} Plan an upgrade to see what a new encoder would change; planning writes nothing.`,
  starting: (s) => `${upper(progressWords(s.jobs.find((job) => job.kind === "upgrade start")))}. The old encoder answers until this is done.`,
  mapping: () => "The old service still answers. When all are mapped, the new encoder takes over.",
  working: (s) => `${s.seconds_left === null ? "" : `${s.seconds_left < 1 ? "Nearly done. " : `About ${duration(s.seconds_left)} left. `}`}${answering(s)} ${waiting(s)}`,
  idle: (s) => `${answering(s)} No worker refreshes the items: run it to continue.`,
  paused: (s) => `${s.reason ? `Why: ${s.reason}. ` : ""}${s.gate === "FAIL" ? failed(s) : "Searches continue as they are. Resume it, or roll back."}`,
  leftovers: (s) => (s.failed === 1
    ? "Its image could not be read; see below. Repair it, delete the item, or roll back."
    : "Their images could not be read; see below. Repair them, delete the items, or roll back."),
  complete: () => "Ask the gate, then finish: from then on the new vectors answer alone. The old ones are kept, so you can still roll back.",
  finished: (s) => `The old vectors are kept${s.keep_until ? ` until ${moment(s.keep_until)}` : ""}. Drop them when you are sure, or roll back.`,
  forgetting: () => "There is no way back from here. Searches continue.",
};

const failed = (s) => (s.old === 0
  ? "Every item is new, but the gate failed: finish it with a reason, or roll back."
  : "The gate failed: look at the queries that lost most, then roll back, or resume with a reason.");

const upper = (words) => words[0].toUpperCase() + words.slice(1);

/** Who answers queries now: the share of traffic decides. */
function answering({ traffic }) {
  if (traffic === 0) return "Shadow: the old encoder answers all queries.";
  if (traffic !== null && traffic < 1) return `The new encoder answers ${percent(traffic, 1)} of the queries.`;
  return "The new encoder answers.";
}

/** How an item is found that has no new vector yet: it depends on the mode. */
function waiting({ mode }) {
  if (mode === "map-gallery") return "Items that wait are found by their mapped vectors.";
  if (mode === "map-query") return "Items that wait are found by their old vectors, with the query mapped to them.";
  if (mode === "both") return "Items that wait are found by their old vectors, with the old encoder's query.";
  return "Items that wait are found by their old vectors.";
}

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
  const counted = open && state !== "starting";
  for (const id of ["bar", "bar-legend", "tiles"]) $(id).hidden = !counted;
  if (open) $("evidence").hidden = state === "starting";
  if (counted) {
    drawBar(status);
    drawTiles(status);
  }
  drawGlance(status, state);
  tell(status, state);
});

function drawBar({ old, new: done, failed, all }) {
  const parts = [["new", done, "new", "Items that have a vector of the new encoder"],
    ["failed", failed, "could not be embedded", "Items whose image could not be read or embedded; they keep their old vector"],
    ["old", old, "still old", "Items that wait for a vector of the new encoder"]];
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
    .map(([tone, n, words, help]) => make("li", { class: tone, title: help }, make("b", {}, count(n)), ` ${words}`)));
}

function drawTiles(status) {
  const tiles = [
    ["Speed", status.rate ? rate(status.rate) : "–", speedNote(status), "Items that got a new vector in a second, over the last moments"],
    ["Time left", status.old === 0 ? "done" : status.seconds_left ? duration(status.seconds_left) : "–",
      status.old ? `${items(status.old)} to go` : "no item waits", "Items that wait, divided by the speed"],
    ["Gate", status.gate ?? "–", status.gate ? "its last verdict" : "not asked yet", "The same queries asked of the old service and of today's: PASS, FAIL, or INCONCLUSIVE where more queries are needed"],
    ["Way back", status.phase === "forgetting" ? "no" : status.would_vanish ? "in part" : "yes",
      status.phase === "forgetting" ? "old vectors are going" : status.would_vanish ? `${items(status.would_vanish)} would vanish` : "rollback takes seconds", "Whether the old vectors can answer again: items without an old vector would not be found"],
  ];
  $("tiles").replaceChildren(...tiles.map(([name, big, note, help]) => make("li", {
    title: help,
    class: `tile ${name === "Gate" && status.gate ? `tile-${status.gate.toLowerCase()}` : ""}`,
  }, make("p", { class: "tile-name" }, name), make("p", { class: "tile-value" }, big), make("p", { class: "tile-note" }, note))));
}

function speedNote({ rate: now, job, old, phase }) {
  if (now) return "all workers together";
  if (job?.running) return job.doing === "backfill" ? "begins: a first measurement" : `${job.doing} …`;
  if (old === 0) return "nothing is left to do";
  return phase === "paused" ? "paused" : "no worker runs";
}

const GLANCE = {
  starting: () => "starting",
  mapping: () => "mapping", idle: (s) => `stopped at ${percent(s.new, s.all)}`, working: (s) => percent(s.new, s.all),
  paused: (s) => `paused at ${percent(s.new, s.all)}`, leftovers: (s) => `${count(s.failed)} left over`,
  complete: () => "all new", finished: () => "finished", forgetting: () => "dropping old vectors",
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
