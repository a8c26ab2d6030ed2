// Search by example, or look through the gallery.

import { ask, get, post } from "./api.js";
import { $, announce, make, notice, onChange, visible } from "./dom.js";
import { clearFilters, currentFilter, setFilters, setKeys, startFilters } from "./filters.js";
import { firstSteps } from "./first.js";
import { card, walk } from "./grid.js";
import { go, hasPicture, queryFrom, showQuery, startQuery } from "./query.js";
import { count, items } from "./words.js";

const PAGE = 48; // stored items shown at a time

let query = null;
let running = null; // AbortController of the search under way
let next = null; // where the next page of stored items begins
let gallery = { items: 0, spaces: {}, payload_keys: [], upgrade: null };
let cards;
let listed = []; // items as they are shown now

const actions = {
  moreLikeThis: (id) => go("search", { id }),
  near: (id, step) => listed[listed.findIndex((one) => one.id === id) + step] ?? null,
  get compare() { return upgradeOpen() ? (id) => go("compare", { id }) : null; },
};
const spaceName = (fingerprint) => gallery.spaces[fingerprint]?.name ?? fingerprint;
const upgradeOpen = () => Boolean(gallery.upgrade && gallery.upgrade.phase !== "none");

export function startSearch(view) {
  cards = walk($("grid"));
  startQuery(view);
  startFilters(() => go("search", query), suggestions);
  for (const id of ["k", "threshold", "exact"]) $(id).addEventListener("change", () => query && run());
  $("browse").addEventListener("click", () => (query ? go("search", null) : run()));
  $("more").addEventListener("click", () => browse({ after: next }));
}

/** What the gallery says of itself; the badges and the way to the comparison follow from it. */
export function setGallery(now) {
  gallery = now;
  setKeys(now.payload_keys ?? []);
  $("to-compare").hidden = !(hasPicture(query) && upgradeOpen());
  imageSearch(now.image_search);
  $("words-field").hidden = !now.text_search;
}

const imageSearch = onChange((can) => {
  if (!can) notice($("query-notice"), "This server has no encoder: it can search by stored item, not by image.");
});

export const galleryNow = () => gallery;

export function settings() {
  const number = (id) => ($(id).value === "" ? null : Number($(id).value));
  return {
    k: Math.min(Math.max(Math.round(number("k") ?? 24), 1), 100),
    filter: currentFilter(),
    threshold: number("threshold"),
    exact: $("exact").checked || null,
  };
}

export function showSearch(params) {
  query = queryFrom(params);
  showQuery($("query-image"), query);
  setFilters(params.getAll("filter"));
  const picture = hasPicture(query);
  $("drop").classList.toggle("filled", picture);
  $("query-words").textContent = !picture ? "Drop an image here, or paste one"
    : visible(query.file ? fileWords(query.files) : query.id);
  $("pick").textContent = !picture ? "Choose an image" : "Choose another image";
  $("words").value = query?.words ?? "";
  $("item-id").value = query?.id ?? query?.text ?? "";
  if (query) notice($("query-notice"), null);
  $("browse").hidden = query === null;
  $("to-compare").hidden = !(picture && upgradeOpen());
  $("to-compare").href = `#/compare?${params}`;
  run();
}

function fileWords(files) {
  return files.length > 1 ? `${count(files.length)} images: what is like any of them` : files[0].name || "pasted image";
}

/** Of several images each item counts by the one that it is most alike. */
async function answerTo(asked, options) {
  const queries = asked.files?.length > 1 ? asked.files.map((file) => ({ file })) : [asked];
  const answers = await Promise.all(queries.map((one) => ask("search", one, settings(), options)));
  if (answers.length === 1) return answers[0];
  const best = new Map();
  for (const one of answers.flatMap((answer) => answer.results)) {
    if (!best.has(one.id) || best.get(one.id).score < one.score) best.set(one.id, one);
  }
  const results = [...best.values()].sort((a, b) => b.score - a.score).slice(0, settings().k);
  return { results, took_ms: Math.max(...answers.map((answer) => answer.took_ms ?? 0)) };
}

/** Values of a payload field with how often they occur, for the filters. */
async function suggestions(field) {
  const found = await post("/v1/facets", { fields: [field], limit: 50 });
  return found.facets[field].map(({ value, count: n }) => ({ value, count: n }));
}

function run() {
  return query === null || query.text !== undefined ? browse({ after: "" }) : search();
}

async function during(work) {
  running?.abort();
  const mine = new AbortController();
  running = mine;
  $("results").setAttribute("aria-busy", "true");
  notice($("search-notice"), null);
  try {
    await work(mine.signal);
  } catch (error) {
    if (running !== mine || error.name === "AbortError") return;
    $("grid").replaceChildren();
    $("more").hidden = true;
    $("results-note").textContent = "";
    notice($("search-notice"), whatToDo(error), make("button", { type: "button", onclick: run }, "Try again"));
  } finally {
    if (running === mine) $("results").setAttribute("aria-busy", "false");
  }
}

function whatToDo(error) {
  if (error.status === 404 && query?.id !== undefined) {
    return `There is no item “${query.id}” in this gallery. Check the id, or browse the gallery.`;
  }
  return error.message;
}

function search() {
  const asked = query;
  return during(async (signal) => {
    $("results-title").textContent = asked.file ? "Most alike" : visible(`Most like ${asked.id ?? `“${asked.words}”`}`);
    const answer = await answerTo(asked, { signal });
    if (signal.aborted) return;
    const found = answer.results.filter((one) => one.id !== asked.id);
    draw(found);
    $("more").hidden = true;
    const took = answer.took_ms === undefined ? "" : ` in ${Math.max(1, Math.round(answer.took_ms))} ms`;
    $("results-note").textContent = found.length ? `${count(found.length)} found${took}` : "";
    announce(found.length ? `${items(found.length)} found` : "Nothing found");
    if (!found.length) empty("Nothing is alike enough.", "Remove a filter, or lower the lowest score.");
  });
}

function browse({ after }) {
  return during(async (signal) => {
    const text = query?.text;
    $("results-title").textContent = text === undefined ? "In the gallery" : visible(`With “${text}” in id or payload`);
    const params = new URLSearchParams({ limit: String(PAGE) });
    if (after) params.set("after", after);
    const filter = currentFilter();
    if (filter) params.set("filter", JSON.stringify(filter));
    if (text !== undefined) params.set("contains", text);
    const answer = await get(`/v1/items?${params}`, { signal });
    if (signal.aborted) return;
    const found = answer.items;
    if (!after) $("grid").replaceChildren();
    draw(found, { add: Boolean(after) });
    next = answer.next;
    $("more").hidden = next === null;
    $("item-ids").replaceChildren(...[...$("grid").children].map((one) => make("option", { value: one.dataset.id })));
    if (text !== undefined) $("results-note").textContent = `${count($("grid").querySelectorAll("[data-id]").length)} shown`;
    else if (!filter) $("results-note").textContent = items(gallery.items);
    else if (!after) {
      const matched = await post("/v1/facets", { filter }, { signal });
      $("results-note").textContent = `${count(matched.items)}${matched.complete ? "" : " or more"} of ${items(gallery.items)} match`;
    }
    if (filter) announce(`${items(found.length)} shown`);
    if (!found.length && !after) {
      if (text !== undefined) empty(`There is no item “${text}” in this gallery, and none has it in its id or payload.`, "Check it, or browse the gallery.");
      else if (filter) empty("No item matches the filters.", "Change or remove a filter.");
      else $("grid").replaceChildren(make("li", { class: "empty" }, firstSteps({ can: gallery.uploads, reload: added })));
    }
  });
}

function draw(found, { add = false } = {}) {
  listed = add ? [...listed, ...found] : found;
  const start = add ? $("grid").children.length : 0;
  const made = found.map((one, row) => card(one, {
    actions, spaceName, rank: one.score === undefined ? null : start + row + 1,
  }));
  if (add) $("grid").append(...made);
  else $("grid").replaceChildren(...made);
  cards.reset();
  if (add) made[0]?.querySelector(".open").focus();
}

/** The first items are in: the gallery says so, and shows them. */
async function added() {
  setGallery(await get("/v1/gallery"));
  await browse({ after: "" });
}

function empty(words, advice) {
  const clear = currentFilter() && make("button", { type: "button", onclick: clearFilters }, "Remove all filters");
  $("grid").replaceChildren(make("li", { class: "empty" },
    make("p", { class: "empty-words" }, words), make("p", { class: "muted" }, advice), clear));
}
