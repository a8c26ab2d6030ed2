// The upgrade view: keeps the status and its evidence up to date while somebody looks.

import { drawActions, retryFailures, startActions, startUpgrade } from "./actions.js";
import { get } from "./api.js";
import { drawBoard, stateOf } from "./board.js";
import { drawCurves } from "./curve.js";
import { $, make, notice, onChange } from "./dom.js";
import { drawAudit, drawFailures, drawFlips, drawGate } from "./evidence.js";
import { drawJobs, drawRunning } from "./jobs.js";
import { drawPlan } from "./plan.js";

const EVERY = 1500; // ms between looks at the evidence while it changes

let status = null;
let visible = false;
let gallery = { can_upgrade: true, modes: [], orders: [], destination: null, spaces: {} };
let jobs = []; // that run now
let asked = null; // the gate's full answer, if it was asked here
let looking = false;
let again = false;
let timer = 0;

const curve = onChange((answer) => drawCurves($("curve"), answer));
const plan = onChange(({ shown, ...what }) => {
  $("plan").hidden = !shown;
  if (shown) drawPlan(what, startUpgrade);
});

/** `reload`: the gallery as a whole, which an action may have changed. */
export function startUpgradeView(reload) {
  startActions(async (name, answer) => {
    if (name === "gate") asked = answer;
    await reload();
    await refresh();
  });
}

/** From the gallery, from the stream of events, or asked for. */
export function setStatus(now) {
  status = now ?? status;
  if (!status) return;
  const shown = { ...status, jobs };
  drawBoard(shown);
  drawActions(shown);
  drawRunning(jobs.filter((job) => job.kind !== "upgrade plan"));
  drawGate({ gates: status.gates, asked });
  jobNotice(status.job);
  offerPlan();
  if (visible) later();
}

/** Not before the gallery has said what can be chosen: events may come first. */
function offerPlan() {
  const live = Object.values(gallery.spaces).find((space) => space.role === "live");
  plan({
    shown: gallery.orders.length > 0 && stateOf({ ...status, jobs }) === "none",
    can: gallery.can_upgrade, modes: gallery.modes, orders: gallery.orders, from: live?.name ?? null, to: gallery.destination,
  });
}

export function setCanUpgrade(now) {
  gallery = now;
  if (status) offerPlan();
}

/** Those that run, from the stream of events. */
export function setJobs(now) {
  const ended = jobs.length > now.length;
  jobs = now;
  if (status) setStatus(status);
  if (ended && visible) refresh();
}

export function showUpgrade() {
  visible = true;
  refresh();
}

export function hideUpgrade() {
  visible = false;
}

export async function refresh() {
  try {
    setStatus(await get("/v1/upgrade"));
  } catch (error) {
    if (!status) $("state-words").textContent = "The state is not known";
    notice($("upgrade-notice"), error.message, make("button", { type: "button", onclick: refresh }, "Try again"));
    return;
  }
  await look();
}

const jobNotice = onChange((job) => {
  notice($("upgrade-notice"), job?.error ? `The work stopped: ${job.error}. The server tries again by itself.` : null);
});

/** Also after a rollback: what the last upgrade showed. */
function showEvidence(any) {
  const last = stateOf(status) === "none";
  $("evidence").hidden = last && !any;
  $("curve-title").textContent = last ? "Quality along the last upgrade" : "Quality along the way";
  $("gate-title").textContent = last ? "Gate of the last upgrade" : "Gate";
}

/** At most one look per EVERY, and one more after the last change. */
function later() {
  if (!timer) timer = setTimeout(() => { timer = 0; look(); }, EVERY);
}

async function look() {
  if (looking) {
    again = true;
    return;
  }
  looking = true;
  try {
    const [points, flips, failures, past, audit] = await Promise.all([
      get("/v1/upgrade/curve"), // of the last one, if none is open
      get("/v1/upgrade/flips?limit=6"),
      get("/v1/upgrade/failures"),
      get("/v1/jobs"),
      get("/v1/audit", { quietly: true }).catch((error) => ({ entries: [], refused: error.status === 403 })),
    ]);
    curve(points);
    drawFlips(flips);
    drawJobs(past.jobs);
    showEvidence(points.points.length > 0 || status.gates.length > 0);
    drawFailures(failures.failures, retryFailures);
    const names = Object.fromEntries(Object.entries(gallery.spaces).map(([print, space]) => [print, space.name]));
    drawAudit({ ...audit, names }, look);
  } catch { /* the head of the board says so already; the next event tries again */ }
  looking = false;
  if (again) {
    again = false;
    later();
  }
}
