// Overview: all of the recording on a strip, with what is shown of it framed.

import { Axis } from "./axis.js";
import { Brush, fit } from "./canvas.js";
import { perFrame } from "./dom.js";
import { colourOf } from "./notes.js";
import { gutter } from "./timeline.js";

const EDGE_PX = 7;

export class Overview {
  constructor(root, store, view, theme) {
    this.root = root;
    this.canvas = root.querySelector("canvas");
    Object.assign(this, { store, view, theme });
    this.ground = document.createElement("canvas");
    this.stale = true;
    this.draw = perFrame(() => this.paint());
    const anew = () => ((this.stale = true), this.draw());
    new ResizeObserver(anew).observe(root);
    for (const event of ["window", "cursor"]) view.addEventListener(event, () => this.draw());
    store.addEventListener("status", () => this.draw());
    store.addEventListener("data", anew);
    theme.addEventListener("changed", anew);
    root.addEventListener("pointerdown", (event) => this.press(event));
  }

  // What was recorded changes seldom: it is drawn once, and copied.
  paint() {
    const { root, view, theme } = this;
    const [width, height] = [root.clientWidth, root.clientHeight];
    const left = gutter();
    if (this.stale || this.ground.width !== width * (window.devicePixelRatio || 1)) this.paintGround(width, height);
    const pen = fit(this.canvas, width, height);
    pen.drawImage(this.ground, 0, 0, width, height);
    const { axis } = this;
    this.paintFolded(pen, axis, height);
    const [from, to] = [Math.max(left, axis.x(view.from)), Math.min(left + axis.width, axis.x(view.to))];
    pen.globalAlpha = 0.6;
    pen.fillStyle = theme.surface;
    pen.fillRect(left, 0, from - left, height);
    pen.fillRect(to, 0, left + axis.width - to, height);
    pen.globalAlpha = 1;
    pen.strokeStyle = theme.accent;
    pen.strokeRect(from + 0.5, 0.5, Math.max(2, to - from - 1), height - 1);
    if (view.ms !== null) {
      pen.fillStyle = theme.accent;
      pen.fillRect(axis.x(view.ms) - 0.75, 0, 1.5, height);
    }
  }

  paintGround(width, height) {
    const { store, theme } = this;
    const left = gutter();
    this.stale = false;
    this.axis = new Axis(store.fromMs, store.toMs, left, Math.max(10, width - left - 10));
    const pen = fit(this.ground, width, height);
    this.paintLabel(pen);
    this.paintDecisions(pen, this.axis, height);
    for (const note of store.notes) {
      if (!["bad", "accent"].includes(colourOf(note.kind))) continue;
      pen.fillStyle = theme[colourOf(note.kind)];
      pen.fillRect(this.axis.x(note.ms), 0, 1.5, 5);
    }
  }

  paintLabel(pen) {
    const { theme } = this;
    pen.font = `11px ${theme.font}`;
    pen.textBaseline = "middle";
    pen.fillStyle = theme.muted;
    pen.fillText("all decisions", 10, this.root.clientHeight / 2);
  }

  // Decisions per pixel.
  paintDecisions(pen, axis, height) {
    const { store, theme } = this;
    const wide = Math.floor(axis.width);
    const counts = new Uint32Array(wide);
    let most = 1;
    for (let at = 0; at < store.count; at++) {
      const x = Math.min(wide - 1, Math.max(0, Math.floor((store.ms[at] - axis.from) * axis.scale)));
      if (++counts[x] > most) most = counts[x];
    }
    const brush = new Brush(pen);
    counts.forEach((value, x) => {
      if (value) brush.rect(theme.decode, axis.left + x, height - 3 - (value / most) * (height - 8), 1, (value / most) * (height - 8));
    });
    brush.paint();
  }

  // How far the states are folded: a line along the bottom that grows.
  paintFolded(pen, axis, height) {
    const { store, theme } = this;
    const until = store.status?.folded >= 1 ? store.toMs : store.status?.folded_to_ms ?? -1;
    pen.fillStyle = theme.line_strong;
    pen.fillRect(axis.left, height - 2, axis.width, 2);
    pen.fillStyle = theme.good;
    if (until > axis.from) pen.fillRect(axis.left, height - 2, axis.x(until) - axis.left, 2);
  }

  // Within the frame it is moved, at its edges it is made wider or narrower, elsewhere a new one is drawn.
  press(event) {
    if (event.button !== 0 || !this.axis) return;
    const { view, axis } = this;
    const x = event.offsetX;
    if (x < axis.left) return;
    event.preventDefault();
    const [from, to] = [axis.x(view.from), axis.x(view.to)];
    const edge = Math.abs(x - from) <= EDGE_PX ? "from" : Math.abs(x - to) <= EDGE_PX ? "to" : "";
    const whole = view.from <= this.store.fromMs && view.to >= this.store.toMs;
    const inside = x > from && x < to && !whole;
    const start = { at: axis.ms(x), from: view.from, to: view.to };
    const move = (moved) => {
      const at = axis.ms(moved.offsetX);
      if (edge) view.show(edge === "from" ? at : start.from, edge === "to" ? at : start.to);
      else if (inside) view.show(start.from + at - start.at, start.to + at - start.at);
      else if (Math.abs(moved.offsetX - x) > 3) view.show(Math.min(at, start.at), Math.max(at, start.at));
    };
    const up = (done) => {
      this.root.removeEventListener("pointermove", move);
      if (!edge && !inside && Math.abs(done.offsetX - x) <= 3) {
        const half = whole ? view.span / 8 : view.span / 2;
        view.show(start.at - half, start.at + half);
      }
    };
    this.root.setPointerCapture(event.pointerId);
    this.root.addEventListener("pointermove", move);
    this.root.addEventListener("pointerup", up, { once: true });
  }
}
