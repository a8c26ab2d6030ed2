// The upgrade view: keeps the status and its evidence up to date while somebody looks.

import { drawActions, retryFailures, startActions, startUpgrade } from "./actions.js";
import { get } from "./api.js";
import { drawBoard, stateOf } from "./board.js";
import { drawCurves } from "./curve.js";
import { $, make, notice, onChange } from "./dom.js";
import { drawAudit, drawFailures, drawFlips, drawGate } from "./evidence.js";
import { drawPlan } from "./plan.js";

const EVERY = 1500; // ms between looks at the evidence while it changes

let status = null;
let visible = false;
let canUpgrade = true;
let orders = [];
let asked = null; // the gate's full answer, if it was asked here
let looking = false;
let again = false;
let timer = 0;

const curve = onChange((answer) => drawCurves($("curve"), answer));
const plan = onChange(({ shown, can, choices }) => {
  $("plan").hidden = !shown;
  if (shown) drawPlan(can, choices, startUpgrade);
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
  drawBoard(status);
  drawActions(status);
  drawGate({ gates: status.gates, asked });
  jobNotice(status.job);
  offerPlan();
  if (visible) later();
}

/** Not before the gallery has said what can be chosen: events may come first. */
function offerPlan() {
  plan({ shown: orders.length > 0 && stateOf(status) === "none", can: canUpgrade, choices: orders });
}

export function setCanUpgrade(gallery) {
  canUpgrade = gallery.can_upgrade;
  orders = gallery.orders;
  if (status) offerPlan();
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
    const open = status && stateOf(status) !== "none";
    const [points, flips, failures, audit] = await Promise.all([
      open ? get("/v1/upgrade/curve") : { points: [], baseline: null },
      open ? get("/v1/upgrade/flips?limit=6") : { flips: [] },
      get("/v1/upgrade/failures"),
      get("/v1/audit", { quietly: true }).catch((error) => ({ entries: [], refused: error.status === 403 })),
    ]);
    curve(points);
    drawFlips(flips.flips);
    drawFailures(failures.failures, retryFailures);
    drawAudit(audit, look);
  } catch { /* the head of the board says so already; the next event tries again */ }
  looking = false;
  if (again) {
    again = false;
    later();
  }
}
