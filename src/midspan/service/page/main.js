// The page: which view is shown, the keys that work everywhere, and the news from the server.

import { get, listen } from "./api.js";
import { showCompare } from "./compare.js";
import { $ } from "./dom.js";
import { showDuplicates, startDuplicates } from "./duplicates.js";
import { startGalleries } from "./galleries.js";
import { galleryNow, setGallery, showSearch, startSearch } from "./search.js";
import { restoreImages } from "./uploads.js";
import { hideUpgrade, setCanUpgrade, setJobs, setStatus, showUpgrade, startUpgradeView } from "./upgrade.js";

const VIEWS = {
  search: { show: showSearch, title: "Search" },
  compare: { show: showCompare, title: "Before and after" },
  duplicates: { show: showDuplicates, title: "Duplicates" },
  upgrade: { show: showUpgrade, hide: hideUpgrade, title: "Upgrade" },
};

let current = null;

function address() {
  const [path, params] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { view: Object.hasOwn(VIEWS, path) ? path : "search", params: new URLSearchParams(params ?? "") };
}

function route() {
  const { view, params } = address();
  if (current && current !== view) VIEWS[current].hide?.();
  const changed = current !== view;
  current = view;
  for (const name of Object.keys(VIEWS)) $(`view-${name}`).hidden = name !== view;
  for (const link of document.querySelectorAll("nav [data-view]")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${VIEWS[view].title} · midspan`;
  VIEWS[view].show(params);
  if (changed || params.size) window.scrollTo(0, 0); // a new query: its results are on top
}

function take(gallery) {
  setCanUpgrade(gallery);
  setGallery(gallery);
  if (gallery.upgrade) setStatus(gallery.upgrade);
}

async function loadGallery() {
  try {
    take(await get("/v1/gallery"));
  } catch { /* the view that is shown says what is wrong */ }
}

function onEvent(name, data) {
  if (name === "gallery") take(data);
  if (name === "jobs") setJobs(data.jobs);
  if (name === "upgrade") {
    setGallery({ ...galleryNow(), upgrade: data });
    setStatus(data);
  }
}

function keys(event) {
  const typing = event.target.closest("input, select, textarea, dialog[open]");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    if (current !== "search") location.hash = "#/search";
    setTimeout(() => $("item-id").select(), 0);
  } else if (event.key === "Escape" && !$("dialog").open) {
    if (typing) event.target.blur();
    else if (current === "search" && address().params.size) location.hash = "#/search";
  }
}

startSearch(() => (current === "compare" ? "compare" : "search"));
startUpgradeView(loadGallery);
startDuplicates();
window.addEventListener("hashchange", route);
document.addEventListener("keydown", keys);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address holds the view
  $("main").focus();
});
await loadGallery();
await startGalleries();
await restoreImages();
route();
listen({
  on: onEvent,
  connected: (yes) => {
    $("offline").hidden = yes; // each connection begins with the present state
    $("offline").textContent = yes ? "" : "No connection to the server. What you see may be old; trying again.";
  },
});
