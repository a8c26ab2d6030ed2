// Near-identical items, found by their vectors.

import { job } from "./api.js";
import { $, announce, make, notice } from "./dom.js";
import { idText, picture } from "./grid.js";
import { runningJob } from "./jobs.js";
import { go } from "./query.js";
import { count, items, score } from "./words.js";

export function startDuplicates() {
  $("duplicates-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const host = $("duplicates");
    const button = event.target.querySelector("[type=submit]");
    button.disabled = true;
    notice($("duplicates-notice"), null);
    host.replaceChildren(make("p", { class: "muted" }, "Comparing every item with its nearest …"));
    try {
      const threshold = Number($("duplicates-threshold").value) || 0.98;
      const found = await job("/v1/duplicates", { threshold }, {
        onJob: (now) => now.state === "running" && host.replaceChildren(runningJob(now, { stoppable: true })),
      });
      draw(host, found);
    } catch (error) {
      host.replaceChildren();
      notice($("duplicates-notice"), error.status === "cancelled" ? "Cancelled." : error.message);
    } finally {
      button.disabled = false;
    }
  });
}

function draw(host, { groups, items: looked }) {
  const words = groups.length ? `${count(groups.length)} ${groups.length === 1 ? "group" : "groups"} among ${items(looked)}` : `No two of ${items(looked)} are so much alike.`;
  announce(words);
  host.replaceChildren(make("p", { class: "muted" }, words), ...groups.map((group) => make("section", { class: "group" },
    make("p", {}, make("b", {}, items(group.ids.length)), make("span", { class: "muted" }, ` · score up to ${score(group.score)}`)),
    make("ul", { class: "grid" }, group.ids.slice(0, 24).map((id) => make("li", { class: "card-item", "data-id": id },
      make("button", { type: "button", class: "open", "aria-label": `More like ${id}`, onclick: () => go("search", { id }) }, picture(id, "")), idText(id)))))));
}

export function showDuplicates() {}
