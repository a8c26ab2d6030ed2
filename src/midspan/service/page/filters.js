// Payload filters by hand: rows of (key, relation, value) become the JSON form of a gallery filter.

import { $, make } from "./dom.js";

const RELATIONS = {
  is: { label: "is", build: (key, text) => ({ [key]: { $in: either(text) } }) },
  isNot: { label: "is not", build: (key, text) => ({ $not: { [key]: { $in: either(text) } } }) },
  atLeast: { label: "at least", build: (key, text) => ({ [key]: { $gte: bound(text) } }) },
  atMost: { label: "at most", build: (key, text) => ({ [key]: { $lte: bound(text) } }) },
  exists: { label: "is there", build: (key) => ({ [key]: { $exists: true } }) },
  missing: { label: "is missing", build: (key) => ({ [key]: { $exists: false } }) },
};
const NO_VALUE = new Set(["exists", "missing"]);

/** In a gallery 3 is not "3": who types 3 may mean either. */
function either(text) {
  const plain = text.trim();
  const number = asNumber(plain);
  if (number !== null) return [number, plain];
  const words = { true: true, false: false, null: null };
  return Object.hasOwn(words, plain) ? [words[plain], plain] : [plain];
}

function bound(text) {
  return asNumber(text.trim()) ?? text.trim();
}

function asNumber(text) {
  const number = Number(text);
  return text !== "" && Number.isFinite(number) && /^[-+]?[\d.]/.test(text) ? number : null;
}

let keys = [];
let changed = () => {};
let suggest = async () => [];

/** `suggestions(field)`: values that the field has, with their counts. */
export function startFilters(onChange, suggestions) {
  changed = onChange;
  suggest = suggestions;
  $("add-filter").addEventListener("click", () => addRow().focus());
}

export function setKeys(payloadKeys) {
  if (payloadKeys.join("\n") === keys.join("\n")) return;
  keys = payloadKeys;
  const known = document.getElementById("payload-keys") ?? make("datalist", { id: "payload-keys" });
  known.replaceChildren(...keys.map((key) => make("option", { value: key })));
  $("filters").after(known);
}

/** Each complete row as text, for the address. */
export function filtersNow() {
  return [...$("filters").children].map(fieldsOf).filter(complete)
    .map(([key, relation, text]) => [relation.value, key.value.trim(), text.value.trim()].join(":"));
}

/** The rows that an address holds, in place of those that are there. */
export function setFilters(texts) {
  if (JSON.stringify(texts) === JSON.stringify(filtersNow())) return;
  $("filters").replaceChildren();
  for (const one of texts) {
    const [name, ...rest] = one.split(":");
    if (!Object.hasOwn(RELATIONS, name)) continue;
    addRow();
    const [key, relation, text] = fieldsOf($("filters").lastElementChild);
    key.value = rest[0] ?? "";
    relation.value = name;
    text.value = rest.slice(1).join(":");
    text.hidden = NO_VALUE.has(name);
  }
}

const fieldsOf = (row) => [...row.querySelectorAll("input, select")];
const complete = ([key, relation, text]) => key.value.trim() && (NO_VALUE.has(relation.value) || text.value.trim());

async function offer(key, text) {
  const known = document.getElementById("filter-values") ?? make("datalist", { id: "filter-values" });
  $("filters").after(known);
  text.setAttribute("list", known.id);
  try {
    const values = key.value.trim() ? await suggest(key.value.trim()) : [];
    known.replaceChildren(...values.map(({ value, count }) => make("option", { value: String(value), label: `${value} (${count})` })));
  } catch { /* a suggestion, no more */ }
}

function addRow() {
  const key = make("input", {
    type: "text", class: "filter-key", list: "payload-keys", placeholder: "field", "aria-label": "Field",
    value: keys.length === 1 ? keys[0] : "", autocomplete: "off", spellcheck: "false",
  });
  const relation = make("select", { class: "filter-relation", "aria-label": "Relation" },
    Object.entries(RELATIONS).map(([name, { label }]) => make("option", { value: name }, label)));
  const text = make("input", {
    type: "text", class: "filter-value", placeholder: "value", "aria-label": "Value", autocomplete: "off",
  });
  const row = make("li", {}, key, relation, text, make("button", {
    type: "button", class: "quiet icon", "aria-label": "Remove this filter",
    onclick: () => { row.remove(); $("add-filter").focus(); changed(); },
  }, "×"));
  text.addEventListener("focus", () => offer(key, text));
  relation.addEventListener("change", () => { text.hidden = NO_VALUE.has(relation.value); });
  for (const input of [key, relation, text]) input.addEventListener("change", () => changed());
  $("filters").append(row);
  return keys.length === 1 ? text : key;
}

/** The JSON form of all complete rows, or null. */
export function currentFilter() {
  const parts = [];
  for (const row of $("filters").children) {
    const [key, relation, text] = fieldsOf(row);
    if (complete([key, relation, text])) parts.push(RELATIONS[relation.value].build(key.value.trim(), text.value));
  }
  if (!parts.length) return null;
  return parts.length === 1 ? parts[0] : { $and: parts };
}

export function clearFilters() {
  $("filters").replaceChildren();
  changed();
}
