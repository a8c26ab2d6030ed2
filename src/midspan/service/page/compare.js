// The same query of the old service and of today's, side by side, with what changed marked.

import { ask } from "./api.js";
import { $, announce, make, notice, visible } from "./dom.js";
import { idText, labelled, picture } from "./grid.js";
import { go, queryFrom, showQuery } from "./query.js";
import { galleryNow, settings } from "./search.js";
import { score, value } from "./words.js";

const SHOWN = 12;

let asked = 0;

export async function showCompare(params) {
  const query = queryFrom(params);
  const mine = ++asked;
  showQuery($("compare-image"), query);
  $("columns").hidden = true;
  notice($("compare-notice"), null);
  const { upgrade } = galleryNow();
  if (query === null) {
    $("compare-words").textContent = "See what the upgrade changes for one query: choose an image or an item first.";
    notice($("compare-notice"), "No query yet. Drop or paste an image here, or start from a stored item.",
      make("a", { class: "button", href: "#/search" }, "Choose a query"));
    return;
  }
  if (!upgrade || upgrade.phase === "none") return closed();
  $("compare-words").textContent = "Asking both …";
  try {
    const answer = await ask("compare", query, { ...settings(), k: SHOWN, exact: null });
    if (mine === asked) draw(answer, query);
  } catch (error) {
    if (mine !== asked) return;
    $("compare-words").textContent = "";
    notice($("compare-notice"), error.message,
      make("button", { type: "button", onclick: () => showCompare(params) }, "Try again"));
  }
}

function closed() {
  $("compare-words").textContent = "";
  notice($("compare-notice"), "No upgrade is open, so there is only one service to ask.",
    make("a", { class: "button", href: "#/upgrade" }, "Go to the upgrade"));
}

function draw({ before, after, flips }, query) {
  const changes = new Map(flips.map((flip) => [flip.id, flip]));
  const many = (change) => flips.filter((flip) => flip.change === change).length;
  const stay = after.filter((one) => !changes.has(one.id) || changes.get(one.id).change === "moved").length;
  const words = flips.length === 0
    ? `The same ${after.length} results in the same order.`
    : `${stay} of ${before.length} results stay, ${many("moved")} of them at another rank; `
      + `${many("left")} left and ${many("entered")} entered.`;
  $("compare-words").textContent = words;
  announce(words);
  $("before").replaceChildren(...before.map((one, row) => result(one, row, changes, "left")));
  $("after").replaceChildren(...after.map((one, row) => result(one, row, changes, "entered")));
  $("columns").hidden = false;
  $("compare-title").title = visible(query.id ?? "");
}

function result(found, row, changes, own) {
  const flip = changes.get(found.id);
  const change = flip && (flip.change === own || flip.change === "moved") ? flip.change : "same";
  const [label, facts] = labelled(found.payload);
  const mark = change === "same" ? null : make("span", { class: `flip flip-${change}` }, flipWords(flip, own));
  const line = make("li", { class: `rank rank-${change}`, "data-id": found.id },
    make("button", {
      type: "button", class: "rank-open", "aria-label": `Compare for ${found.id}`,
      onclick: () => go("compare", { id: found.id }),
    }, picture(found.id, "", { known: found.thumbnail !== null })),
    make("div", { class: "rank-text" },
      make("p", {}, make("span", { class: "muted" }, `${row + 1}. `), make("b", { class: "score" }, score(found.score))),
      label && make("p", { class: "label", title: label }, label), idText(found.id), mark),
    make("div", { class: "rank-facts" }, facts.slice(0, 2).map(([key, one]) => make("p", {
      class: "fact", title: `${key}: ${value(one)}` }, make("span", { class: "muted" }, `${key} `), value(one)))));
  const twins = (on) => {
    for (const other of document.querySelectorAll("#columns .rank")) {
      other.classList.toggle("twin", on && other.dataset.id === found.id);
    }
  };
  line.addEventListener("pointerenter", () => twins(true));
  line.addEventListener("pointerleave", () => twins(false));
  line.addEventListener("focusin", () => twins(true));
  line.addEventListener("focusout", () => twins(false));
  return line;
}

function flipWords(flip, own) {
  if (flip.change === "left") return "left";
  if (flip.change === "entered") return "entered";
  const up = flip.to < flip.from;
  return own === "entered" ? `${up ? "↑" : "↓"} was ${flip.from}` : `${up ? "↑" : "↓"} now ${flip.to}`;
}
