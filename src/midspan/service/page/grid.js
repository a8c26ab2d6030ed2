// Found or stored items as cards; arrow keys walk from card to card.

import { itemPath, get, showThumbnail } from "./api.js";
import { show } from "./dialog.js";
import { make } from "./dom.js";
import { moment, score, value } from "./words.js";

const FACTS = 2; // payload lines on a card; the rest is in the details

/** The picture of an item, or words where there is none. `known` false: the server has said so. */
export function picture(id, alt, { size = 160, known = true } = {}) {
  const frame = make("span", { class: "picture" });
  const image = make("img", { alt, decoding: "async" });
  frame.append(image);
  const missing = () => frame.replaceChildren(
    make("span", { class: "no-image", ...(alt ? { role: "img", "aria-label": `no image: ${alt}` } : { "aria-hidden": "true" }) }, "no image"),
  );
  if (known) showThumbnail(image, id, { size, missing });
  else missing();
  return frame;
}

const TAIL = 12; // characters at the end of an id that are always shown

/** An id that is cut in the middle where it is too long: ends tell ids apart. */
export function idText(id, tag = "p") {
  return make(tag, { class: "id", title: id },
    id.length > TAIL ? make("span", { class: "id-head" }, id.slice(0, -TAIL)) : null, make("span", { class: "id-tail" }, id.slice(-TAIL)));
}

const FIRST = ["label", "labels", "class", "name", "title"]; // of the payload, as people look for them

function ordered(payload) {
  const place = ([key]) => (FIRST.includes(key) ? FIRST.indexOf(key) : FIRST.length);
  return Object.entries(payload ?? {}).sort((a, b) => place(a) - place(b));
}

/** The name of its class, where it has one, and the other fields. */
export function labelled(payload) {
  const fields = ordered(payload);
  const named = fields.length && FIRST.includes(fields[0][0]) && typeof fields[0][1] === "string";
  return named ? [fields[0][1], fields.slice(1)] : [null, fields];
}

/** Old or new, while there are both. */
export function badge(role, name) {
  if (role !== "old" && role !== "new") return null;
  return make("span", { class: `badge tone-${role}`, title: `compared in ${name ?? `the ${role} space`}` }, role);
}

/** `actions`: {moreLikeThis(id), compare(id) or null}. */
export function card(found, { actions, spaceName, rank = null }) {
  const [label, facts] = labelled(found.payload);
  const told = [found.score === undefined ? null : `score ${score(found.score)}`,
    actions.compare && found.space_role ? `${found.space_role} space` : null].filter(Boolean).join(", ");
  return make("li", { class: "card-item", "data-id": found.id },
    make("button", {
      type: "button", class: "open", "aria-label": `${rank ? `${rank}. ` : ""}${found.id}${told ? `, ${told}` : ""}. Details`,
      onclick: () => details(found, actions, spaceName),
    }, picture(found.id, "", { known: found.thumbnail !== null })),
    make("div", { class: "card-line" },
      found.score === undefined ? null : make("b", { class: "score" }, score(found.score)),
      actions.compare ? badge(found.space_role, found.space && spaceName(found.space)) : null),
    label && make("p", { class: "label", title: label }, label),
    idText(found.id),
    facts.slice(0, FACTS).map(([key, one]) => make("p", { class: "fact", title: `${key}: ${value(one)}` },
      make("span", { class: "muted" }, `${key} `), value(one))),
    make("button", {
      type: "button", class: "link like", "aria-label": `More like this: ${found.id}`,
      onclick: () => actions.moreLikeThis(found.id),
    }, "More like this"));
}

/** `step`: where from, so that the next one is a key press away. */
async function details(found, actions, spaceName, step = null) {
  const facts = make("dl", { class: "facts" });
  const add = (term, ...text) => facts.append(make("dt", {}, term), make("dd", {}, ...text));
  const shown = make("div", { class: "details-picture" }, picture(found.id, found.id, { size: 1024, known: found.thumbnail !== null }));
  const whole = found.thumbnail === null ? null : make("button", {
    type: "button", class: "link whole", "aria-pressed": "false",
    onclick: (event) => {
      const on = shown.classList.toggle("whole-size");
      event.target.setAttribute("aria-pressed", String(on));
      shown.replaceChildren(picture(found.id, found.id, { size: on ? 4096 : 1024 }));
      shown.tabIndex = on ? 0 : -1; // it scrolls
    },
  }, "Original size");
  const body = make("div", { class: "details" }, make("div", {}, shown, whole), facts);
  if (found.score !== undefined) add("score", score(found.score));
  for (const [key, one] of ordered(found.payload)) add(key, value(one));
  if (found.uri) add("image", make("code", {}, found.uri));
  const buttons = [];
  for (const [step, words] of [[-1, "← Previous"], [1, "Next →"]]) {
    const other = actions.near?.(found.id, step);
    buttons.push([words, () => details(other, actions, spaceName, step), { "data-step": String(step), disabled: !other }]);
  }
  buttons.push(["More like this", () => actions.moreLikeThis(found.id)]);
  if (actions.compare) buttons.push(["Before and after", () => actions.compare(found.id)]);
  const closed = show(found.id, body, buttons, { focus: step === null ? "[data-cancel]" : `[data-step="${step}"]:enabled, [data-cancel]` });
  try {
    const item = await get(itemPath(found.id));
    if (item.spaces) add("vectors in", item.spaces.map(spaceName).join(", "));
    if (item.created) add("added", moment(item.created));
    if (item.changed && item.changed !== item.created) add("changed", moment(item.changed));
  } catch { /* deleted meanwhile, or not readable: what is shown stays */ }
  return closed;
}

/** One stop for Tab in the grid; arrows, Home and End move it. `m` asks for more like this. */
export function walk(grid) {
  const openers = () => [...grid.querySelectorAll(".open")];
  const rove = (target) => {
    for (const card of grid.children) {
      const on = card.contains(target);
      for (const button of card.querySelectorAll("button")) button.tabIndex = on ? 0 : -1;
    }
  };
  grid.addEventListener("focusin", (event) => rove(event.target));
  grid.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const all = openers();
    const at = all.findIndex((one) => one.closest("li").contains(event.target));
    if (at < 0) return;
    if (event.key === "m") {
      all[at].closest("li").querySelector(".like").click();
      return;
    }
    const first = all[0].getBoundingClientRect().top;
    const below = all.findIndex((one) => one.getBoundingClientRect().top > first + 4);
    const columns = below === -1 ? all.length : below;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -at, End: all.length - 1 - at };
    if (!Object.hasOwn(steps, event.key)) return;
    event.preventDefault();
    all[Math.min(Math.max(at + steps[event.key], 0), all.length - 1)].focus();
  });
  return { reset: () => rove(grid.querySelector(".open")) };
}
