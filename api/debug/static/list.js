// List: the decisions one by one. Only the rows that are seen exist.

import { el, fill, perFrame } from "./dom.js";
import { clock, count, day, duration, percent, short } from "./format.js";

const ROW_PX = 21;
const HEIGHT_MAX_PX = 8_000_000;
const SLOW_SHOWN = 200;
const SHORT = { worker_lost: "lost", replica_gone: "gone" };
const ID_CHARS = [36, 24]; // at most, in a wide window and in a narrow one
const WORKER_CHARS = 20;
const MISSED_MIN = 0.05;

// By what rows can be sorted: what stands for a row, and whether the largest comes first at the first press.
const COLUMNS = {
  time: [(_, at) => at, false],
  request: [(store, at) => store.request[at], false],
  worker: [(store, at) => store.laneOf[store.worker[at]], false],
  tokens: [(store, at) => store.prompt_tokens[at], true],
  cached: [(store, at) => (store.prompt_tokens[at] ? store.cachedOf(at) / store.prompt_tokens[at] : 0), true],
  first: [(store, at) => store.waitOf(at), true],
  took: [(store, at) => store.duration_ms[at], true],
};

export class List {
  constructor(root, heads, counted, filter, filters, store, view) {
    Object.assign(this, { root, heads, counted, filter, filters, store, view });
    this.marks = null;
    this.measured = 0; // so many decisions' ids were measured
    this.longest = 8;
    this.sorted = null; // the column, and whether the largest comes first; null for the order of the log
    this.inner = el("div", { class: "inner" });
    this.root.append(this.inner);
    this.draw = perFrame(() => this.paint());
    root.addEventListener("scroll", () => this.draw(), { passive: true });
    root.addEventListener("click", (event) => this.click(event));
    filter.addEventListener("change", () => this.sort(filter.value === "slow" ? { by: "first", down: true } : null));
    filters.addEventListener("changed", () => this.refilter(true));
    heads.addEventListener("click", (event) => this.press(event.target.closest("button")?.dataset.by));
    store.addEventListener("data", () => (this.widen(), this.refilter(false)));
    store.addEventListener("reset", () => Object.assign(this, { measured: 0, longest: 8 }));
    view.addEventListener("cursor", () => (this.reveal(), this.draw()));
    new ResizeObserver(() => (this.widen(), this.draw())).observe(root);
  }

  get length() {
    return this.view.order ? this.view.order.length : this.store.count;
  }

  at(row) {
    return this.view.order ? this.view.order[row] : row;
  }

  rowOf(index) {
    return this.view.rowOf(index);
  }

  // A column's head: sorted by it, then the other way round, then in the order of the log.
  press(by) {
    if (!by) return;
    const down = COLUMNS[by][1];
    if (this.sorted?.by !== by) this.sort({ by, down });
    else this.sort(this.sorted.down === down ? { by, down: !down } : null);
  }

  sort(sorted) {
    this.sorted = sorted;
    for (const head of this.heads.querySelectorAll("button")) {
      const here = head.dataset.by === sorted?.by;
      head.setAttribute("aria-pressed", String(here));
      head.dataset.down = here ? String(sorted.down) : "";
    }
    this.refilter(true);
  }

  // Which decisions are listed, by what is asked for and what is known by now.
  refilter(jump) {
    const { store, view } = this;
    const kind = this.filter.value;
    const { fits } = this.filters;
    const listed = kind === "all" && !fits ? null : chosen(store, kind, this.marks);
    const order = listed && fits ? listed.filter(fits) : listed;
    view.list(this.sorted ? sortedBy(store, order, this.sorted) : order, this.sorted !== null);
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

  // Columns are as wide as their longest text; a longer id is cut in its middle.
  widen() {
    const { store, root } = this;
    for (; this.measured < store.count; this.measured++) {
      this.longest = Math.max(this.longest, store.request[this.measured].length + (store.attempt[this.measured] ? 3 : 0));
    }
    const worker = Math.max(7, ...store.lanes.map((lane) => lane.name.length));
    root.parentElement.style.setProperty("--id-chars", String(Math.min(this.longest, this.idChars)));
    root.parentElement.style.setProperty("--worker-chars", String(Math.min(worker, WORKER_CHARS)));
  }

  get idChars() {
    return ID_CHARS[window.innerWidth < 1280 ? 1 : 0];
  }

  measure() {
    this.inner.style.setProperty("height", `${Math.max(1, this.length * this.rowHeight)}px`);
  }

  paint() {
    const { root, inner, length, view } = this;
    const listed = count(length);
    this.counted.textContent = length < this.store.count ? `${listed} of ${count(this.store.count)}` : listed;
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
    const first = failed ? SHORT[outcome] ?? outcome : duration(store.waitOf(at));
    return el("div", properties,
      el("span", { title: day(store.ms[at]) }, clock(store.ms[at])),
      el("span", { class: "id", title: store.request[at] }, short(store.request[at], this.idChars - (store.attempt[at] ? 3 : 0)), store.attempt[at] ? el("b", {}, ` #${store.attempt[at] + 1}`) : null),
      el("span", {}, store.workerName(store.worker[at])),
      el("span", { class: "number tokens" }, count(tokens)),
      el("span", { class: `share${known ? "" : " expected"}`, vars: { "--share": String(share) } }, percent(share)),
      el("span", { class: "number" }, first),
      el("span", { class: "number took" }, duration(store.duration_ms[at])));
  }

  nothing() {
    if (this.filter.value === "changed" && !this.marks) return "Move a slider under “What if”: what changes is listed here.";
    if (this.filter.value !== "all" || this.filters.fits) return "None of the decisions is like that.";
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

// Of equal ones the earlier comes first.
function sortedBy(store, order, { by, down }) {
  const [value] = COLUMNS[by];
  const listed = order ? Array.from(order) : Array.from({ length: store.count }, (_, at) => at);
  const values = new Map(listed.map((at) => [at, value(store, at)]));
  const sign = down ? -1 : 1;
  return Int32Array.from(listed.sort((one, two) => {
    const [first, second] = [values.get(one), values.get(two)];
    return first < second ? -sign : first > second ? sign : one - two;
  }));
}

function chosen(store, kind, marks) {
  const found = [];
  if (kind === "slow") return slowest(store);
  for (let at = 0; at < store.count; at++) if (fits(store, at, kind, marks)) found.push(at);
  return Int32Array.from(found);
}

function fits(store, at, kind, marks) {
  switch (kind) {
    case "all":
      return true;
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
  const times = Int32Array.from({ length: store.count }, (_, at) => store.waitOf(at));
  const limit = Math.max(0, Int32Array.from(times).sort()[Math.max(0, store.count - SLOW_SHOWN)] ?? 0);
  let equal = SLOW_SHOWN - times.filter((time) => time > limit).length;
  const found = [];
  times.forEach((time, at) => {
    if (time > limit || (time === limit && equal-- > 0)) found.push(at);
  });
  return Int32Array.from(found);
}
