// What the board shows below the headline: gate, worst flips, failures, the trail.

import { get } from "./api.js";
import { $, make, onChange } from "./dom.js";
import { idText, picture } from "./grid.js";
import { go } from "./query.js";
import { count, duration, items, moment, plainMessage, share, value } from "./words.js";

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
    make("p", { title: "What was measured, and the limit that it must keep" }, make("b", {}, check.name), ` ${share(check.value)}, limit ${share(check.limit)}`),
    check.low === null ? null : make("p", { class: "muted small", title: "The true value lies in here with a probability of 95 %; the gate is sure where all of it is on one side of the limit" },
      `95 % interval ${share(check.low)} to ${share(check.high)}${check.more_queries ? `; about ${count(check.more_queries)} more queries would decide` : ""}`))));
  const flips = asked.flips && make("li", {}, make("div", {}, make("p", { title: "Queries that were right and are wrong now; positive: the reverse" }, make("b", {}, "negative flips"),
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
        type: "button", class: "flip-query", title: "Compare before and after",
        onclick: () => go("compare", { id: flip.query_id }),
      }, picture(flip.query_id, ""), idText(flip.query_id, "span"), ranks(flip)),
      strip("Before", "old", flip.before, flip.after, flip.right), strip("Now", "new", flip.after, flip.before, flip.right))));
});

function ranks(flip) {
  if (flip.before_rank === null || flip.before_rank === undefined) return null;
  const now = flip.after_rank === null || flip.after_rank === undefined ? "gone" : `rank ${flip.after_rank}`;
  return make("span", { class: "muted small", title: "The rank of the first right result, before and now" }, `right at rank ${flip.before_rank}, now ${now}`);
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
      idText(one.id, "b"), make("span", {}, one.reason),
      one.attempts ? make("span", { class: "muted small", title: "How often this item was tried" }, `${one.attempts} ${one.attempts === 1 ? "try" : "tries"}`) : null))));
});

const AUDIT = {
  create: "gallery created", "create fill": "adding images", "create filled": "images added", "upgrade plan refused": "plan refused",
  "upgrade start": "upgrade started", "upgrade start refused": "start refused", "upgrade order": "order computed",
  "upgrade run": "backfill", "upgrade pause": "paused", "upgrade resume": "resumed", "upgrade gate": "gate asked",
  "upgrade finish": "upgrade finished", "upgrade forget": "old vectors dropped", "upgrade rollback": "rolled back",
  "upgrade traffic": "traffic changed", "service run": "backfill requested",
};
const HIDDEN = new Set(["upgrade quality", "service job", "service start", "upgrade work done"]); // other lines say it
const REPEATED = new Set(["upgrade run", "upgrade gate"]);

/** What people did and what the gate said, without the steps in between. */
function folded(entries) {
  const lines = [];
  for (const entry of entries) {
    const before = lines.at(-1);
    if (HIDDEN.has(entry.what)) continue;
    if (before && before.what === entry.what && before.who === entry.who && REPEATED.has(entry.what)) before.times += 1;
    else lines.push({ ...entry, times: 1 });
  }
  return lines;
}

/** `names`: of the spaces, by fingerprint. */
export const drawAudit = onChange(({ entries, refused = false, names = {} }, again) => {
  $("audit-card").hidden = !entries.length && !refused;
  if (refused) {
    const give = async () => { await get("/v1/audit"); again(); };
    $("audit").replaceChildren(make("p", { class: "muted" }, "Only an admin may see who did what."),
      make("button", { type: "button", class: "link", onclick: () => give().catch(() => {}) }, "Give an admin token"));
    return;
  }
  $("audit").replaceChildren(make("ul", { class: "lines trail", tabindex: "0", "aria-labelledby": "audit-title" }, folded(entries).slice(0, 30).map((entry) => make("li", {},
    make("time", { class: "muted", datetime: new Date(1000 * entry.when).toISOString() }, moment(entry.when)),
    make("b", {}, `${AUDIT[entry.what] ?? entry.what}${entry.times > 1 ? ` × ${entry.times}` : ""}`),
    make("span", { class: "trail-details" }, detailsOf(entry, names)),
    make("span", { class: "muted small", title: entry.who }, entry.who.split(", request ")[0])))));
});

function detailsOf({ what, details }, names) {
  if (what === "upgrade gate") return [details?.verdict, plain(details?.checks)].filter(Boolean).join(": ");
  if (what === "upgrade run" && details?.written !== undefined) return `${items(details.written)} in ${duration(details.seconds)}${details.given_up ? `, ${count(details.given_up)} failed` : ""}`;
  if (details?.message) return plainMessage(details.message); // refused
  return Object.entries(details ?? {}).filter(([, one]) => one !== null && one !== "")
    .map(([key, one]) => `${key.replaceAll("_", " ")} ${short(key, one, names)}`).join(", ");
}

const TIME = /(^|_)(at|until|since|started|ended|created|when)$/;

/** Times as times; a space by its name; of other digests the beginning, which tells them apart. */
function short(key, one, names) {
  if (typeof one === "number") {
    if (TIME.test(key) && one > 1e9) return moment(one);
    return Number.isInteger(one) ? count(one) : value(Number(one.toPrecision(4)));
  }
  return value(one).replace(/\b[0-9a-f]{12,}\b/g, (print) => names[print] ?? `${print.slice(0, 8)}…`);
}
