// List: the decisions one by one. Only the rows that are seen exist.

import { el, fill, perFrame } from "./dom.js";
import { clock, count, day, duration, percent } from "./format.js";
import { place } from "./view.js";

const ROW_PX = 21;
const HEIGHT_MAX_PX = 8_000_000;
const SLOW_SHOWN = 200;
const SHORT = { worker_lost: "lost", replica_gone: "gone" };
const MISSED_MIN = 0.05;

export class List {
  constructor(root, counted, filter, store, view) {
    Object.assign(this, { root, counted, filter, store, view });
    this.marks = null;
    this.inner = el("div", { class: "inner" });
    this.root.append(this.inner);
    this.draw = perFrame(() => this.paint());
    root.addEventListener("scroll", () => this.draw(), { passive: true });
    root.addEventListener("click", (event) => this.click(event));
    filter.addEventListener("change", () => this.refilter(true));
    store.addEventListener("data", () => this.refilter(false));
    view.addEventListener("cursor", () => (this.reveal(), this.draw()));
    new ResizeObserver(() => this.draw()).observe(root);
  }

  get length() {
    return this.view.order ? this.view.order.length : this.store.count;
  }

  at(row) {
    return this.view.order ? this.view.order[row] : row;
  }

  rowOf(index) {
    if (!this.view.order) return index;
    const at = place(this.view.order, index);
    return this.view.order[at] === index ? at : -1;
  }

  // Which decisions are listed, by what is asked for and what is known by now.
  refilter(jump) {
    const { store, view } = this;
    const kind = this.filter.value;
    view.order = kind === "all" ? null : chosen(store, kind, this.marks);
    if (jump && view.order?.length && this.rowOf(view.index) < 0) view.choose(view.order[0]);
    if (jump) this.reveal(); // else whoever scrolled stays where they are
    this.draw();
  }

  reveal() {
    const row = this.rowOf(this.view.index);
    if (row < 0) return;
    const { root } = this;
    const top = row * this.rowHeight;
    this.measure();
    if (top < root.scrollTop + ROW_PX) root.scrollTop = top - ROW_PX * 2;
    else if (top > root.scrollTop + root.clientHeight - 2 * ROW_PX) root.scrollTop = top - root.clientHeight + 3 * ROW_PX;
  }

  // Browsers bound the height of an element: with very many rows one pixel of the scroll bar stands for several.
  get rowHeight() {
    return Math.min(ROW_PX, HEIGHT_MAX_PX / Math.max(1, this.length));
  }

  measure() {
    this.inner.style.setProperty("height", `${Math.max(1, this.length * this.rowHeight)}px`);
  }

  paint() {
    const { root, inner, length, view } = this;
    const listed = count(length);
    this.counted.textContent = view.order ? `${listed} of ${count(this.store.count)}` : listed;
    this.measure();
    const first = Math.max(0, Math.floor(root.scrollTop / this.rowHeight) - 4);
    const last = Math.min(length, first + Math.ceil(root.clientHeight / ROW_PX) + 8);
    const offset = first * this.rowHeight;
    Object.assign(this, { first, offset });
    const rows = [];
    for (let row = first; row < last; row++) rows.push(this.row(row, offset + (row - first) * ROW_PX));
    if (!length) rows.push(el("p", { class: "none" }, this.nothing()));
    fill(inner, rows);
    const now = this.rowOf(view.index);
    if (now >= first && now < last) root.setAttribute("aria-activedescendant", `decision-${view.n}`);
    else root.removeAttribute("aria-activedescendant");
  }

  row(row, top) {
    const { store, view } = this;
    const at = this.at(row);
    const tokens = store.prompt_tokens[at];
    const failed = store.failed(at);
    const changed = this.marks?.has(store.n[at]);
    const share = tokens ? Math.min(1, store.cachedOf(at) / tokens) : 0;
    const known = store.cached[at] >= 0;
    const properties = {
      class: `row${failed ? " failed" : ""}${changed ? " changed" : ""}`,
      role: "option", id: `decision-${store.n[at]}`,
      "aria-selected": at === view.index, "aria-posinset": row + 1, "aria-setsize": this.length,
      vars: { top: `${top}px` },
    };
    const outcome = store.outcomeOf(at);
    const first = failed ? SHORT[outcome] ?? outcome : duration(store.ttft_ms[at]);
    return el("div", properties,
      el("span", { title: day(store.ms[at]) }, clock(store.ms[at])),
      el("span", { class: "id" }, store.request[at], store.attempt[at] ? el("b", {}, ` #${store.attempt[at] + 1}`) : null),
      el("span", {}, store.workerName(store.worker[at])),
      el("span", { class: "number tokens" }, count(tokens)),
      el("span", { class: `share${known ? "" : " expected"}`, vars: { "--share": String(share) } }, percent(share)),
      el("span", { class: "number" }, first));
  }

  nothing() {
    if (this.filter.value === "changed" && !this.marks) return "Move a slider under “What if”: what changes is listed here.";
    if (this.filter.value !== "all") return "None of the decisions is like that.";
    return this.store.complete ? "No decision is recorded here." : "Reading …";
  }

  // By place: rows may have been drawn anew between the press and the release.
  click(event) {
    const y = event.clientY - this.inner.getBoundingClientRect().top - this.offset;
    const row = this.first + Math.floor(y / ROW_PX);
    if (row < 0 || row >= this.length) return;
    this.view.choose(this.at(row));
  }
}

function chosen(store, kind, marks) {
  const found = [];
  if (kind === "slow") return slowest(store);
  for (let at = 0; at < store.count; at++) if (fits(store, at, kind, marks)) found.push(at);
  return Int32Array.from(found);
}

function fits(store, at, kind, marks) {
  switch (kind) {
    case "failed":
      return store.failed(at);
    case "retried":
      return store.attempt[at] > 0;
    case "missed":
      return store.cached[at] >= 0 && store.predicted[at] - store.cached[at] > MISSED_MIN * store.prompt_tokens[at];
    default:
      return marks !== null && marks.has(store.n[at]);
  }
}

// As many as are listed; of those that took equally long the first ones.
function slowest(store) {
  const times = store.ttft_ms.subarray(0, store.count);
  const limit = Math.max(0, Int32Array.from(times).sort()[Math.max(0, store.count - SLOW_SHOWN)] ?? 0);
  let equal = SLOW_SHOWN - times.filter((time) => time > limit).length;
  const found = [];
  times.forEach((time, at) => {
    if (time > limit || (time === limit && equal-- > 0)) found.push(at);
  });
  return Int32Array.from(found);
}
