// Events: what happened beside decisions, one line each; the one before the cursor is marked.

import { el, fill, perFrame, renew } from "./dom.js";
import { clock, count, day } from "./format.js";
import { colourOf, wordOf } from "./notes.js";

const SHOWN_MAX = 400;
const KINDS = [
  ["all", () => true],
  ["workers", (kind) => kind.startsWith("worker_") || kind === "cache_cleared"],
  ["replicas", (kind) => kind.startsWith("replica_") || kind === "divergence"],
  ["settings", (kind) => kind === "settings"],
  ["requests", (kind) => ["rejected", "client_gone", "migrated"].includes(kind)],
  ["doubts", (kind) => kind === "doubt"],
];

export class Events {
  constructor(root, store, view) {
    Object.assign(this, { root, store, view });
    this.kind = el("select", { "aria-label": "Which events", on: { change: () => this.paint() } }, KINDS.map(([name]) => el("option", { value: name }, name)));
    this.counted = el("span", { class: "count" });
    this.rows = el("ol", { class: "events" });
    fill(root, el("div", { class: "whatif-head" }, this.kind, this.counted), this.rows);
    this.draw = perFrame(() => this.root.hidden || this.paint());
    store.addEventListener("data", () => this.draw());
    view.addEventListener("cursor", () => this.draw());
  }

  open() {
    this.paint();
    this.rows.querySelector("[aria-current]")?.scrollIntoView({ block: "center" });
  }

  get fits() {
    return KINDS.find(([name]) => name === this.kind.value)[1];
  }

  get shown() {
    const { fits } = this;
    return this.store.notes.filter((note) => fits(note.kind)).sort((one, two) => one.ms - two.ms);
  }

  // How many of the kind are counted only.
  get dropped() {
    const { fits } = this;
    return Object.entries(this.store.notesDropped).reduce((sum, [kind, more]) => sum + (fits(kind) ? more : 0), 0);
  }

  paint() {
    const { dropped, view } = this;
    const notes = this.shown;
    const ms = view.ms ?? Infinity;
    const last = notes.findLastIndex((note) => note.ms <= ms);
    const low = Math.max(0, Math.min(notes.length - SHOWN_MAX, last - SHOWN_MAX / 2));
    this.counted.textContent = `${count(notes.length)}${dropped ? `, ${count(dropped)} later ones not listed` : ""}`;
    const rows = notes.slice(low, low + SHOWN_MAX).map((note) => el("li", {},
      el("button", { type: "button", class: "link event", on: { click: () => this.go(note) } },
        el("span", { class: "time", title: day(note.ms) }, clock(note.ms)), el("span", { class: `kind ${colourOf(note.kind)}` }, wordOf(note.kind)),
        el("span", { class: "text" }, note.text), el("span", { class: "at" }, note.at))));
    this.rows.querySelector("[aria-current]")?.removeAttribute("aria-current");
    renew(this.rows, rows.length ? rows : el("li", { class: "none" }, "Nothing of the kind is recorded."));
    if (last >= low) this.rows.children[last - low].setAttribute("aria-current", "true");
  }

  // The decision that followed on it, or of the request that it is about.
  go(note) {
    const { store, view } = this;
    let at = Math.min(store.from(note.ms), store.count - 1);
    if (note.request) {
      for (let back = at; back >= 0 && at - back < 5000; back--) {
        if (store.request[back] === note.request) {
          at = back;
          break;
        }
      }
    }
    view.choose(at);
  }

  // The next or the last event from the cursor on.
  step(by) {
    const notes = this.shown;
    const ms = this.view.ms ?? 0;
    const next = by > 0 ? notes.find((note) => note.ms > ms) : notes.findLast((note) => note.ms < ms);
    if (next) this.go(next);
    return next;
  }
}
