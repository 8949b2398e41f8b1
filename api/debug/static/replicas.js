// Replicas: what each had said of its folds by the cursor, how far behind it was, and whether they agree.

import { Latest } from "./api.js";
import { el, fill, renew, table } from "./dom.js";
import { clock, count, duration } from "./format.js";

export class Replicas {
  constructor(root, store, view) {
    Object.assign(this, { root, store, view });
    this.question = new Latest();
    this.wanted = false;
    view.addEventListener("cursor", () => this.ask());
    store.addEventListener("data", () => store.status?.live && this.ask());
  }

  // Asked only while it is looked at.
  open() {
    this.ask();
  }

  ask() {
    if (this.root.hidden || !this.store.count) return;
    const ms = Math.floor(this.view.following ? this.store.toMs : this.view.ms ?? this.store.toMs);
    this.question.ask("/replicas", { query: { ms } }, (found) => this.show(found.replicas, ms), (error) => this.fail(error));
  }

  fail(error) {
    fill(this.root, el("p", { class: "none bad" }, error.message));
  }

  show(found, ms) {
    if (!found.length) {
      fill(this.root, el("p", { class: "none" }, "No replica had joined by then, as far as this recording tells."));
      return;
    }
    const differ = found.filter((each) => each.agrees === false);
    const alive = found.filter((each) => each.alive);
    const verdict = differ.length
      ? el("p", { class: "verdict bad" }, `${differ.map((each) => each.name).join(", ")} had another digest than others at the same cursor.`)
      : alive.length > 1 && alive.every((each) => each.agrees)
        ? el("p", { class: "verdict" }, el("b", {}, `All ${alive.length} had equal digests wherever they can be compared.`))
        : el("p", { class: "verdict" }, "Not all can be compared yet: replicas report every 5 s, and are compared at cursors that two reported.");
    renew(this.root, verdict, this.summary(found, ms), found.map((each) => this.streams(each)));
  }

  summary(found, ms) {
    const heads = [
      ["replica"], ["", ""], ["decisions", "number"], ["reported", "number", "how long before the cursor it reported last"],
      ["behind", "number", "messages, of all streams, that the log had and it had not folded when it reported"], ["agrees", "", "digests at cursors that two reported"],
    ];
    const rows = found.map((each) => {
      const lag = each.report ? Object.values(each.report.streams).reduce((sum, one) => sum + one.lag, 0) : null;
      const agrees = each.agrees === null ? "not comparable" : each.agrees ? el("span", { class: "good" }, "✓ equal") : el("span", { class: "bad" }, "✕ differs");
      return [
        each.name, each.alive ? "" : el("span", { class: "bad" }, each.end), count(each.decisions),
        each.report ? `${duration(ms - each.report.ms)} ago` : "never", lag === null ? "–" : count(lag), agrees,
      ];
    });
    return table(heads, rows, { class: "grid" });
  }

  streams(each) {
    const { store } = this;
    if (!each.report) return null;
    const rows = Object.entries(each.report.streams).map(([stream, said]) => {
      const met = each.agreements.filter((one) => one.stream === stream);
      const texts = met.map((one) => el("span", { class: one.equal ? "good" : "bad" }, `${one.equal ? "=" : "≠"} ${store.replicaName(one.with)} at ${one.seq} `));
      return [stream, count(said.seq), count(said.lag), el("code", {}, said.digest), texts.length ? texts : "–"];
    });
    const unknown = each.report.incomplete.length ? ` · incomplete: ${each.report.incomplete.join(", ")}` : "";
    return [
      el("h3", {}, each.name, " ", el("span", { class: "count" }, `${each.id} · reported at ${clock(each.report.ms)}${unknown}`)),
      table([["stream"], ["cursor", "number"], ["behind", "number"], ["digest there"], ["compared", "wrap"]], rows, { class: "grid" }),
    ];
  }
}
