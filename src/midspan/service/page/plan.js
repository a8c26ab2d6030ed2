// Before an upgrade: the settings, and what would happen. Planning writes nothing.

import { post } from "./api.js";
import { verdict } from "./evidence.js";
import { $, announce, make, notice } from "./dom.js";
import { bytes, count, duration, items, share } from "./words.js";

const MODES = [
  ["direct", "direct: the new encoder was trained compatibly"],
  ["map-query", "map-query: a bridge maps queries to the old space"],
  ["map-gallery", "map-gallery: a bridge maps the stored vectors first"],
];

/** `orders` come from the server; `start(settings)` is called when the person wants to go on. */
export function drawPlan(canUpgrade, orders, start) {
  const form = $("plan");
  if (!canUpgrade) {
    form.replaceChildren(
      make("h2", { id: "plan-title" }, "Where to?"),
      make("p", {}, "This server knows no encoder to upgrade to. Start it with one and come back:"),
      make("pre", {}, make("code", {}, "midspan serve --gallery GALLERY --encoder OLD --new-encoder NEW")));
    return;
  }
  const mode = select("plan-mode", MODES);
  const order = select("plan-order", orders.map((name) => [name, name.replaceAll("_", " ")]));
  const answer = make("div", { class: "plan-answer", id: "plan-answer" });
  form.replaceChildren(
    make("h2", { id: "plan-title" }, "Plan an upgrade"),
    make("div", { class: "plan-fields" },
      make("div", { class: "field" }, make("label", { for: "plan-mode" }, "How old and new are compared"), mode),
      make("div", { class: "field" }, make("label", { for: "plan-order" }, "Which items first"), order),
      make("button", { type: "submit", class: "primary" }, "Show the plan")),
    answer);
  form.onsubmit = async (event) => {
    event.preventDefault();
    const settings = { mode: mode.value, order: order.value };
    const button = form.querySelector("[type=submit]");
    button.disabled = true;
    answer.replaceChildren(make("p", { class: "muted" }, "Measuring on a sample …"));
    try {
      const plan = await post("/v1/upgrade/plan", settings);
      notice($("upgrade-notice"), null);
      answer.replaceChildren(...planned(plan), make("button", {
        type: "button", class: "primary", id: "start", onclick: () => start(settings),
      }, "Start this upgrade …"));
      announce("The plan is ready");
    } catch (error) {
      answer.replaceChildren();
      notice($("upgrade-notice"), error.message);
    } finally {
      button.disabled = false;
    }
  };
}

function select(id, choices) {
  return make("select", { id }, choices.map(([value, words]) => make("option", { value }, words)));
}

function planned(plan) {
  const facts = make("dl", { class: "facts" });
  const add = (term, ...words) => facts.append(make("dt", {}, term), make("dd", {}, ...words));
  add("from, to", `${plan.from_space} → ${plan.to_space}`);
  add("to embed", `${count(plan.to_embed)} of ${items(plan.items)}`);
  add("time", plan.seconds === null ? "not measured" : `${plan.seconds < 1 ? "" : "about "}${duration(plan.seconds)} on this machine`);
  add("disk until finished", bytes(plan.disk_bytes));
  add("searches for a query", String(plan.searches_per_query));
  if (plan.gate) {
    add("gate at the start", verdict(plan.gate.verdict), ` on ${items(plan.sample)}`);
    for (const check of plan.gate.checks) add(check.name, `${share(check.value)}, limit ${share(check.limit)}`);
  }
  return [facts, make("ul", { class: "notes muted" }, plan.notes.map((note) => make("li", {}, note)))];
}
