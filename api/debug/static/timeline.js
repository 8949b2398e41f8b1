// Timeline: a lane per worker, what happened above them, and the cursor. Drawn on two canvases: one for what was
// recorded, one above it for the cursor, which moves often.

import { Latest } from "./api.js";
import { Axis } from "./axis.js";
import { fit, shorten } from "./canvas.js";
import { perFrame } from "./dom.js";
import { zoneName } from "./format.js";
import { drawHeat, heatMap } from "./heat_map.js";
import { laneRows } from "./lane_rows.js";
import { boxOf, drawLoad, drawSingle, drawSummed, packed, SINGLE_MAX, summed } from "./lanes.js";
import { drawNotes, groups, NOTES_PX } from "./notes.js";

const AXIS_PX = 18;
const HEAD_PX = NOTES_PX + AXIS_PX;
const LOAD_POINTS_MAX = 40_000; // of all workers together
const LOAD_WAIT_MS = 90;
const LOAD_READING_MS = 350;
export const gutter = () => (window.innerWidth < 1180 ? 116 : 150);

export class Timeline {
  constructor(root, store, view, theme) {
    this.root = root;
    [this.base, this.above] = root.querySelectorAll("canvas");
    Object.assign(this, { store, view, theme });
    this.question = new Latest();
    this.loads = new Map();
    this.loadMost = 1;
    this.opened = new Set(); // groups of lanes, by number
    this.marks = null; // decisions that a what-if changes: number to the new worker's id
    this.draw = perFrame(() => this.paint());
    this.drawAbove = perFrame(() => this.paintAbove());
    new ResizeObserver(() => this.draw()).observe(root);
    view.addEventListener("window", () => (this.draw(), this.wantLoad()));
    view.addEventListener("cursor", () => this.drawAbove());
    theme.addEventListener("changed", () => this.draw());
    store.addEventListener("data", () => (this.draw(), this.wantLoad()));
  }

  // What a what-if changes, and the window that it was asked about.
  setMarks(marks, range) {
    this.marks = marks;
    this.range = marks && range;
    this.drawAbove();
  }

  // --- geometry -----------------------------------------------------------------------------------------------

  layout() {
    const { root, store, view } = this;
    this.width = root.clientWidth;
    this.rows = laneRows(store.lanes.map((lane) => lane.name), root.clientHeight - HEAD_PX, this.opened, HEAD_PX);
    this.height = Math.max(root.clientHeight, this.rows.bottom);
    this.axis = new Axis(view.from, view.to, gutter(), Math.max(10, this.width - gutter() - 10));
    const { places } = this.rows;
    const strip = (lane) => (this.single || places[lane].folded ? 0 : places[lane].height >= 34 ? 12 : 7);
    this.geometry = {
      folded: (lane) => places[lane].folded,
      zone: (lane) => (places[lane].folded ? places[lane].height : places[lane].height - strip(lane) - 6),
      top: (lane) => places[lane].top + (places[lane].folded ? 0 : 3),
      strip: (lane) => ({ top: places[lane].top + places[lane].height - strip(lane) - 1, height: strip(lane) }),
    };
  }

  laneAt(y) {
    return this.rows.places.findIndex(({ top, height }) => y >= top && y < top + height);
  }

  // The group at that height is opened, or folded again; also the one of a lane, by its number.
  toggleAt(y) {
    this.toggle(this.rows.groups.findIndex(({ top, height }) => y >= top && y < top + height));
  }

  toggleOf(lane) {
    this.toggle(this.rows.places[lane]?.group ?? -1);
  }

  toggle(group) {
    if (group < 0) return;
    if (!this.opened.delete(group)) this.opened.add(group);
    this.draw();
  }

  // --- drawing ------------------------------------------------------------------------------------------------

  paint() {
    const { store, theme, view } = this;
    // few enough to be drawn one by one: then each lane is theirs alone
    this.single = store.from(view.to) - store.from(view.from) <= SINGLE_MAX;
    this.layout();
    const { axis, geometry } = this;
    const pen = fit(this.base, this.width, this.height);
    this.pen = pen;
    this.paintGround(pen);
    const low = store.from(axis.from - this.longest());
    const high = store.from(axis.to);
    const shown = store.from(axis.from);
    this.found = null;
    if (store.lanes.length && store.count) {
      if (this.single) {
        const late = store.from(axis.to + Math.min(store.waitedMost, this.longest())); // came in time, were sent later
        this.found = packed(store, Math.max(low, shown - 2000), Math.min(late, high + 2000), axis, store.lanes);
        drawSingle(pen, store, theme, axis, geometry, this.found);
      } else {
        drawSummed(pen, store, theme, axis, geometry, summed(store, shown, high, axis, store.lanes));
      }
      this.paintHeat(pen, low, high);
      for (const [worker, reports] of this.single ? [] : this.loads) {
        if (store.laneOf[worker] >= 0 && !geometry.folded(store.laneOf[worker])) drawLoad(pen, theme, axis, geometry, store.laneOf[worker], reports, this.loadMost);
      }
    }
    this.paintEdges(pen);
    this.noteGroups = groups(store.notes, axis);
    drawNotes(pen, theme, axis, this.noteGroups, this.height);
    this.paintAbove();
  }

  paintHeat(pen, low, high) {
    const { store, theme, axis, rows } = this;
    const folded = rows.groups.filter((group) => !group.open);
    if (!folded.length) return;
    const map = heatMap(store, low, high, axis, store.lanes.length, theme);
    for (const group of folded) {
      const { top, height } = rows.places[group.from];
      drawHeat(pen, map, axis, group, top, (group.to - group.from) * height);
    }
  }

  // How far back a decision may have been made whose answer is still under way.
  longest() {
    return Math.min(120_000, this.view.span * 4);
  }

  paintGround(pen) {
    const { store, view, theme, axis, width } = this;
    pen.font = `11px ${theme.font}`;
    pen.textBaseline = "middle";
    pen.fillStyle = theme.surface;
    pen.fillRect(0, 0, width, HEAD_PX);
    const shaded = this.rows.groups.length ? this.rows.groups : this.rows.places;
    shaded.forEach(({ top, height }, at) => {
      pen.fillStyle = at % 2 ? theme.ground : theme.raised;
      pen.fillRect(0, top, width, height);
      pen.fillStyle = theme.line;
      pen.fillRect(0, top, width, 1);
    });
    store.lanes.forEach((lane, at) => this.paintLives(pen, lane, this.rows.places[at]));
    pen.fillStyle = theme.line;
    for (const [ms, text] of view.from > 0 ? axis.ticks() : []) {
      const x = Math.round(axis.x(ms));
      pen.fillStyle = theme.line;
      pen.fillRect(x, NOTES_PX, 1, this.height);
      pen.fillStyle = theme.muted;
      if (x + 60 < width) pen.fillText(text, x + 4, NOTES_PX + AXIS_PX / 2);
    }
    pen.fillStyle = theme.muted;
    pen.fillText("events", 10, NOTES_PX / 2 + 1);
    pen.fillText(zoneName(), 10, NOTES_PX + AXIS_PX / 2);
  }

  // A worker of that name was not there before its first life, between two, and after its last.
  paintLives(pen, lane, { top, height }) {
    const { store, theme, axis } = this;
    let since = -Infinity;
    const gone = [];
    for (const number of lane.workers) {
      const life = store.workers[number];
      if (life.from_ms > since) gone.push([since, life.from_ms]);
      since = life.to_ms < 0 ? Infinity : life.to_ms;
    }
    if (since < Infinity) gone.push([since, Infinity]);
    for (const [from, to] of gone) {
      const left = Math.max(axis.left, axis.x(Math.max(from, axis.from)));
      const right = Math.min(axis.left + axis.width, axis.x(Math.min(to, axis.to)));
      if (right - left < 1 || (from === -Infinity && to <= store.fromMs)) continue;
      pen.fillStyle = theme.dead;
      pen.fillRect(left, top + 1, right - left, height - 1);
    }
  }

  paintEdges(pen) {
    const { theme, axis, width } = this;
    pen.fillStyle = theme.ground;
    pen.fillRect(axis.left + axis.width, HEAD_PX, width, this.height);
    pen.fillStyle = theme.line_strong;
    pen.fillRect(axis.left - 1, 0, 1, this.height);
    pen.fillRect(0, HEAD_PX - 1, width, 1);
    pen.fillRect(0, this.rows.bottom, width, 1);
  }

  paintAbove() {
    if (!this.axis) return;
    const { view, theme, axis } = this;
    const pen = fit(this.above, this.width, this.height);
    pen.font = `11px ${theme.font}`;
    pen.textBaseline = "middle";
    if (this.marks) this.paintMarks(pen);
    const x = view.ms === null ? -1 : axis.x(view.ms);
    if (x >= axis.left && x <= axis.left + axis.width) {
      pen.fillStyle = theme.accent;
      pen.fillRect(Math.round(x) - 0.5, NOTES_PX, 1.5, this.rows.bottom - NOTES_PX);
      this.paintChosen(pen, x);
    }
    this.paintNames(pen);
  }

  // The decision at the cursor, in the lane that it went to, and where a what-if would have sent it.
  paintChosen(pen, x) {
    const { store, view, theme } = this;
    const lane = store.laneOf[store.worker[view.index]];
    const { top, zone } = { top: this.geometry.top(lane), zone: this.geometry.zone(lane) };
    const bar = this.geometry.folded(lane) ? null : this.found?.bars.find((each) => each.at === view.index);
    pen.strokeStyle = theme.accent;
    pen.lineWidth = 2;
    if (bar) {
      const box = boxOf(bar, this.found.rows, this.axis, this.geometry);
      const right = Math.min(box.x + box.width + 1, this.axis.left + this.axis.width + 4);
      pen.lineWidth = 1.5;
      pen.strokeRect(box.x - 1, box.y - 1.5, right - box.x + 1, box.height + 2.5);
    }
    pen.fillStyle = theme.accent;
    triangle(pen, x, top - 3, 5, 1);
    const to = this.marks?.get(view.n);
    const other = to === undefined ? -1 : store.laneOf[store.workerById.get(to)] ?? -1;
    if (other >= 0 && other !== lane) {
      pen.strokeStyle = pen.fillStyle = theme.changed;
      const [start, end] = [top + zone / 2, this.geometry.top(other) + this.geometry.zone(other) / 2];
      pen.beginPath();
      pen.moveTo(x, start);
      pen.lineTo(x + 9, start);
      pen.lineTo(x + 9, end);
      pen.lineTo(x + 2, end);
      pen.stroke();
      triangle(pen, x + 1, end, 4, 0);
    }
  }

  paintMarks(pen) {
    const { store, theme, axis } = this;
    pen.fillStyle = theme.changed;
    const ends = [this.range.from_n, this.range.to_n].map((n) => store.indexOf(n));
    const [first, last] = ends.map((at) => axis.x(store.ms[at]));
    const [from, to] = [Math.max(axis.left, first), Math.min(axis.left + axis.width, last)];
    if (ends.every((at) => at >= 0) && to > from) pen.fillRect(from, HEAD_PX - 3, to - from, 2);
    for (const n of this.marks.keys()) {
      const at = store.indexOf(n);
      if (at < 0) continue;
      const x = axis.x(store.ms[at]);
      if (x < axis.left || x > axis.left + axis.width) continue;
      const lane = store.laneOf[store.worker[at]];
      pen.fillRect(Math.round(x), this.geometry.top(lane) + this.geometry.zone(lane) - 1, 1.5, 4);
    }
  }

  paintNames(pen) {
    const { store, theme, view, rows } = this;
    const wide = gutter() - 18;
    const chosen = view.index >= 0 ? store.laneOf[store.worker[view.index]] : -1;
    for (const group of rows.groups) {
      pen.font = `600 11px ${theme.font}`;
      pen.fillStyle = chosen >= group.from && chosen < group.to ? theme.accent : theme.text;
      pen.fillText(shorten(pen, `${group.open ? "▾" : "▸"} ${group.name}`, wide + 10), 6, group.top + 11);
    }
    store.lanes.forEach((lane, at) => {
      const { top, height, folded } = rows.places[at];
      if (folded) return;
      const load = this.loadAt(lane, view.ms ?? store.toMs);
      const two = height >= 30;
      pen.fillStyle = chosen === at ? theme.accent : theme.text;
      pen.font = `600 11px ${theme.font}`;
      const name = lane.model ? `${lane.name} · ${lane.model}` : lane.name;
      pen.fillText(shorten(pen, name, two ? wide : wide - 26), 10, top + (two ? height / 2 - 7 : height / 2));
      pen.font = `11px ${theme.font}`;
      pen.fillStyle = load.gone ? theme.bad : theme.muted;
      if (two) pen.fillText(shorten(pen, load.text, wide), 10, top + height / 2 + 7);
      else rightText(pen, load.brief, gutter() - 8, top + height / 2);
    });
  }

  // --- load ---------------------------------------------------------------------------------------------------

  wantLoad() {
    clearTimeout(this.loadTimer);
    this.loadTimer = setTimeout(() => this.readLoad(), this.store.complete ? LOAD_WAIT_MS : LOAD_READING_MS);
  }

  readLoad() {
    const { store, view } = this;
    if (!store.count && !store.workers.length) return;
    const window_ = { from_ms: Math.max(0, Math.floor(view.from)), to_ms: Math.max(1, Math.ceil(view.to)) };
    const points = Math.max(50, Math.floor(Math.min((this.axis?.width ?? 800) / 2, LOAD_POINTS_MAX / Math.max(1, store.workers.length))));
    // the store tells of a server that is away
    this.question.ask("/load", { query: { ...window_, points } }, (found) => this.showLoad(found), () => {});
  }

  showLoad(found) {
    this.loads = new Map(found.workers.map((each) => [each.worker, { ...each, until: this.untilOf(each) }]));
    this.loadMost = Math.max(1, ...found.workers.map((each) => Math.max(...each.running.map((value, at) => value + each.waiting[at]))));
    this.draw();
  }

  untilOf(reports) {
    const life = this.store.workers[reports.worker];
    return life && life.to_ms >= 0 ? life.to_ms : this.store.toMs;
  }

  // As the newest report until then says it; reports are known of what is shown.
  loadAt(lane, ms) {
    const { from, to } = this.view;
    for (const number of lane.workers) {
      const life = this.store.workers[number];
      const reports = this.loads.get(number);
      if (life.from_ms <= ms && (life.to_ms < 0 || ms < life.to_ms)) {
        if (ms < from || ms > to) return { text: "–", brief: "–" };
        const at = reports ? reports.ms.findLastIndex((each) => each <= ms) : -1;
        if (at < 0) return { text: "no report yet", brief: "–" };
        const share = Math.round((100 * reports.blocks_used[at]) / Math.max(1, reports.blocks_total[at]));
        const [running, waiting] = [reports.running[at], reports.waiting[at]];
        const waits = waiting ? ` · ${waiting} wait` : "";
        return { text: `${running} run${waits} · ${share} %`, brief: `${running}${waiting ? `+${waiting}` : ""}` };
      }
    }
    return { text: "not there", brief: "✕", gone: true };
  }

  // --- what is where ------------------------------------------------------------------------------------------

  // The decision that is meant by a place: the bar under it, or the nearest in its lane, or in time.
  hit(x, y) {
    const { store, axis } = this;
    const lane = this.laneAt(y);
    if (!store.count || x < axis.left) return -1;
    if (this.found && lane >= 0 && !this.geometry.folded(lane)) {
      const under = this.found.bars.find((bar) => {
        if (bar.lane !== lane) return false;
        const box = boxOf(bar, this.found.rows, axis, this.geometry);
        return x >= box.x - 2 && x <= box.x + box.width + 2 && y >= box.y - 1 && y <= box.y + box.height + 1;
      });
      if (under) return under.at;
    }
    return lane < 0 ? store.near(axis.ms(x)) : this.nearestIn(lane, axis.ms(x));
  }

  nearestIn(lane, ms) {
    const { store } = this;
    const reach = 40 / this.axis.scale;
    const middle = store.near(ms);
    for (let away = 0; away < store.count; away++) {
      const [before, after] = [middle - away, middle + away];
      const near = [before, after].filter((at) => at >= 0 && at < store.count && Math.abs(store.ms[at] - ms) <= reach);
      if (!near.length) break;
      for (const at of near) if (store.laneOf[store.worker[at]] === lane) return at;
    }
    return middle;
  }

  noteAt(x, y) {
    if (y > NOTES_PX) return null;
    return this.noteGroups?.find((group) => Math.abs(group.x - x) <= 7) ?? null;
  }
}

function triangle(pen, x, y, size, down) {
  pen.beginPath();
  if (down) {
    pen.moveTo(x - size, y - size / 2);
    pen.lineTo(x + size, y - size / 2);
    pen.lineTo(x, y + size);
  } else {
    pen.moveTo(x + size + 2, y - size);
    pen.lineTo(x + size + 2, y + size);
    pen.lineTo(x, y);
  }
  pen.fill();
}

function rightText(pen, text, right, y) {
  pen.textAlign = "right";
  pen.fillText(text, right, y);
  pen.textAlign = "left";
}
