// View: which part of the time is shown, and where the cursor stands. The cursor stands at a decision.

const SPAN_MIN_MS = 20;
const OPEN_WHOLE_MS = 10 * 60_000; // a longer recording opens on the last minute in which something happened
const OPEN_MS = 60_000;
const FRAME_MIN_MS = 250;

export class View extends EventTarget {
  constructor(store) {
    super();
    this.store = store;
    this.from = 0;
    this.to = 1;
    this.index = -1;
    this.order = null; // the decisions that are listed, as they stand there; null for all in the order of the log
    this.rows = null; // where each stands, if that is not in the order of the log
    this.following = false;
    this.chosen = false; // whether somebody chose what is shown
    this.whole = false; // whether all of it is shown, also what comes later
  }

  get span() {
    return this.to - this.from;
  }

  get n() {
    return this.index >= 0 ? this.store.n[this.index] : null;
  }

  get ms() {
    return this.index >= 0 ? this.store.ms[this.index] : null;
  }

  // The store has more than before.
  grown() {
    const { store } = this;
    if (!this.chosen) {
      const last = store.count ? store.ms[store.count - 1] : store.toMs;
      const whole = this.whole || store.toMs - store.fromMs <= OPEN_WHOLE_MS;
      this.from = whole ? store.fromMs : Math.max(store.fromMs, last - OPEN_MS);
      this.to = whole ? store.toMs : Math.min(store.toMs, last + OPEN_MS / 4);
      this.tell("window");
    } else if (this.following) {
      const span = this.span;
      this.to = store.toMs + span * 0.02;
      this.from = this.to - span;
      this.tell("window");
    }
    if (store.count && (this.index < 0 || this.following)) this.select(this.following ? store.count - 1 : this.first());
  }

  // Where to begin: near the end, where an incident usually is, at a decision of which all is known.
  first() {
    const { store } = this;
    if (!store.complete) return -1;
    for (let at = store.count - 1; at >= 0; at--) if (store.outcome[at] >= 0) return at;
    return store.count - 1;
  }

  reset() {
    this.index = -1;
    this.list(null);
    this.chosen = this.whole = false;
  }

  select(index, { reveal = true } = {}) {
    if (index < 0 || index >= this.store.count || index === this.index) return;
    this.index = index;
    if (reveal) this.reveal();
    this.tell("cursor");
  }

  // A person chose it: the end is followed no more.
  choose(index, options) {
    this.tell("picked");
    this.follow(false);
    this.select(index, options);
  }

  // These decisions are listed; `sorted` if not in the order of the log.
  list(order, sorted = false) {
    this.order = order;
    this.rows = sorted ? new Map(Array.from(order, (index, row) => [index, row])) : null;
  }

  // Where a decision stands in the list; -1 if it does not.
  rowOf(index) {
    if (this.rows) return this.rows.get(index) ?? -1;
    if (!this.order) return index;
    const at = place(this.order, index);
    return this.order[at] === index ? at : -1;
  }

  // A step through what is listed. From a decision that is not: to the one beside it, or to the first if it is sorted.
  step(by) {
    const { order, store } = this;
    const length = order ? order.length : store.count;
    if (!length) return;
    const row = this.rowOf(this.index);
    const gap = this.rows ? -1 : place(order ?? [], this.index) - (by > 0 ? 1 : 0);
    const to = Math.min(length - 1, Math.max(0, (row < 0 ? gap : row) + by));
    this.choose(order ? order[to] : to);
  }

  edge(last) {
    const { order, store } = this;
    const length = order ? order.length : store.count;
    if (length) this.choose(order ? order[last ? length - 1 : 0] : last ? length - 1 : 0);
  }

  reveal() {
    const ms = this.ms;
    if (ms === null || (ms >= this.from && ms <= this.to)) return;
    this.show(ms - this.span / 2, ms + this.span / 2);
  }

  show(from, to) {
    const { store } = this;
    const whole = store.toMs - store.fromMs;
    const margin = whole * 0.02 + SPAN_MIN_MS;
    const span = Math.min(Math.max(to - from, SPAN_MIN_MS), whole + 2 * margin);
    const middle = (from + to) / 2;
    this.from = Math.min(Math.max(middle - span / 2, store.fromMs - margin), store.toMs + margin - span);
    this.to = this.from + span;
    this.chosen = true;
    this.tell("window");
  }

  // All of one request is shown, with a little on both sides.
  frame(at) {
    const [from, to] = [this.store.cameAt(at), this.store.endAt(at)];
    const margin = Math.max(FRAME_MIN_MS, (to - from) / 2);
    this.show(from - margin, to + margin);
  }

  zoom(factor, at = this.ms ?? (this.from + this.to) / 2) {
    const about = at >= this.from && at <= this.to ? at : (this.from + this.to) / 2;
    this.show(about - (about - this.from) * factor, about + (this.to - about) * factor);
  }

  pan(share) {
    this.follow(false);
    this.show(this.from + share * this.span, this.to + share * this.span);
  }

  fit() {
    this.chosen = false;
    this.whole = true;
    this.from = this.store.fromMs;
    this.to = this.store.toMs;
    this.tell("window");
  }

  follow(on) {
    if (on === this.following) return;
    this.following = on;
    if (on) this.tell("picked");
    if (on && this.store.count) {
      if (!this.chosen) {
        this.chosen = true;
        this.from = Math.max(this.store.fromMs, this.store.toMs - 60_000);
        this.to = this.store.toMs;
      }
      this.grown();
    }
    this.tell("following");
  }

  tell(kind) {
    this.dispatchEvent(new CustomEvent(kind));
  }
}

// Where the value stands in an ascending list, or would stand.
export function place(order, value) {
  let low = 0;
  let high = order.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (order[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
