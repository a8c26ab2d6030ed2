// Before an upgrade: the settings, and what would happen. Planning writes nothing.

import { step } from "./api.js";
import { verdict } from "./evidence.js";
import { $, announce, make, notice } from "./dom.js";
import { runningJob } from "./jobs.js";
import { bytes, count, duration, items, plainMessage, share } from "./words.js";

const MODES = {
  direct: "The new encoder was trained to be compatible: its queries are compared with old vectors as they are.",
  both: "Each query is embedded by both encoders and asked in both spaces; no bridge needed, two embeddings a query.",
  "map-query": "A bridge maps each query to the old space; stored vectors stay as they are.",
  "map-gallery": "A bridge maps the stored vectors into the new space first; then queries need no map.",
};
const MISSING = {
  direct: "the new encoder was not trained for it",
  both: "the old encoder is not on this server",
  "map-query": "no bridge to the old space on this server",
  "map-gallery": "no bridge to the new space on this server",
};
const ORDERS = {
  uncertainty: "Items first that the old encoder is least sure of.",
  disagreement: "Items first that bridges disagree about.",
  traffic: "Items first that searches have found most often.",
  newest: "The newest items first.",
  random: "In no particular order.",
};

/** `start(settings, plan)` is called when the person asks for it. */
export function drawPlan({ can, modes, orders, from, to }, start) {
  const form = $("plan");
  if (!can) {
    form.replaceChildren(
      make("h2", { id: "plan-title" }, "Where to?"),
      make("p", {}, `${from ? `Queries and items are in the space “${from}”. ` : ""}This server knows no encoder to upgrade to. Start it with one and come back:`),
      make("pre", { tabindex: "0" }, make("code", {}, "midspan serve --gallery GALLERY --encoder OLD --new-encoder NEW")));
    return;
  }
  const mode = select("plan-mode", Object.keys(MODES), MODES, modes);
  const order = select("plan-order", orders, ORDERS);
  const answer = make("div", { class: "plan-answer", id: "plan-answer" });
  form.replaceChildren(
    make("h2", { id: "plan-title" }, from && to ? `Plan an upgrade from “${from}” to “${to}”` : "Plan an upgrade"),
    make("p", { class: "muted small" }, "An encoder turns an image into a vector; images are alike if their vectors are near. Vectors of two encoders can be compared only where one was trained, or is mapped, to fit the other."),
    make("div", { class: "plan-fields" },
      field("plan-mode", "How old and new are compared", mode), field("plan-order", "Which items first", order),
      make("button", { type: "submit", class: "primary" }, "Show the plan")),
    answer);
  form.onsubmit = async (event) => {
    event.preventDefault();
    const settings = { mode: mode.chosen.value, order: order.chosen.value };
    const button = form.querySelector("[type=submit]");
    button.disabled = true;
    notice($("upgrade-notice"), null);
    answer.replaceChildren(make("p", { class: "muted" }, "Measuring on a sample …"));
    try {
      const plan = await step("plan", settings, { onJob: (job) => showJob(answer, job) });
      answer.replaceChildren(...planned(plan), make("button", {
        type: "button", class: "primary", id: "start", onclick: () => start(settings, plan),
      }, "Start this upgrade …"));
      announce("The plan is ready");
    } catch (error) {
      answer.replaceChildren();
      notice($("upgrade-notice"), error.status === "cancelled" ? null : error.message);
    } finally {
      button.disabled = false;
    }
  };
}

function showJob(answer, job) {
  if (job.state !== "running") return;
  const focused = answer.contains(document.activeElement);
  answer.replaceChildren(runningJob(job));
  if (focused) answer.querySelector("button")?.focus();
}

function field(id, label, { chosen, help }) {
  return make("div", { class: "field" }, make("label", { for: id }, label), chosen, help);
}

/** A choice with a line below it that says what it means. */
function select(id, names, words, possible = names) {
  const help = make("p", { class: "muted small", id: `${id}-help` });
  const chosen = make("select", { id, "aria-describedby": help.id },
    names.map((name) => make("option", { value: name, disabled: !possible.includes(name) },
      `${name.replaceAll("_", " ")}${possible.includes(name) ? "" : `: ${MISSING[name]}`}`)));
  if (possible.length) chosen.value = possible[0];
  const explain = () => { help.textContent = words[chosen.value] ?? ""; };
  chosen.addEventListener("change", explain);
  explain();
  return { chosen, help };
}

const LIMIT = "Measured on the sample: the value, and the limit from which on the gate passes";
const HELP = {
  "to embed": "Items that the new encoder has still to embed; vectors that are kept need not be made again",
  time: "Items to embed, divided by the speed on the sample",
  "disk until finished": "The old vectors are kept with the new ones until you drop them",
  "searches for a query": "In mode both each query is searched twice while the upgrade is open",
  "gate at the start": "How the same queries fare with the old service and with the new encoder, on a sample, before anything is refreshed",
};

function planned(plan) {
  const facts = make("dl", { class: "facts" });
  const add = (term, ...words) => facts.append(make("dt", { title: HELP[term] ?? LIMIT }, term), make("dd", { title: HELP[term] ?? LIMIT }, ...words));
  add("to embed", `${count(plan.to_embed)} of ${items(plan.items)}`);
  add("time", plan.seconds === null ? "not measured" : `${plan.seconds < 1 ? "" : "about "}${duration(plan.seconds)} on this machine`);
  add("disk until finished", bytes(plan.disk_bytes));
  add("searches for a query", String(plan.searches_per_query));
  if (plan.gate) {
    add("gate at the start", verdict(plan.gate.verdict), ` on ${items(plan.sample)}`);
    for (const check of plan.gate.checks) add(check.name, `${share(check.value)}, limit ${share(check.limit)}`);
  }
  return [facts, make("ul", { class: "notes muted" }, plan.notes.map((note) => make("li", {}, plainMessage(note))))];
}
