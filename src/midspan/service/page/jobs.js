// Steps that take long: those that run, with progress and a way to stop them; and the last ones.

import { cancelJob } from "./api.js";
import { $, announce, make, onChange } from "./dom.js";
import { count, duration, moment, percent, plainMessage } from "./words.js";

const WORDS = {
  "upgrade plan": "Making the plan", "upgrade start": "Starting the upgrade", "upgrade gate": "Asking the gate",
  "upgrade finish": "Finishing", "upgrade forget": "Dropping the old vectors", "upgrade rollback": "Rolling back", "find duplicates": "Finding duplicates",
};
const DOING = {
  embed: "embedding a sample of the items", map: "mapping the stored vectors", order: "choosing which items come first",
};
const CAN_STOP = new Set(["upgrade plan", "upgrade start"]);

export const kindWords = (kind) => WORDS[kind] ?? kind;

/** "embedding a sample of the items, 96 of 300", or nothing. */
export function progressWords({ progress, state }) {
  if (state === "queued") return "waiting for its turn";
  if (!progress) return "working";
  const { label, finished, total } = progress;
  return `${DOING[label] ?? label}, ${count(finished)} of ${count(total)}`;
}

/** Progress and a button to stop; used for a running job wherever it is shown. */
export function runningJob(job, { stoppable = CAN_STOP.has(job.kind) } = {}) {
  const { progress } = job;
  const share = progress && progress.total ? progress.finished / progress.total : null;
  const meter = make("progress", { "aria-label": kindWords(job.kind), max: "1", value: share === null ? null : String(share) });
  const stop = stoppable && make("button", {
    type: "button", class: "cancel-job", disabled: job.cancelling,
    onclick: async (event) => {
      event.target.disabled = true;
      await cancelJob(job.job_id).catch(() => {});
      announce("Asked to stop");
    },
  }, job.cancelling ? "Stopping …" : "Cancel");
  return make("div", { class: "job", "data-job": job.job_id },
    make("p", {}, make("b", {}, kindWords(job.kind)), ` · ${progressWords(job)}`, share === null ? null : ` (${percent(progress.finished, progress.total)})`),
    meter, stop || null);
}

export const drawRunning = onChange((jobs) => {
  const focused = document.activeElement?.closest?.("[data-job]")?.dataset.job;
  const host = $("running-jobs");
  host.hidden = !jobs.length;
  host.replaceChildren(...jobs.map((job) => make("li", {}, runningJob(job))));
  if (focused) host.querySelector(`[data-job="${focused}"] button`)?.focus();
});

export const drawJobs = onChange((jobs) => {
  $("jobs-card").hidden = !jobs.length;
  $("jobs").replaceChildren(make("ul", { class: "lines" }, jobs.slice(0, 10).map((job) => make("li", {},
    make("time", { class: "muted", datetime: new Date(1000 * job.created).toISOString() }, moment(job.created)),
    make("b", {}, kindWords(job.kind)), make("span", { class: `job-state job-${job.state}` }, job.state),
    job.ended && job.started ? make("span", { class: "muted small", title: "how long it took" }, duration(job.ended - job.started)) : null,
    job.error ? make("span", {}, plainMessage(job.error.message)) : null,
    make("span", { class: "muted small", title: job.who }, job.who.split(", request ")[0])))));
});
