// What can be done with an upgrade, each with a question that says in plain words what will happen.

import { step } from "./api.js";
import { confirm } from "./dialog.js";
import { $, announce, make, notice, onChange } from "./dom.js";
import { stateOf } from "./board.js";
import { count, items, share } from "./words.js";

const ACTIONS = {
  run: {
    label: "Run", path: "run", verb: "Run",
    title: () => "Refresh the items now?",
    will: (s) => [
      `The new encoder embeds ${items(s.old + s.failed)}, in the background.`,
      "Searches continue all the time. You can pause at any moment; what is done stays done.",
      "If the server is restarted, it continues by itself.",
    ],
  },
  pause: {
    label: "Pause", path: "pause", verb: "Pause",
    title: () => "Pause the upgrade?",
    will: (s) => [
      "Refreshing stops within a batch, in every process.",
      `Searches continue: ${items(s.new)} by new vectors, ${count(s.old + s.failed)} by old ones. Nothing is lost.`,
    ],
    extra: () => ({ label: "Why (optional, for others who look)", placeholder: "" }),
    body: (value) => (value ? { reason: value } : {}),
  },
  resume: {
    label: "Resume", path: "resume", verb: "Resume",
    title: () => "Resume the upgrade?",
    will: (s) => [
      `Refreshing continues with the ${items(s.old)} that are left.`,
      ...(s.gate === "FAIL" ? ["The gate has failed. Resuming means that you have looked at it and judge otherwise; your reason is recorded."] : []),
    ],
    extra: (s) => (s.gate === "FAIL" ? { label: "Why, although the gate failed", placeholder: "" } : null),
    body: (value) => (value ? { override: value } : {}),
  },
  gate: {
    label: "Ask the gate", path: "gate", verb: "Ask",
    title: () => "Ask the gate now?",
    will: () => [
      "The same queries are asked of the old service and of today's, and compared.",
      "If it fails, refreshing pauses until somebody decides.",
    ],
  },
  finish: {
    label: "Finish", path: "finish", verb: "Finish",
    title: () => "Finish the upgrade?",
    will: (s) => [
      "Searches use the new vectors alone. The old ones are kept until you drop them, so you can still roll back.",
      ...(s.old + s.failed ? [`${items(s.old + s.failed)} have no new vector; finishing is refused if one of them would be lost.`] : []),
      ...(s.gate && s.gate !== "PASS" ? [`The last verdict of the gate is ${s.gate}. Finishing means that you judge otherwise; your reason is recorded.`] : []),
    ],
    extra: (s) => (s.gate && s.gate !== "PASS" ? { label: "Why, although the gate did not pass", placeholder: "" }
      : s.old + s.failed ? { label: "Finish with items that answer by mapped vectors", checked: false } : null),
    body: (value) => (typeof value === "string" ? (value ? { override: value } : {}) : { force: value === true }),
  },
  forget: {
    label: "Drop the old vectors", path: "forget", verb: "Drop for good", danger: true,
    title: () => "Drop the old vectors?",
    will: () => [
      "The old vectors are deleted and their disk is returned. There is no way back to the old encoder after that.",
      "Searches continue with the new vectors.",
    ],
  },
  rollback: {
    label: "Roll back", path: "rollback", verb: "Roll back", danger: true,
    title: () => "Roll back to the old encoder?",
    will: (s) => [
      `From the next query on the old vectors${s.from_space ? ` (${s.from_space})` : ""} answer again. It takes seconds.`,
      `The ${s.new === 1 ? "new vector stays" : `${count(s.new)} new vectors stay`} stored, so that a later upgrade need not make them again.`,
      ...(s.would_vanish ? [`${items(s.would_vanish)} came without an old vector; they are not found until they get one.`] : []),
    ],
    extra: () => ({ label: "Also delete the new vectors", checked: false }),
    body: (value) => ({ drop: value === true }),
  },
};

/** By state, the most likely first. */
const OFFERED = {
  none: [], starting: [], mapping: ["rollback"], finished: ["forget", "rollback"], forgetting: [],
  working: ["pause", "gate", "rollback"],
  idle: ["run", "pause", "gate", "rollback"],
  paused: ["resume", "gate", "rollback"],
  leftovers: ["finish", "gate", "rollback"],
  complete: ["finish", "gate", "rollback"],
};

let status;
let done = async () => {};

/** `onDone(name, answer)` is called after each action. */
export function startActions(onDone) {
  done = onDone;
}

const draw = onChange((names) => {
  const focused = document.activeElement?.dataset?.action;
  $("actions").replaceChildren(...names.map((name, row) => make("button", {
    type: "button", "data-action": name, onclick: () => act(name),
    class: ACTIONS[name].danger && name !== "finish" ? "warn" : row === 0 ? "primary" : "",
  }, `${ACTIONS[name].label} …`)));
  if (focused) ($("actions").querySelector(`[data-action="${focused}"]`) ?? $("actions").querySelector("button"))?.focus();
});

export function drawActions(now) {
  status = now;
  const state = stateOf(now);
  draw(state === "paused" && now.old === 0 ? ["finish", "gate", "rollback"] : OFFERED[state]);
}

async function act(name) {
  const action = ACTIONS[name];
  const answer = await confirm({
    title: action.title(status), will: action.will(status), verb: action.verb,
    danger: action.danger, extra: action.extra?.(status) ?? null,
  });
  if (answer) await doIt(name, action.path, action.body?.(answer.value) ?? {});
}

/** The failures have their own button, above their list. */
export async function retryFailures() {
  const answer = await confirm({
    title: "Try the failed items again?",
    will: [
      `Back on the list: ${items(status.failed)}, with as many tries as at first.`,
      "A backfill that runs takes them up by itself; otherwise run it.",
    ],
    verb: "Try again",
  });
  if (answer) await doIt("retry", "retry", {});
}

/** What the plan's gate said belongs into the question. */
function warning(plan) {
  if (!plan?.gate || plan.gate.verdict === "PASS") return [];
  const found = plan.gate.checks.filter((check) => check.verdict !== "PASS")
    .map((check) => `${check.name} ${share(check.value)}, limit ${share(check.limit)}`).join("; ");
  return [plan.gate.verdict === "FAIL"
    ? `The gate FAILS in the plan (${found}). Results would be worse from the first query on.`
    : `The gate is INCONCLUSIVE in the plan (${found}): the sample is too small to tell.`];
}

/** How items are found that are not refreshed yet, and what that costs. */
const FOUND_BY = {
  direct: ["Items that are not refreshed yet are found by their old vectors."],
  "map-query": ["Items that are not refreshed yet are found by their old vectors, with each query mapped to them."],
  "map-gallery": ["The stored vectors are mapped first; items that wait are found by those."],
  both: ["Items that are not refreshed yet are found by their old vectors, with the old encoder's query.",
    "Until all are refreshed each query is embedded by both encoders and searched twice: it costs the old encoder's time too."],
};

export async function startUpgrade(settings, plan) {
  const failing = plan?.gate?.verdict === "FAIL";
  const answer = await confirm({
    title: failing ? "Start although the gate fails?" : "Start the upgrade?", danger: failing,
    will: [
      ...warning(plan),
      "From the next query on the new encoder answers. No stored vector is touched.",
      ...FOUND_BY[settings.mode] ?? FOUND_BY.direct,
      "You can roll back at any time, until you drop the old vectors; that takes seconds.",
    ],
    verb: "Start", extra: { label: "Begin to refresh the items at once", checked: true },
  });
  if (answer) await doIt("start", "start", { ...settings, run: answer.value });
}

async function doIt(name, path, body) {
  const buttons = [...$("view-upgrade").querySelectorAll("button")];
  for (const button of buttons) button.disabled = true;
  try {
    const answer = await step(path, body);
    notice($("upgrade-notice"), null);
    announce(`${ACTIONS[name]?.label ?? (name === "retry" ? "Try again" : "Start")}: done`);
    await done(name, answer);
  } catch (error) {
    if (error.type === "EvidenceFailed" && !body.override) {
      const answer = await confirm({
        title: "Start although the encoder failed its own test?", danger: true, verb: "Start",
        will: [error.message, "Your reason is recorded in the audit log."],
        extra: { label: "Why, although the test failed", placeholder: "" },
      });
      if (answer?.value) return await doIt(name, path, { ...body, override: answer.value });
    }
    notice($("upgrade-notice"), error.status === "cancelled" ? "Cancelled. Everything is as it was before." : error.message);
  } finally {
    for (const button of buttons) button.disabled = false;
  }
}
