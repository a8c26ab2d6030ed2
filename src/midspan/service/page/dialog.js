// Questions to the person: one <dialog>, native focus trap and Esc.

import { $, make } from "./dom.js";

let closing = Promise.resolve(); // one question at a time

function open(parts, { onSubmit, focus }) {
  const dialog = $("dialog");
  const opened = closing.then(() => new Promise((resolve) => {
    const form = make("form", { method: "dialog" }, ...parts);
    let answer = null;
    form.addEventListener("submit", () => { answer = onSubmit(form); });
    dialog.replaceChildren(form);
    dialog.addEventListener("close", () => {
      dialog.replaceChildren();
      resolve(answer);
    }, { once: true });
    dialog.showModal();
    (form.querySelector(focus) ?? form).focus();
  }));
  closing = opened.then(() => {});
  return opened;
}

const title = (words) => make("h2", { id: "dialog-title" }, words);
const cancel = (words) => make("button", {
  type: "button", "data-cancel": true, onclick: () => $("dialog").close(),
}, words);

/** What will happen, in plain words. Null if the person cancels, else {value} of the extra field.
 *
 * `extra`: {label, checked} is a box to tick, {label, placeholder} a line of text.
 * Danger: the safe button has the focus.
 */
export function confirm({ title: words, will, verb, danger = false, extra = null }) {
  const box = extra && "checked" in extra;
  const input = extra && make("input", {
    id: "dialog-extra", type: box ? "checkbox" : "text", checked: box && extra.checked,
    placeholder: box ? null : extra.placeholder, maxlength: box ? null : 200, autocomplete: "off",
  });
  const label = extra && make("label", { for: "dialog-extra" }, extra.label);
  return open([
    title(words),
    make("ul", { class: "will" }, will.map((line) => make("li", {}, line))),
    extra && make("div", { class: box ? "check" : "field" }, ...(box ? [input, label] : [label, input])),
    make("div", { class: "dialog-actions" },
      cancel("Cancel"),
      make("button", { type: "submit", class: danger ? "danger" : "primary" }, verb)),
  ], {
    onSubmit: () => ({ value: input && (box ? input.checked : input.value.trim()) }),
    focus: danger ? "[data-cancel]" : "[type=submit]",
  });
}

/** The token, or null if the person does not want to give one. */
export function askToken(words) {
  return open([
    title("Token"),
    make("p", {}, words),
    make("div", { class: "field" },
      make("label", { for: "token" }, "Token"),
      make("input", { id: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false" }),
      make("p", { class: "muted small" }, "Kept in this tab until you close it.")),
    make("div", { class: "dialog-actions" },
      cancel("Not now"),
      make("button", { type: "submit", class: "primary" }, "Use it")),
  ], { onSubmit: (form) => form.querySelector("#token").value.trim() || null, focus: "#token" });
}

/** Anything to look at, with a close button; `actions` ([label, run, attributes]) close it too. */
export function show(words, body, actions = [], { focus = "[data-cancel]" } = {}) {
  const buttons = actions.map(([label, run, options]) => make("button", {
    type: "button", ...options, onclick: () => { $("dialog").close(); run(); },
  }, label));
  return open([
    title(words), body,
    make("div", { class: "dialog-actions" }, ...buttons, cancel("Close")),
  ], { onSubmit: () => null, focus });
}
