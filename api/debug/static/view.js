// View: which part of the time is shown, and where the cursor stands. The cursor stands at a decision.

const SPAN_MIN_MS = 20;

export class View extends EventTarget {
  constructor(store) {
    super();
    this.store = store;
    this.from = 0;
    this.to = 1;
    this.index = -1;
    this.order = null; // the decisions that are listed, ascending; null for all
    this.following = false;
    this.chosen = false; // whether somebody chose what is shown
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
      this.from = store.fromMs;
      this.to = store.toMs;
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
    this.order = null;
    this.chosen = false;
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

  // A step through what is listed.
  step(by) {
    const { order, store } = this;
    if (!store.count) return;
    if (!order) {
      this.choose(Math.min(store.count - 1, Math.max(0, this.index + by)));
      return;
    }
    if (!order.length) return;
    const at = place(order, this.index);
    const exact = order[at] === this.index;
    const to = by > 0 ? at + by - (exact ? 0 : 1) : at + by;
    this.choose(order[Math.min(order.length - 1, Math.max(0, to))]);
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
