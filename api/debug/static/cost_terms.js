// Terms of a candidate's cost, by policy: drawn as a bar, and explained in words.

import { el, swatch } from "./dom.js";
import { amount, count } from "./format.js";

const KV = [
  ["prefill_cost", "computed", "to compute"],
  ["decode_cost", "decode", "active blocks"],
  ["request_cost", "wait", "active requests"],
];
const OF = {
  kv: KV,
  approximate: KV,
  time: [
    ["prefill_cost", "computed", "own prefill"],
    ["outstanding_ms", "wait", "wait there"],
    ["held_ms", "router", "for others held, and for room"],
    ["decode_cost", "decode", "active blocks"],
    ["request_cost", "others", "requests held up"],
    ["reuse_cost", "recent", "talks there"],
    ["delay_cost", "delayed", "delays among talks"],
    ["load_cost", "loaded", "loads"],
    ["turnover_cost", "pushed", "what it pushes out"],
  ],
  session: [
    ["outstanding_ms", "wait", "wait there"],
    ["held_ms", "router", "for others held, and for room"],
  ],
};
const SOURCES = { set: "as set", learned: "as the replica had learned", default: "by default, until the replica learns it" };

// Which terms there are to draw; null where a cost is one number.
export function termsOf({ policy, candidates: rows }) {
  const terms = OF[policy];
  return terms && rows.length && rows.every((row) => terms[0][0] in row) ? terms : null;
}

// The longest bar is as long as this.
export const mostOf = (rows, terms) => Math.max(1e-9, ...rows.map((row) => Math.max(row.cost, terms ? sum(row, terms) : 0)));

const sum = (row, terms) => terms.reduce((all, [name]) => all + row[name], 0);

export function legend({ candidates: rows, unit }, terms) {
  const used = terms.filter(([name]) => rows.some((row) => row[name] > 0));
  return el("p", { class: "keys" }, `${unit === "ms" ? "score" : `cost in ${unit}`}:`, used.map(([, kind, text]) => swatch(kind, text)));
}

export function bar(row, most, terms) {
  const parts = terms ? terms.map(([name, kind, text]) => [row[name], kind, text]).filter(([value]) => value > 0) : [[row.cost, "decode", "cost"]];
  const said = parts.map(([value, , text]) => `${text} ${amount(value)}`).join(", ");
  return el("span", { class: "stack", role: "img", "aria-label": said, title: said },
    parts.map(([value, kind]) => el("i", { class: kind, vars: { width: `${(100 * value) / most}%` } })));
}

// How such a cost is reckoned, by the names of its settings.
export function formula({ policy, settings, prefill_time: time, candidates: rows }, terms) {
  if (policy === "session") return el("p", { class: "fine" }, `The cost is how much longer than session_wait_max_ms ${settings.session_wait_max_ms} the wait is.`);
  if (policy !== "time" || !terms) return null;
  const lasts = `${amount(time.base_ms)} ms and ${amount(time.per_token_us)} µs per token, ${SOURCES[time.source]}`;
  return el("p", { class: "fine", id: "formula" }, `Score = own_weight ${settings.own_weight} × its own prefill (${lasts}) + wait `,
    `+ active_weight ${settings.active_weight} × prefill of the tokens in active blocks`,
    time.first_active_times ? `, and up to ${time.first_active_times} times more, by how full of talks the workers are, for the first ${count(time.first_active_tokens)} of them` : "",
    ` + own_request_weight ${settings.own_request_weight} × its own prefill × active requests`,
    rows.some((row) => row.reuse_cost) ? ` + reuse_weight ${settings.reuse_weight} × prefill of the whole prompt × doublings of the reuse there` : "",
    rows.some((row) => row.delay_cost) ? ` + delay_weight ${settings.delay_weight} × how full of talks the workers are × (twice wait and own prefill + own prefill × active requests)` : "",
    rows.some((row) => row.load_cost) ? " + its loads from slower tiers" : "",
    time.turnover_times ? ` + ${time.turnover_times} × its own prefill × how much more of the cache prompts filled of late than elsewhere.` : ".",
    time.loading.map(({ tier, ms, slow }) => ` A block comes from the tier ${tier} in ${amount(ms)} ms${slow ? ", slower than computing it: none is counted or loaded" : ""}.`));
}
