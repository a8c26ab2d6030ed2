// What the board shows below the headline: gate, worst flips, failures, the trail.

import { get } from "./api.js";
import { $, make, onChange } from "./dom.js";
import { picture } from "./grid.js";
import { go } from "./query.js";
import { count, moment, share, value } from "./words.js";

const MARKS = { PASS: "✓", INCONCLUSIVE: "!", FAIL: "✗" };
const MEANING = {
  PASS: "The gate passes: quality holds.",
  INCONCLUSIVE: "The gate is not sure: the interval reaches to both sides of the limit. More queries decide.",
  FAIL: "The gate fails: look at the queries that lost, then roll back, or resume with a reason.",
};

export const verdict = (name) => make("span", { class: `verdict verdict-${name.toLowerCase()}` }, `${MARKS[name] ?? "?"} ${name}`);

/** `gates`: past verdicts, the newest first. `asked`: the full answer, if this page has asked. */
export const drawGate = onChange(({ gates, asked }) => {
  if (!gates.length) {
    $("gate").replaceChildren(make("p", { class: "muted" },
      "Not asked yet. The gate asks the same queries of the old service and of today's, and compares."));
    return;
  }
  const [latest, ...earlier] = gates;
  const shown = asked?.verdict === latest.verdict;
  $("gate").replaceChildren(
    make("p", { class: "gate-words" }, verdict(latest.verdict), make("span", {}, MEANING[latest.verdict] ?? "")),
    shown ? checks(asked) : make("p", {}, plain(latest.text)),
    make("p", { class: "muted small" }, [`asked ${moment(latest.at)}`,
      ...(shown ? [`${count(asked.n_queries)} queries`, asked.metric] : [])].join(" · ")),
    earlier.length ? make("details", {}, make("summary", {}, "Earlier"),
      make("ul", { class: "lines" }, earlier.map((one) => make("li", {},
        make("time", { class: "muted" }, moment(one.at)), verdict(one.verdict),
        make("span", { class: "muted small" }, plain(one.text)))))) : "");
});

const plain = (text) => (text ?? "").replace(/^gate: /, "");

function checks(asked) {
  const rows = asked.checks.map((check) => make("li", {}, verdict(check.verdict), make("div", {},
    make("p", {}, make("b", {}, check.name), ` ${share(check.value)}, limit ${share(check.limit)}`),
    check.low === null ? null : make("p", { class: "muted small" },
      `95 % interval ${share(check.low)} to ${share(check.high)}${check.more_queries ? `; about ${count(check.more_queries)} more queries would decide` : ""}`))));
  const flips = asked.flips && make("li", {}, make("div", {}, make("p", {}, make("b", {}, "negative flips"),
    ` ${share(asked.flips.negative)}, positive ${share(asked.flips.positive)}; an equally good encoder has ${share(asked.flips.chance)} by chance`)));
  const notes = (asked.notes ?? []).map((note) => make("li", {}, make("p", { class: "muted small" }, note)));
  return make("ul", { class: "checks" }, [...rows, ...(flips ? [flips] : []), ...notes]);
}

export const drawFlips = onChange(({ flips, labelled }) => {
  $("flips-card").hidden = !flips.length;
  $("flips").replaceChildren(
    make("p", { class: "muted" }, `They were right before and are wrong now. Each row: the query, its results before, and now; ✓ marks the ${labelled ? "right ones (same class as the query)" : "ones that the reference ranking has"}.`),
    ...flips.map((flip) => make("div", { class: "flip-row", "data-query": flip.query_id },
      make("button", {
        type: "button", class: "flip-query", "aria-label": `Compare for ${flip.query_id}`,
        onclick: () => go("compare", { id: flip.query_id }),
      }, picture(flip.query_id, ""), make("span", { class: "id" }, flip.query_id), ranks(flip)),
      strip("Before", "old", flip.before, flip.after, flip.right), strip("Now", "new", flip.after, flip.before, flip.right))));
});

function ranks(flip) {
  if (flip.before_rank === null || flip.before_rank === undefined) return null;
  const now = flip.after_rank === null || flip.after_rank === undefined ? "gone" : `rank ${flip.after_rank}`;
  return make("span", { class: "muted small" }, `right at rank ${flip.before_rank}, now ${now}`);
}

function strip(words, tone, ids, others, right) {
  return make("div", { class: "flip-strip" }, make("p", { class: `strip-title tone-${tone}` }, words),
    make("ol", { class: "hits" }, ids.map((id) => {
      const stays = others.includes(id);
      const good = right.includes(id);
      return make("li", { class: `${stays ? "stays" : "changed"} ${good ? "right" : "wrong"}`, title: `${id}: ${good ? "right" : "not right"}` },
        picture(id, `${id}, ${good ? "right" : "not right"}${stays ? "" : tone === "old" ? ", left" : ", entered"}`),
        make("span", { class: "tick", "aria-hidden": "true" }, good ? "✓" : "✗"));
    })));
}

export const drawFailures = onChange((failures, retry) => {
  $("failures-card").hidden = !failures.length;
  $("failures").replaceChildren(
    make("p", { class: "muted" }, "They keep their old vector. Repair the images, then put them back on the list."),
    make("button", { type: "button", id: "retry", onclick: retry }, "Try them again …"),
    make("ul", { class: "lines" }, failures.map((one) => make("li", {},
      make("b", { class: "id" }, one.id), make("span", {}, one.reason),
      one.attempts ? make("span", { class: "muted small" }, `${one.attempts} ${one.attempts === 1 ? "try" : "tries"}`) : null))));
});

/** Progress is told by the line, measurements by the curve: the trail here is of what people did. */
function folded(entries) {
  const lines = [];
  for (const entry of entries) {
    const before = lines.at(-1);
    if (entry.what === "upgrade quality" || entry.what === "service job") continue;
    if (before && before.what === entry.what && before.who === entry.who && entry.what === "upgrade run") before.times += 1;
    else lines.push({ ...entry, times: 1 });
  }
  return lines;
}

export const drawAudit = onChange(({ entries, refused = false }, again) => {
  $("audit-card").hidden = !entries.length && !refused;
  if (refused) {
    const give = async () => { await get("/v1/audit"); again(); };
    $("audit").replaceChildren(make("p", { class: "muted" }, "Only an admin may see who did what."),
      make("button", { type: "button", class: "link", onclick: () => give().catch(() => {}) }, "Give an admin token"));
    return;
  }
  $("audit").replaceChildren(make("ul", { class: "lines trail" }, folded(entries).slice(0, 30).map((entry) => make("li", {},
    make("time", { class: "muted", datetime: new Date(1000 * entry.when).toISOString() }, moment(entry.when)),
    make("b", {}, entry.times > 1 ? `${entry.what} × ${entry.times}` : entry.what),
    make("span", { class: "trail-details" }, detailsOf(entry.details)),
    make("span", { class: "muted small", title: entry.who }, entry.who.split(", request ")[0])))));
});

function detailsOf(details) {
  return Object.entries(details ?? {}).filter(([, one]) => one !== null && one !== "")
    .map(([key, one]) => `${key} ${short(one)}`).join(", ");
}

/** Fingerprints are long; their beginning tells them apart. */
function short(one) {
  if (typeof one === "number") return value(Number(one.toPrecision(4)));
  return value(one).replace(/\b[0-9a-f]{24,}\b/g, (print) => print.slice(0, 8));
}
