// Cache: the prompt tokens that caches gave, and those that were available and lost, by cause and by group.

import { Latest } from "./api.js";
import { el, fill, renew, table } from "./dom.js";
import { count, moment, percent } from "./format.js";

const CAUSES = [
  ["achieved", "from a cache", "by the engines' own word"],
  ["sent_elsewhere", "sent elsewhere", "though a live worker held them"],
  ["replica_behind", "replica behind the log", "the log had their store, and the replica had not read it"],
  ["evicted", "evicted", "no worker held them any more, and the copy that went last was evicted"],
  ["worker_lost", "worker lost", "the same, and that copy went with its worker"],
  ["unknown", "not known", "messages of the worker are missing"],
  ["not_yet_stored", "not yet stored", "an earlier request had them, and no worker had stored them"],
  ["cold", "cold", "no earlier request had them"],
  ["always_computed", "always computed", "behind the last block that a cache can give"],
];
const LOST = ["sent_elsewhere", "replica_behind", "evicted", "worker_lost", "unknown"];
const GROUPS = [["cause", "all"], ["session", "by session"], ["tenant", "by tenant"], ["worker", "by worker"], ["hour", "by hour"]];
const DIGITS = 2;

export class Cache {
  constructor(root, store) {
    Object.assign(this, { root, store });
    this.question = new Latest((text) => this.pending(text));
    const options = GROUPS.map(([value, text]) => el("option", { value }, text));
    this.by = el("select", { id: "cache-by", "aria-label": "rows of the table", on: { change: () => this.ask() } }, options);
    this.out = el("div", { id: "cache-found" });
    fill(root, el("p", {}, this.by, " of the whole recording so far"), this.out);
  }

  // Counted when the tab is opened: it takes some seconds for thousands of requests.
  open() {
    if (this.store.count) this.ask();
    else fill(this.out, el("p", { class: "none" }, "No decision is in this recording."));
  }

  ask() {
    this.question.ask("/cache", { query: { by: this.by.value } }, (found) => this.show(found), (error) => this.fail(error));
  }

  pending(text) {
    fill(this.out, el("p", { class: "none" }, `Counting: ${text}.`));
  }

  fail(error) {
    fill(this.out, el("p", { class: "none bad" }, error.message));
  }

  show(found) {
    const { store } = this;
    const span = found.total.sums.attempts ? `${moment(found.first_ms, store.dated)} to ${moment(found.last_ms, store.dated)}` : "";
    const apart = Object.values(found.apart).reduce((sum, one) => sum + one, 0);
    const texts = [
      span && `${count(found.total.sums.attempts)} attempts with a first token, ${span}.`,
      apart ? `${count(apart)} others are not counted.` : "",
      found.history_from_ms ? `Caches before ${moment(found.history_from_ms, true)} are known by their contents alone.` : "",
    ];
    renew(this.out, found.texts.map((text) => el("p", { class: "verdict" }, text)),
      found.by === "cause" ? this.causes(found.total.sums) : this.groups(found), el("p", { class: "fine" }, texts.filter(Boolean).join(" ")));
  }

  causes(sums) {
    const rows = CAUSES.filter(([name]) => sums[name] || name === "achieved").map(([name, text, title]) => [
      el("span", { title }, text),
      el("span", { class: "stack" }, el("i", { class: name === "achieved" ? "cached" : LOST.includes(name) ? "bad" : "before", vars: { width: `${(100 * sums[name]) / sums.prompt_tokens}%` } })),
      percent(sums[name] / sums.prompt_tokens, DIGITS), count(sums[name]),
    ]);
    return table([["prompt tokens"], ["", "bar"], ["share", "number"], ["tokens", "number"]], rows, { class: "grid" });
  }

  groups(found) {
    const lost = (sums) => LOST.reduce((all, name) => all + sums[name], 0);
    const row = (name, { sums, worst }) => [
      name || "–", count(sums.attempts), percent(sums.achieved / sums.prompt_tokens, DIGITS), percent(lost(sums) / sums.prompt_tokens, DIGITS),
      count(lost(sums)), worst ? `${worst.request} (${count(worst.lost)})` : "–",
    ];
    const heads = [
      [found.by], ["attempts", "number"], ["from a cache", "number"], ["lost", "number", "available, and computed all the same"],
      ["tokens lost", "number"], ["worst", "", "the attempt that lost most"],
    ];
    const rows = [...found.rows.map((each) => row(each.name, each)), row("all", found.total)];
    const more = found.rows_total - found.rows.length;
    return [table(heads, rows, { class: "grid" }), more > 0 ? el("p", { class: "fine" }, `and ${count(more)} more`) : null];
  }
}
