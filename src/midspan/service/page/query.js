// What is searched for: images (dropped, pasted, chosen) or a stored item. The address holds it,
// so that "back" goes back through the searches, and a reload asks the same again.

import { get, itemPath, showThumbnail } from "./api.js";
import { $, notice, visible } from "./dom.js";
import { filtersNow } from "./filters.js";
import { imageOf, keepImage } from "./uploads.js";

const MOST = 8; // images of one query

/** {id}, {words}, {file, files}, {text} or null from the address's parameters; `file` is the first of the images. */
export function queryFrom(params) {
  if (params.has("item")) return { id: params.get("item") };
  if (params.has("words")) return { words: params.get("words") };
  if (params.has("text")) return { text: params.get("text") };
  const files = params.getAll("image").map(imageOf).filter(Boolean);
  return files.length ? { file: files[0], files } : null;
}

export const hasPicture = (query) => query !== null && (query.file !== undefined || query.id !== undefined);

export function go(view, query) {
  const params = new URLSearchParams();
  if (query?.id !== undefined) params.set("item", query.id);
  for (const file of query?.files ?? []) params.append("image", keepImage(file));
  for (const name of ["words", "text"]) if (query?.[name] !== undefined) params.set(name, query[name]);
  for (const one of filtersNow()) params.append("filter", one);
  const text = params.toString();
  const hash = `#/${view}${text ? `?${text}` : ""}`;
  if (location.hash === hash) window.dispatchEvent(new HashChangeEvent("hashchange")); // ask again
  else location.hash = hash;
}

/** An item by its whole id, else all that have this text in their id or payload. */
async function find(text) {
  try {
    await get(itemPath(text), { quietly: true });
    go("search", { id: text });
  } catch (error) {
    go("search", error.status === 404 ? { text } : { id: text });
  }
}

/** The query's own picture into `image`, hidden if there is none. */
export function showQuery(image, query) {
  image.hidden = !hasPicture(query);
  if (image.hidden) return;
  image.alt = query.file ? "the query image" : visible(`query: ${query.id}`);
  if (query.file) {
    const url = URL.createObjectURL(query.file);
    image.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
    image.addEventListener("error", () => { image.hidden = true; }, { once: true });
    image.src = url;
  } else {
    showThumbnail(image, query.id, { size: 320, missing: () => { image.hidden = true; } });
  }
}

/** Drop anywhere, paste anywhere, or choose; `view()` is where the answer shall be shown. */
export function startQuery(view) {
  const accept = (given) => {
    const files = given.filter((file) => !file.type || file.type.startsWith("image/")).slice(0, MOST);
    if (files.length) go(view(), { file: files[0], files });
    else if (given.length) {
      if (view() !== "search") go("search", null);
      notice($("query-notice"), `“${given[0].name}” is not an image. JPEG, PNG and WebP files work.`);
    }
  };
  $("pick").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", (event) => {
    accept([...event.target.files]);
    event.target.value = ""; // the same file can be chosen again
  });
  document.addEventListener("paste", (event) => {
    accept([...event.clipboardData.files].filter((one) => one.type.startsWith("image/")));
  });
  let depth = 0; // dragenter and dragleave come for every child
  const mark = () => document.body.classList.toggle("dragging", depth > 0);
  document.addEventListener("dragenter", () => { depth += 1; mark(); });
  document.addEventListener("dragleave", () => { depth -= 1; mark(); });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    depth = 0;
    mark();
    accept([...event.dataTransfer.files]);
  });
  const byWords = () => {
    const words = $("words").value.trim();
    if (words) go("search", { words });
    else $("words").focus();
  };
  $("by-words").addEventListener("click", byWords);
  $("words").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault(); // the form itself looks for an item
    byWords();
  });
  $("query").addEventListener("submit", (event) => {
    event.preventDefault();
    if (document.activeElement.closest(".filters, .options")) return; // Enter there is a change, no more
    const id = $("item-id").value.trim();
    if (id) find(id);
    else $("item-id").focus();
  });
}
