// What if: the window around the cursor decided again by the server under what the sliders say.

import { Latest } from "./api.js";
import { distribution } from "./distribution.js";
import { fewer, sooner } from "./decision.js";
import { el, fill, pairs, swatch, table } from "./dom.js";
import { count, duration, moment, natural, percent } from "./format.js";
import { Sliders } from "./sliders.js";

const SIZES = [100, 200, 500, 1000, 2000];
const SIZE = 500;
const WAIT_MS = 60;
const ROWS_SHOWN = 25; // of those that win most, and of those that lose most

export class WhatIf extends EventTarget {
  constructor(root, store, view) {
    super();
    Object.assign(this, { store, view });
    this.question = new Latest((text) => this.note(text));
    this.window = null;
    this.outcome = null;
    this.size = el("select", { "aria-label": "How many decisions to decide again", on: { change: () => (this.window = null, this.want()) } },
      SIZES.map((size) => el("option", { value: size, selected: size === SIZE }, `${count(size)} decisions around the cursor`)));
    this.told = el("span", { class: "count", role: "status" });
    this.clear = el("button", { type: "button", disabled: true, on: { click: () => this.sliders.clear() } }, "As recorded");
    const controls = el("div", {});
    this.result = el("div", { id: "outcome" });
    fill(root, el("div", { class: "whatif-head" }, this.size, this.clear, this.told), controls, this.result);
    this.sliders = new Sliders(controls, () => this.want());
    view.addEventListener("cursor", () => this.moved());
    store.addEventListener("data", () => this.known());
    store.addEventListener("reset", () => this.forget());
    store.addEventListener("status", () => this.known());
    this.empty();
  }

  known() {
    const { store, sliders } = this;
    if (store.status) sliders.setPolicies(store.status.policies);
    sliders.setWorkers(store.lanes.map((lane) => lane.name));
  }

  empty() {
    fill(this.result, el("p", { class: "none" }, "Move a slider: the decisions around the cursor are made again, by the same code and with the same ",
      `recorded draws, and what changes is marked in the lanes and in the list. At most ${count(this.store.status?.window_max ?? 2000)} decisions are made again at once.`));
  }

  // What was decided again was another copy of the log.
  forget() {
    this.question.drop();
    this.window = this.outcome = null;
    this.note("");
    this.empty();
    this.tell();
  }

  // The cursor has left the window: another one is asked about.
  moved() {
    const { n } = this.view;
    if (n === null || (this.window && n >= this.window.from_n && n <= this.window.to_n)) return;
    this.window = null;
    if (this.sliders.touched) this.want();
  }

  around() {
    const { store, view } = this;
    const size = Math.min(Number(this.size.value), store.status?.window_max ?? SIZE, store.count);
    const low = Math.max(0, Math.min(store.count - size, Math.max(0, view.index) - Math.floor(size / 2)));
    return { from_n: store.n[low], to_n: store.n[low + size - 1] };
  }

  want() {
    clearTimeout(this.timer);
    this.clear.disabled = !this.sliders.touched;
    if (!this.sliders.touched) {
      this.question.drop();
      this.outcome = null;
      this.note("");
      this.empty();
      this.tell();
      return;
    }
    this.timer = setTimeout(() => this.ask(), WAIT_MS);
  }

  ask() {
    if (!this.store.count) return;
    this.window ??= this.around();
    this.note("deciding again …");
    const label = this.sliders.label;
    this.question.ask("/what-if", { body: { ...this.window, ...this.sliders.scenario } },
      (found) => this.show(found, label), (error) => this.fail(error));
  }

  note(text) {
    this.told.textContent = text;
  }

  fail(error) {
    this.note("");
    this.outcome = null;
    fill(this.result, el("p", { class: "none bad" }, error.message));
    this.tell();
  }

  show(found, label) {
    this.outcome = { ...found, label, byNumber: new Map(found.changes.map((change) => [change.n, change])) };
    this.note(`decided again in ${duration(found.took_ms)}`);
    this.paint();
    this.tell();
  }

  // What others mark of it.
  get marks() {
    return this.outcome ? new Map(this.outcome.changes.map((change) => [change.n, change.worker])) : null;
  }

  get changes() {
    const { outcome } = this;
    if (!outcome) return null;
    const covers = (n) => n >= outcome.from_n && n <= outcome.to_n;
    return { covers, of: (n) => outcome.byNumber.get(n), timed: outcome.timed };
  }

  tell() {
    this.dispatchEvent(new CustomEvent("outcome"));
  }

  paint() {
    const { outcome } = this;
    fill(this.result, this.verdict(outcome), outcome.timed ? distribution(outcome.first_tokens) : null, this.numbers(outcome), this.spread(outcome), this.worst(outcome), this.caveats(outcome));
  }

  verdict(found) {
    const share = found.decisions ? found.changed / found.decisions : 0;
    const first = `${count(found.changed)} of ${count(found.decisions)} decisions fall otherwise (${percent(share)})`;
    return el("p", { class: "verdict", id: "verdict" }, el("b", {}, first), better(found), ".");
  }

  numbers(found) {
    const arrow = (before, after) => [before, " → ", el("b", {}, after)];
    const somebody = found.refused < found.decisions; // else there is no first token, and nothing cached
    return pairs([
      somebody && ["cached, expected", ...arrow(percent(found.hit_rate_recorded, 1), percent(found.hit_rate_new, 1))],
      found.timed && somebody && ["first token, mean", ...arrow(duration(found.ttft_recorded_ms), `≈ ${duration(Math.max(0, found.ttft_new_ms))}`)],
      ["requests, most to mean", ...arrow(found.spread_recorded.requests_max_over_mean.toFixed(2), found.spread_new.requests_max_over_mean.toFixed(2))],
      ["blocks, most to mean", ...arrow(found.spread_recorded.blocks_max_over_mean.toFixed(2), found.spread_new.blocks_max_over_mean.toFixed(2))],
      found.refused > 0 && ["no worker left", el("span", { class: "bad" }, count(found.refused))],
      found.astray > 0 && ["to a worker that was gone", el("span", { class: "bad" }, count(found.astray))],
    ]);
  }

  spread(found) {
    const { store } = this;
    const workers = Object.keys(found.requests_recorded).sort((one, two) => natural(store.nameOfId(one), store.nameOfId(two)));
    const most = Math.max(1, ...workers.map((id) => Math.max(found.requests_recorded[id], found.requests_new[id] ?? 0)));
    const rows = workers.map((id) => {
      const [before, after] = [found.requests_recorded[id], found.requests_new[id] ?? 0];
      const change = after - before;
      return [
        store.nameOfId(id),
        el("span", { class: "pair", role: "img", "aria-label": `${before} recorded, ${after} in this scenario` },
          el("i", { class: "before", vars: { width: `${(100 * before) / most}%` } }),
          el("i", { class: "after", vars: { width: `${(100 * after) / most}%` } })),
        count(before), count(after), change ? `${change > 0 ? "+" : "−"}${count(Math.abs(change))}` : "",
      ];
    });
    const key = el("span", { class: "keys" }, swatch("before", "recorded"), swatch("after", "in this scenario"));
    return table([["worker"], [key, "bar"], ["recorded", "number"], ["then", "number"], ["", "number"]], rows, { class: "grid" });
  }

  worst(found) {
    const { store, view } = this;
    const rows = [...found.worst.slice(0, ROWS_SHOWN), ...found.losses.slice(0, ROWS_SHOWN).reverse()].map((change) => {
      const at = store.indexOf(change.n);
      if (at < 0) return null;
      return [
        el("button", { type: "button", class: "link", on: { click: () => view.choose(at) } }, store.request[at]),
        moment(store.ms[at], store.dated), store.workerName(store.worker[at]), change.worker ? store.nameOfId(change.worker) : "none",
        ...(found.timed ? [change.worker && change.ttft_ms >= 0 ? `${duration(change.ttft_ms)} → ${duration(Math.max(0, change.ttft_ms - change.regret_ms))}` : "–", change.worker ? sooner(change) : "–"] : []), change.worker ? fewer(change) : "–",
      ];
    }).filter(Boolean);
    if (!rows.length) return null;
    return [el("h3", {}, "Requests that moved most, best first"), table([["request", "id"], ["time"], ["recorded"], ["then"], ...(found.timed ? [["first token", "number"], ["about", "number"]] : []), ["blocks to compute", "number"]], rows, { class: "grid" })];
  }

  caveats(found) {
    const texts = ["Caches stay as recorded: nobody knows what an engine would have evicted, so another choice looks somewhat worse than it would have been."];
    const left = Object.entries(found.left_out);
    if (left.length) texts.push(`Not judged: ${left.map(([why, number]) => `${count(number)} (${why})`).join(", ")}.`);
    if (!found.timed) texts.push("The window has too few first tokens to estimate times.");
    return el("p", { class: "fine" }, texts.join(" "));
  }
}

// What it would have been good for, over all decisions that got a worker.
function better({ changed, decisions, refused, timed, regret_ms: ms, regret_blocks: blocks }) {
  if (!changed) return "";
  if (refused >= decisions) return "; no worker would have been left";
  const won = Math.sign(Math.round(timed ? ms : blocks));
  if (timed) return `; first tokens would have come ${["later", "as soon", "sooner"][won + 1]}`;
  return `; ${["more", "as much", "less"][won + 1]} would have had to be computed`;
}
