// Decision: one request with what every candidate would have cost, and what came of it.

import { Latest } from "./api.js";
import { el, fill, pairs, swatch, table } from "./dom.js";
import { amount, clock, count, duration, percent, words } from "./format.js";

const EXPLAIN_WAIT_MS = 120;
const TERMS = [
  ["prefill_cost", "computed", "to compute"],
  ["decode_cost", "decode", "active blocks"],
  ["request_cost", "wait", "active requests"],
];

export class Decision extends EventTarget {
  constructor(root, store, view) {
    super();
    Object.assign(this, { root, store, view });
    this.question = new Latest();
    this.more = new Latest();
    this.shown = null;
    this.explained = null; // the same in full, which takes a little longer
    this.changes = null; // the last what-if's changes, by number
    this.scenario = "";
    view.addEventListener("cursor", () => this.ask());
    store.addEventListener("data", () => this.shown && this.paint());
    this.empty();
  }

  empty() {
    fill(this.root, el("p", { class: "none" }, "Choose a decision: click one in a lane or in the list, or press an arrow key."));
  }

  ask() {
    const { n } = this.view;
    if (n === null) {
      this.empty();
      return;
    }
    this.question.ask(`/decision/${n}`, {}, (found) => this.show(found), (error) => this.fail(error));
  }

  fail(error) {
    this.shown = null;
    fill(this.root, el("p", { class: "none bad" }, error.message));
  }

  show(found) {
    if (this.shown?.n !== found.n) this.explained = null;
    this.shown = found;
    this.paint();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.explain(found.n), EXPLAIN_WAIT_MS);
    this.dispatchEvent(new CustomEvent("shown", { detail: found }));
  }

  explain(n) {
    if (n !== this.view.n || this.view.following) return; // it would have to be worked out anew every second
    const show = (found) => {
      if (n !== this.shown?.n) return;
      this.explained = found.known ? found : null;
      this.paint();
    };
    this.more.ask(`/explanation/${n}`, {}, show, () => {}); // what was recorded stands there already
  }

  setChanges(changes, scenario) {
    this.changes = changes;
    this.scenario = scenario;
    if (this.shown) this.paint();
  }

  paint() {
    const { store, shown } = this;
    const at = store.indexOf(shown.n);
    if (at < 0) return;
    fill(this.root,
      this.title(shown, at),
      this.change(shown),
      this.facts(shown, at),
      this.candidates(shown),
      this.leftOut(shown),
      this.runnerUp(),
      this.came(),
      el("p", { class: "fine" }, `Decided on ${cursorText(shown.cursor)}; digest ${shown.digest}; recorded at ${shown.at}.`));
  }

  title(shown, at) {
    const { store } = this;
    const by = `${store.replicaName(shown.replica)} by ${shown.policy}, settings revision ${shown.revision}`;
    return el("div", { class: "title" },
      el("h3", {}, el("code", {}, shown.request), this.attempts(shown, at)),
      el("p", {}, `${clock(store.ms[at])} · ${by} → `, el("b", { class: "chosen" }, store.nameOfId(shown.worker))),
      el("p", { class: "why", id: "why" }, this.explained?.why ? sentence(this.explained.why) : " "));
  }

  // A request that was tried again has several decisions.
  attempts(shown, at) {
    const { store, view } = this;
    const found = [];
    for (const step of [-1, 1]) {
      for (let other = at + step; other >= 0 && other < store.count && Math.abs(other - at) < 20_000; other += step) {
        if (store.request[other] !== shown.request) continue;
        found.push(el("button", { type: "button", class: "link", on: { click: () => view.select(other) } },
          `attempt ${store.attempt[other] + 1}`));
        break;
      }
    }
    if (!found.length && !shown.attempt) return null;
    return [el("span", { class: "tag" }, `attempt ${shown.attempt + 1}`), ...found];
  }

  change(shown) {
    const { store, changes } = this;
    if (!changes || !changes.covers(shown.n)) return null;
    const change = changes.of(shown.n);
    if (!change) return el("p", { class: "whatif same", id: "choice" }, `With ${this.scenario}: ${store.nameOfId(shown.worker)}, as recorded.`);
    const to = change.worker ? store.nameOfId(change.worker) : "no worker";
    return el("p", { class: "whatif", id: "choice" }, `With ${this.scenario}: `, el("b", {}, to),
      ` instead of ${store.nameOfId(shown.worker)}, ${gain(change, changes.timed)}.`);
  }

  facts(shown, at) {
    const { store } = this;
    const [real, predicted, tokens] = [store.cached[at], shown.predicted_cached_tokens, shown.prompt_tokens];
    const share = (value) => `${count(value)} (${percent(tokens ? value / tokens : 0)})`;
    const outcome = store.outcomeOf(at);
    const less = real >= 0 && real < predicted;
    return pairs([
      ["prompt", `${count(tokens)} tokens, ${count(Math.floor(tokens / shown.block_size))} full blocks`],
      ["cached, expected", share(predicted)],
      ["cached, in fact", real < 0 ? "–" : el("span", { class: less ? "bad" : "" }, share(real))],
      ["first token", duration(store.ttft_ms[at])],
      ["ended", el("span", { class: store.failed(at) ? "bad" : "" }, outcome ? `${words(outcome)}, after ${duration(store.duration_ms[at])}` : "not in this recording")],
    ]);
  }

  candidates(shown) {
    const { store } = this;
    const rows = shown.candidates;
    const terms = rows.length > 0 && "prefill_cost" in rows[0];
    const most = Math.max(1e-9, ...rows.map((row) => row.cost));
    const least = Math.min(...rows.map((row) => row.cost));
    const used = TERMS.filter(([name]) => rows.some((row) => row[name] > 0));
    const legend = terms ? el("p", { class: "keys" }, "cost in blocks:", used.map(([, kind, text]) => swatch(kind, text))) : null;
    const known = new Map((this.explained?.candidates ?? []).map((row) => [row.worker, row]));
    const age = known.size > 0;
    const pending = rows.some((row) => row.pending > 0);
    const waits = rows.some((row) => row.waiting > 0);
    const heads = [
      ["candidate"], ["", "bar"], ["cost", "number", "in blocks"], ["more", "number", "than the cheapest"],
      ["cached", "number", "blocks of the prompt cached there"], pending && ["pending", "number", "blocks being computed there for another request"],
      ["to compute", "number", "blocks, queued ones included, less credit"], ["active", "number", "blocks in flight there"],
      ["req.", "number", "requests in flight there"], waits && ["wait", "number", "requests waiting by its last report"],
      age && ["age", "number", "how old what the index knew of its cache was; and messages of it that were in the log and not folded yet"],
    ].filter(Boolean);
    const body = rows.map((row) => ({
      class: row.chosen ? "chosen" : "",
      cells: [
        [row.chosen ? "● " : "", store.nameOfId(row.worker), row.cache_known ? null : el("em", { title: "its chain had a gap" }, " cache unknown")],
        bar(row, most, terms ? TERMS : null),
        amount(row.cost), row.cost > least ? `+${amount(row.cost - least)}` : "",
        count(row.overlap), pending && (row.pending ? count(row.pending) : "–"), amount(row.to_prefill),
        count(row.active_blocks), count(row.active_requests), waits && (row.waiting ? count(row.waiting) : "–"),
        age && ageOf(known.get(row.worker)?.knowledge),
      ].filter((cell) => cell !== false),
    }));
    const hidden = shown.candidates_total - rows.length;
    return [
      legend,
      table(heads, body, { class: "grid costs" }),
      hidden > 0 ? el("p", { class: "fine" }, `${hidden} dearer candidates are not recorded.`) : null,
      shown.settings_known ? null : el("p", { class: "fine" }, "The settings of this revision lie before the recording: costs are not taken apart."),
    ];
  }

  runnerUp() {
    const next = this.explained?.runner_up;
    if (!next) return null;
    return el("p", { class: "told" }, el("b", {}, "Runner-up: "), sentence(next.text));
  }

  // What came of it: where the time to the first token went, and whether the cache was as expected.
  came() {
    const found = this.explained;
    if (!found) return null;
    const { phases, reuse } = found;
    const texts = this.prompt(found);
    if (reuse && reuse.verdict !== "as_predicted") texts.push(el("p", { class: "told" }, el("b", {}, "Reuse: "), sentence(reuse.text)));
    if (phases) texts.push(this.phases(phases));
    if (found.again === "differs") texts.push(el("p", { class: "told bad" }, "Decided again from the log it falls otherwise: `contrail replay verify` says where."));
    if (found.doubts.length) texts.push(el("p", { class: "fine" }, `The log may not show all: ${found.doubts.join("; ")}.`));
    return texts;
  }

  // Where the prompt was computed, if that could have been elsewhere: the verdict, who was preferred, and the job.
  prompt({ prefill, hint, job }) {
    const texts = [];
    const said = (title, text) => texts.push(el("p", { class: "told" }, el("b", {}, title), sentence(text)));
    if (prefill) said("Prompt: ", prefill.text);
    if (hint) said("Preferred: ", hint.text);
    if (prefill?.came) said("Came: ", prefill.came);
    if (!job) return texts;
    const tries = job.tries.map((each) => `${each.name} ${words(each.outcome)}${each.reason ? ` (${each.reason})` : ""}`);
    const moved = job.outcome === "pulled" ? `; ${count(job.blocks)} blocks, ${count(job.bytes)} bytes by ${job.transport}` : "";
    const end = `${words(job.outcome)}${job.reason ? ` (${words(job.reason)})` : ""}${moved}`;
    const where = [job.asked_seq, job.ended_seq].filter((seq) => seq !== null).map((seq) => `jobs:${seq}`).join(" to ");
    texts.push(el("p", { class: "fine" }, `Job ${job.job}${where ? `, ${where}` : ""}: ${[...tries, end].join(", ")}${job.lacks ? `; ${job.lacks}` : ""}.`));
    return texts;
  }

  phases(found) {
    const parts = [
      ["earlier", found.before_ms, "waited, or attempts before"],
      ["behind", found.behind_ms, `behind ${count(found.behind_requests)} requests with ${count(found.behind_tokens)} tokens to compute`],
      ["rest", found.rest_ms, "its own prefill"],
    ].filter(([, ms]) => ms > 0);
    if (!parts.length) return null;
    const all = Math.max(1, parts.reduce((sum, [, ms]) => sum + ms, 0));
    const said = parts.map(([, ms, text]) => `${text} ${duration(ms)}`).join(", ");
    return el("div", { class: "told" }, el("b", {}, "First token: "), duration(found.ttft_ms),
      el("div", { class: "phases", role: "img", "aria-label": said }, parts.map(([kind, ms]) => el("i", { class: kind, vars: { width: `${(100 * ms) / all}%` } }))),
      el("div", { class: "keys" }, parts.map(([kind, ms, text]) => swatch(kind, `${duration(ms)} ${text}`))));
  }

  leftOut(shown) {
    const { store } = this;
    if (!shown.excluded.length) return null;
    const texts = shown.excluded.map(({ reason, count: all, workers }) => {
      const names = workers.map((id) => store.nameOfId(id)).join(", ");
      return `${names}${all > workers.length ? ` and ${all - workers.length} more` : ""} (${words(reason)})`;
    });
    return el("p", { class: "left-out" }, el("b", {}, "Left out: "), texts.join("; "));
  }
}

function bar(row, most, terms) {
  const parts = terms
    ? terms.map(([name, kind, text]) => [row[name], kind, text]).filter(([value]) => value > 0)
    : [[row.cost, "decode", "cost"]];
  const said = parts.map(([value, , text]) => `${text} ${amount(value)}`).join(", ");
  return el("span", { class: "stack", role: "img", "aria-label": said, title: said },
    parts.map(([value, kind]) => el("i", { class: kind, vars: { width: `${(100 * value) / most}%` } })));
}

function ageOf(knowledge) {
  if (!knowledge || knowledge.age_ms === null) return "–";
  return knowledge.unseen ? el("span", { class: "bad" }, `${duration(knowledge.age_ms)} −${count(knowledge.unseen)}`) : duration(knowledge.age_ms);
}

// What a change would have won or lost: the first token's time, as far as it can be estimated, and the blocks.
export const sooner = (change) => `${duration(Math.abs(change.regret_ms))} ${change.regret_ms >= 0 ? "sooner" : "later"}`;
export const fewer = (change) => (change.regret_blocks ? `${count(Math.abs(change.regret_blocks))} ${change.regret_blocks > 0 ? "fewer" : "more"}` : "–");

function gain(change, timed) {
  const texts = [];
  if (timed) texts.push(`about ${sooner(change)}`);
  if (change.regret_blocks) texts.push(`${fewer(change)} blocks to compute`);
  return texts.join(", ") || "at the same price";
}

const sentence = (text) => (/[.!?]$/.test(text) ? text : `${text}.`);

export const cursorText = (cursor) => Object.entries(cursor).map(([stream, seq]) => `${stream}:${seq}`).join(" ");

