// Decision: one request, the cost of each candidate, and the outcome.

import { Latest } from "./api.js";
import { outcome } from "./outcome.js";
import { el, fill, pairs, renew, table } from "./dom.js";
import { amount, count, duration, moment, percent, sentence, words } from "./format.js";
import { waterfall } from "./waterfall.js";
import { bar, formula, legend, mostOf, termsOf } from "./cost_terms.js";

const EXPLAIN_WAIT_MS = 120;
const NEAR = 20_000; // so many decisions are looked through for others of the same id, on either side

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
    this.near = false; // whether only the course up to the first token is drawn
    this.explainedKey = ""; // outcome key of the decision shown, at its last explanation
    view.addEventListener("cursor", () => this.ask());
    view.addEventListener("following", () => this.shown && this.explainLater());
    store.addEventListener("data", () => this.shown && this.grown());
    store.addEventListener("reset", () => (this.shown = this.explained = null));
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
    this.explainLater();
    this.dispatchEvent(new CustomEvent("shown", { detail: found }));
  }

  // More is known: perhaps of this one, its first token or its end.
  grown() {
    this.paint();
    if (this.explainedKey !== this.outcomeKey()) this.explainLater();
  }

  outcomeKey() {
    const { store } = this;
    const at = store.indexOf(this.shown.n);
    return `${store.ttft_ms[at]} ${store.outcome[at]}`;
  }

  explainLater() {
    this.explainedKey = this.outcomeKey();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.shown && this.explain(this.shown.n), EXPLAIN_WAIT_MS);
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
    renew(this.root,
      this.title(shown, at),
      this.change(shown),
      this.explained?.summary.length ? el("p", { id: "summary" }, this.explained.summary.join(" ")) : null,
      this.course(at),
      this.facts(shown, at),
      this.candidates(shown),
      this.leftOut(shown),
      this.runnerUp(),
      outcome(this.explained),
      el("p", { class: "fine" }, `Decided on ${cursorText(shown.cursor)}; digest ${shown.digest}; recorded at ${shown.at}.`));
  }

  title(shown, at) {
    const { store } = this;
    const by = `${store.replicaName(shown.replica)} by ${shown.policy}, settings revision ${shown.revision}`;
    return el("div", { class: "title" },
      el("h3", {}, el("code", {}, shown.request), this.attempts(shown, at)),
      el("p", {}, `${moment(store.ms[at], store.dated)} · ${by} → `, el("b", { class: "chosen" }, store.nameOfId(shown.worker))),
      el("p", { class: "why", id: "why" }, this.explained?.why ? sentence(this.explained.why) : " "));
  }

  // A request that was tried again has several decisions. Clients may also give several requests one id.
  attempts(shown, at) {
    const [before, after] = [-1, 1].map((step) => this.beside(shown, at, step));
    const tries = [before.attempt, after.attempt].filter((other) => other >= 0);
    const uses = [["used before", before.other], ["used again", after.other]].filter(([, other]) => other >= 0);
    return [
      tries.length || shown.attempt ? el("span", { class: "tag" }, `attempt ${shown.attempt + 1}`) : null,
      tries.map((other) => this.link(`attempt ${this.store.attempt[other] + 1}`, other)),
      uses.length ? el("span", { class: "tag" }, "its id was") : null,
      uses.map(([text, other]) => this.link(text, other)),
    ];
  }

  // On one side, the nearest attempt of the same request, which is in the same replica and follows on this one, and the
  // nearest decision of another request that has its id; -1 for none.
  beside(shown, at, step) {
    const { store } = this;
    const found = { attempt: -1, other: -1 };
    let last = at; // of the request's own, as far as is known
    for (let near = at + step; near >= 0 && near < store.count && Math.abs(near - at) < NEAR; near += step) {
      if (store.request[near] !== shown.request) continue;
      if (last >= 0 && store.replica[near] === store.replica[at]) {
        const follows = step * (store.attempt[near] - store.attempt[last]) > 0;
        last = follows ? near : -1; // what lies beyond the first of another is not its own
        if (follows && found.attempt < 0) found.attempt = near;
        if (follows) continue;
      }
      if (found.other < 0) found.other = near;
    }
    return found;
  }

  link(text, at) {
    return el("button", { type: "button", class: "link", data: { at }, on: { click: () => this.view.choose(at) } }, text);
  }

  change(shown) {
    const { store, changes } = this;
    if (!changes || !changes.covers(shown.n)) return null;
    const change = changes.of(shown.n);
    if (!change) return el("p", { class: "whatif same", id: "choice" }, `With ${this.scenario}: ${store.nameOfId(shown.worker)}, as recorded.`);
    const to = change.worker ? store.nameOfId(change.worker) : "no worker";
    return el("p", { class: "whatif", id: "choice" }, `With ${this.scenario}: `, el("b", {}, to),
      ` instead of ${store.nameOfId(shown.worker)}${change.worker ? `, ${gain(change, changes.timed)}` : ""}.`);
  }

  course(at) {
    const onNear = (near) => ((this.near = near), this.paint());
    return this.explained && waterfall(this.explained, at, this.store, { near: this.near, onNear, choose: (other) => this.view.choose(other) });
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
      store.waited_ms[at] > 0 && ["in the router", duration(store.waited_ms[at])],
      [store.goesOnFrom(at) < 0 ? "first token" : "went on after", duration(store.waitOf(at))],
      ["ended", el("span", { class: store.failed(at) ? "bad" : "" }, outcome ? `${words(outcome)}, after ${duration(store.duration_ms[at])}` : "not in this recording")],
    ]);
  }

  candidates(shown) {
    const { store } = this;
    const rows = shown.candidates;
    const { unit } = shown;
    const timed = unit === "ms";
    const terms = termsOf(shown);
    const most = mostOf(rows, terms);
    const least = Math.min(...rows.map((row) => row.cost));
    const known = new Map((this.explained?.candidates ?? []).map((row) => [row.worker, row]));
    const age = known.size > 0;
    const pending = rows.some((row) => row.pending > 0);
    const waits = rows.some((row) => row.waiting > 0);
    const tiers = rows.some((row) => row.overlap_device !== row.overlap);
    const cost = shown.policy === "time" ? ["score", "number", "weighted milliseconds: no time"] : ["cost", "number", unit && `in ${timed ? "milliseconds" : unit}`];
    const heads = [
      ["candidate"], ["", "bar"], cost, ["more", "number", "than the cheapest"],
      ["cached", "number", "blocks of the prompt cached there"],
      tiers && ["on device", "number", "of the cached blocks; the others would be loaded from a slower tier"], pending && ["pending", "number", "blocks being computed there for another request"],
      timed ? ["to compute", "number", "tokens of the prompt"] : ["to compute", "number", "blocks, queued ones included, less credit"],
      timed && ["wait", "number", "milliseconds until prefills there, and those held in the router, let it begin"],
      ["active", "number", "blocks in flight there"],
      ["req.", "number", "requests in flight there"], waits && ["queued", "number", "requests waiting by its last report"],
      age && ["age", "number", "how old what the index knew of its cache was; and messages of it that were in the log and not folded yet"],
    ].filter(Boolean);
    const body = rows.map((row) => ({
      class: row.chosen ? "chosen" : "",
      cells: [
        [row.chosen ? "● " : "", store.nameOfId(row.worker), row.cache_known ? null : el("em", { title: "its chain had a gap" }, " cache unknown")],
        bar(row, most, terms),
        amount(row.cost), row.cost > least ? `+${amount(row.cost - least)}` : "",
        count(row.overlap), tiers && count(row.overlap_device), pending && (row.pending ? count(row.pending) : "–"), timed ? count(row.tokens) : amount(row.to_prefill),
        timed && amount(row.outstanding_ms + row.held_ms), count(row.active_blocks), count(row.active_requests), waits && (row.waiting ? count(row.waiting) : "–"),
        age && ageOf(known.get(row.worker)?.knowledge),
      ].filter((cell) => cell !== false),
    }));
    const hidden = shown.candidates_total - rows.length;
    return [
      terms && legend(shown, terms),
      table(heads, body, { class: "grid costs" }),
      formula(shown, terms),
      hidden > 0 ? el("p", { class: "fine" }, `${hidden} dearer candidates are not recorded.`) : null,
      shown.settings_known ? null : el("p", { class: "fine" }, "The settings of this revision lie before the recording: costs are not taken apart."),
    ];
  }

  runnerUp() {
    const next = this.explained?.runner_up;
    if (!next) return null;
    return el("p", { class: "told" }, el("b", {}, "Runner-up: "), sentence(next.text));
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

function ageOf(knowledge) {
  if (!knowledge || knowledge.age_ms === null) return "–";
  return knowledge.unseen ? el("span", { class: "bad" }, `${duration(knowledge.age_ms)} −${count(knowledge.unseen)}`) : duration(knowledge.age_ms);
}

// What a change would have won or lost: the first token's time, as far as it can be estimated, and the blocks.
export const sooner = ({ regret_ms: ms }) => (Math.round(ms) ? `${duration(Math.abs(ms))} ${ms > 0 ? "sooner" : "later"}` : "as soon");
export const fewer = (change) => (change.regret_blocks ? `${count(Math.abs(change.regret_blocks))} ${change.regret_blocks > 0 ? "fewer" : "more"}` : "–");

function gain(change, timed) {
  const texts = [];
  if (timed) texts.push(Math.round(change.regret_ms) ? `about ${sooner(change)}` : "about as soon");
  if (change.regret_blocks) texts.push(`${fewer(change)} blocks to compute`);
  return texts.join(", ") || "at the same price";
}

export const cursorText = (cursor) => Object.entries(cursor).map(([stream, seq]) => `${stream}:${seq}`).join(" ");

