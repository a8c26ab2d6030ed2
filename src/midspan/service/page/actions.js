// What can be done with an upgrade, each with a question that says in plain words what will happen.

import { post } from "./api.js";
import { confirm } from "./dialog.js";
import { $, announce, make, notice, onChange } from "./dom.js";
import { stateOf } from "./board.js";
import { count, items } from "./words.js";

const ACTIONS = {
  run: {
    label: "Run", path: "run", verb: "Run",
    title: () => "Refresh the items now?",
    will: (s) => [
      `The new encoder embeds ${items(s.old + s.failed)}, in the background.`,
      "Searches go on all the time. You can pause at any moment; what is done stays done.",
      "If the server is restarted, it goes on by itself.",
    ],
  },
  pause: {
    label: "Pause", path: "pause", verb: "Pause",
    title: () => "Pause the upgrade?",
    will: (s) => [
      "Refreshing stops within a batch, in every process.",
      `Searches go on: ${items(s.new)} by new vectors, ${count(s.old + s.failed)} by old ones. Nothing is lost.`,
    ],
    extra: () => ({ label: "Why (optional, for others who look)", placeholder: "" }),
    body: (value) => (value ? { reason: value } : {}),
  },
  resume: {
    label: "Resume", path: "resume", verb: "Resume",
    title: () => "Go on with the upgrade?",
    will: (s) => [
      `Refreshing goes on with the ${items(s.old)} that are left.`,
      ...(s.gate === "FAIL" ? ["The gate has failed. Resuming means that you have looked at it and judge otherwise."] : []),
    ],
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
    label: "Finish", path: "finish", verb: "Finish for good", danger: true,
    title: () => "Finish, and drop the old vectors?",
    will: (s) => [
      "The old vectors are deleted. There is no way back to the old encoder after that.",
      "Searches go on with the new vectors.",
      ...(s.old + s.failed ? [`${items(s.old + s.failed)} have no new vector and will not be found any more, unless they are mapped.`] : []),
      ...(s.gate === "FAIL" ? ["The gate has failed."] : []),
    ],
    extra: (s) => (s.old + s.failed || s.gate === "FAIL" ? { label: "Finish all the same", checked: false } : null),
    body: (value) => ({ force: value === true }),
  },
  rollback: {
    label: "Roll back", path: "rollback", verb: "Roll back", danger: true,
    title: () => "Roll back to the old encoder?",
    will: (s) => [
      `From the next query on the old vectors${s.from_space ? ` (${s.from_space})` : ""} answer again. It takes seconds.`,
      `The ${s.new === 1 ? "new vector stays" : `${count(s.new)} new vectors stay`} stored, so that a later upgrade need not make them again.`,
      ...(s.rollback ? [] : ["Items that came during the upgrade have no old vector; they are not found until they get one."]),
    ],
    extra: () => ({ label: "Also delete the new vectors", checked: false }),
    body: (value) => ({ drop: value === true }),
  },
};

/** By state, the most likely first. */
const OFFERED = {
  none: [], mapping: ["rollback"], finishing: [],
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
  draw(OFFERED[stateOf(now)]);
}

async function act(name) {
  const action = ACTIONS[name];
  const answer = await confirm({
    title: action.title(status), will: action.will(status), verb: action.verb,
    danger: action.danger, extra: action.extra?.(status) ?? null,
  });
  if (answer) await doIt(name, action.path, action.body?.(answer.value) ?? {});
}

/** The failures have their own button, beside their list. */
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

export async function startUpgrade(settings) {
  const answer = await confirm({
    title: "Start the upgrade?",
    will: [
      "From the next query on the new encoder answers. No stored vector is touched.",
      "Items that are not refreshed yet are found by their old vectors.",
      "You can roll back at any time before you finish; that takes seconds.",
    ],
    verb: "Start", extra: { label: "Begin to refresh the items at once", checked: true },
  });
  if (answer) await doIt("start", "start", { ...settings, run: answer.value });
}

async function doIt(name, path, body) {
  const buttons = [...$("view-upgrade").querySelectorAll("button")];
  for (const button of buttons) button.disabled = true;
  try {
    const answer = await post(`/v1/upgrade/${path}`, body);
    notice($("upgrade-notice"), null);
    announce(`${ACTIONS[name]?.label ?? (name === "retry" ? "Try again" : "Start")}: done`);
    await done(name, answer);
  } catch (error) {
    notice($("upgrade-notice"), error.message);
  } finally {
    for (const button of buttons) button.disabled = false;
  }
}
