// Trends: of what is shown, arrivals, waits for the first token and the share of cached tokens over time.

import { Axis } from "./axis.js";
import { Brush, fit } from "./canvas.js";
import { perFrame } from "./dom.js";
import { amount, duration, percent } from "./format.js";
import { gutter } from "./timeline.js";

const BIN_PX = 6;
const ROW_PX = 20;
const CLICK_PX = 3;
const ROWS = ["arrivals", "first token", "cached"];

export class Trends {
  constructor(root, store, view, theme) {
    this.canvas = root.querySelector("canvas");
    this.brush = root.querySelector(".brush");
    Object.assign(this, { root, store, view, theme });
    this.draw = perFrame(() => this.paint());
    new ResizeObserver(() => this.draw()).observe(root);
    view.addEventListener("window", () => this.draw());
    store.addEventListener("data", () => this.draw());
    theme.addEventListener("changed", () => this.draw());
    root.addEventListener("pointerdown", (event) => this.press(event));
  }

  paint() {
    const { root, view, store, theme } = this;
    const width = root.clientWidth;
    const axis = new Axis(view.from, view.to, gutter(), Math.max(10, width - gutter() - 10));
    const bins = binned(store, axis);
    const perSecond = bins.map((bin) => (bin.count * 1000) / bins.ms);
    const most = { arrivals: Math.max(1e-9, ...perSecond), waits: Math.max(1, ...bins.map((bin) => bin.p99)) };
    this.axis = axis;
    const pen = fit(this.canvas, width, ROW_PX * ROWS.length);
    const brush = new Brush(pen);
    const bar = (row, at, share, colour) => {
      const height = share * (ROW_PX - 4);
      if (height > 0) brush.rect(colour, axis.left + at * BIN_PX, (row + 1) * ROW_PX - 1 - height, Math.min(BIN_PX - 1, axis.width - at * BIN_PX), height);
    };
    bins.forEach((bin, at) => {
      bar(0, at, perSecond[at] / most.arrivals, theme.decode);
      bar(1, at, bin.p99 / most.waits, theme.soft);
      bar(1, at, bin.p50 / most.waits, theme.computed);
      bar(2, at, bin.tokens ? bin.cached / bin.tokens : 0, theme.cached);
    });
    brush.paint();
    this.label(pen, axis, [`${amount(most.arrivals)}/s`, duration(most.waits), percent(1)]);
    if (store.count) root.setAttribute("aria-label", this.said(bins));
  }

  // A drag shows that part of the time; a click goes to the decision there.
  press(event) {
    if (event.button !== 0 || !this.axis || !this.store.count) return;
    const { root, brush, axis, view } = this;
    const placed = (moved) => Math.min(axis.left + axis.width, Math.max(axis.left, moved.clientX - root.getBoundingClientRect().left));
    const start = placed(event);
    event.preventDefault();
    const move = (moved) => {
      const [from, to] = [start, placed(moved)].sort((one, two) => one - two);
      brush.hidden = to - from <= CLICK_PX;
      brush.style.setProperty("left", `${from}px`);
      brush.style.setProperty("width", `${to - from}px`);
    };
    const done = (ended) => {
      root.removeEventListener("pointermove", move);
      root.removeEventListener("pointerup", done);
      root.removeEventListener("pointercancel", done);
      brush.hidden = true;
      if (ended.type === "pointercancel") return;
      const [from, to] = [start, placed(ended)].sort((one, two) => one - two);
      view.follow(false);
      if (to - from > CLICK_PX) view.show(axis.ms(from), axis.ms(to));
      else view.choose(this.store.near(axis.ms(from)));
    };
    root.setPointerCapture(event.pointerId);
    root.addEventListener("pointermove", move);
    root.addEventListener("pointerup", done);
    root.addEventListener("pointercancel", done);
  }

  // What each row is, and how much its highest bar stands for.
  label(pen, axis, tops) {
    const { theme } = this;
    pen.font = `11px ${theme.font}`;
    pen.textBaseline = "middle";
    pen.fillStyle = theme.muted;
    ROWS.forEach((name, row) => {
      const y = row * ROW_PX + ROW_PX / 2;
      pen.textAlign = "left";
      pen.fillText(name, 10, y);
      pen.textAlign = "right";
      pen.fillText(tops[row], axis.left - 6, y);
    });
    pen.textAlign = "left";
  }

  // The same in words.
  said(bins) {
    const waits = Float64Array.from(bins.flatMap((bin) => bin.waits)).sort();
    const [tokens, cached] = bins.reduce(([all, found], bin) => [all + bin.tokens, found + bin.cached], [0, 0]);
    const arrivals = bins.reduce((sum, bin) => sum + bin.count, 0);
    return `${arrivals} decisions; first token p50 ${duration(quantile(waits, 0.5))}, p99 ${duration(quantile(waits, 0.99))}; ${percent(tokens ? cached / tokens : 0)} cached`;
  }
}

// The decisions that are shown, a few pixels together. A wait of an attempt that goes on is its pause.
function binned(store, axis) {
  const bins = Array.from({ length: Math.ceil(axis.width / BIN_PX) }, () => ({ count: 0, waits: [], tokens: 0, cached: 0 }));
  for (let at = store.from(axis.from); at < store.count && store.ms[at] <= axis.to; at++) {
    const bin = bins[Math.min(bins.length - 1, Math.floor((axis.x(store.ms[at]) - axis.left) / BIN_PX))];
    const wait = store.waitOf(at);
    bin.count += 1;
    bin.tokens += store.prompt_tokens[at];
    bin.cached += store.cachedOf(at);
    if (wait >= 0) bin.waits.push(wait);
  }
  for (const bin of bins) {
    bin.waits.sort((one, two) => one - two);
    bin.p50 = Math.max(0, quantile(bin.waits, 0.5));
    bin.p99 = Math.max(0, quantile(bin.waits, 0.99));
  }
  bins.ms = BIN_PX / axis.scale;
  return bins;
}

// The nearest rank; -1 of nothing.
const quantile = (sorted, share) => (sorted.length ? sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)] : -1);
