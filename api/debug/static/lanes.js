// How decisions are drawn in a lane: one by one where there are few, else summed up per pixel.

import { Brush } from "./canvas.js";

export const SINGLE_MAX = 900;
const ROW_MAX_PX = 7;
const COLUMN_MAX_PX = 6;
const COLUMN_HOLDS = 2;

// Where each single decision is drawn: packed into as few rows per lane as they overlap.
export function packed(store, low, high, axis, lanes) {
  const bars = [];
  const ends = lanes.map(() => []);
  for (let at = low; at < high; at++) {
    const lane = store.laneOf[store.worker[at]];
    const start = store.ms[at] - store.waited_ms[at];
    const end = Math.max(store.endAt(at), axis.ms(axis.x(store.ms[at]) + 3));
    const free = ends[lane];
    let row = free.findIndex((until) => until <= start);
    if (row < 0) row = free.length;
    free[row] = end;
    bars.push({ at, lane, row, start, end });
  }
  return { bars, rows: ends.map((each) => Math.max(1, each.length)) };
}

export function drawSingle(pen, store, theme, axis, geometry, found) {
  const brush = new Brush(pen);
  const right = axis.left + axis.width;
  for (const bar of found.bars) {
    if (geometry.folded(bar.lane)) continue;
    const box = boxOf(bar, found.rows, axis, geometry);
    if (box.x > right || box.x + box.width < axis.left) continue;
    const first = store.ttft_ms[bar.at];
    const high = box.height - Math.min(0.75, box.height * 0.25);
    const sent = axis.x(store.ms[bar.at]); // before that it was in the router
    const router = Math.max(axis.left, box.x);
    if (sent > router) brush.rect(theme.router, router, box.y, Math.min(sent, right) - router, high);
    const left = Math.max(axis.left, sent);
    const end = box.x + box.width;
    const told = first >= 0 ? Math.min(end, Math.max(sent + 2, axis.x(store.cameAt(bar.at) + first))) : end;
    if (told > left) brush.rect(store.failed(bar.at) ? theme.bad : theme.computed, left, box.y, told - left, high);
    const from = Math.max(left, told);
    const to = Math.min(right, end);
    if (to > from) brush.rect(theme.soft, from, box.y, to - from, high);
  }
  brush.paint();
}

export function boxOf(bar, rows, axis, geometry) {
  const height = Math.min(ROW_MAX_PX, geometry.zone(bar.lane) / rows[bar.lane]);
  const x = axis.x(bar.start);
  return { x, y: geometry.top(bar.lane) + bar.row * height, width: Math.max(2, axis.x(bar.end) - x), height };
}

// Prompt tokens per column and lane, of which so many were cached. Columns are as wide as it takes to hold a few.
export function summed(store, low, high, axis, lanes) {
  const column = Math.max(1, Math.min(COLUMN_MAX_PX, Math.round((COLUMN_HOLDS * lanes.length * axis.width) / Math.max(1, high - low))));
  const width = Math.max(1, Math.ceil(axis.width / column));
  const all = new Float32Array(lanes.length * width);
  const cached = new Float32Array(lanes.length * width);
  const bad = new Uint8Array(lanes.length * width);
  let most = 1;
  for (let at = low; at < high; at++) {
    const lane = store.laneOf[store.worker[at]];
    const x = Math.min(width - 1, Math.max(0, Math.floor(((store.ms[at] - axis.from) * axis.scale) / column)));
    const place = lane * width + x;
    all[place] += store.prompt_tokens[at];
    cached[place] += Math.min(store.cachedOf(at), store.prompt_tokens[at]);
    if (all[place] > most) most = all[place];
    if (store.failed(at)) bad[place] = 1;
  }
  return { column, width, all, cached, bad, most: usual(all, most) };
}

// A height that one in a hundred columns passes, so that a single peak does not flatten the rest.
function usual(all, most) {
  const filled = all.filter((value) => value > 0).sort();
  return filled.length ? Math.max(filled[Math.floor(filled.length * 0.99)], most / 8) : 1;
}

export function drawSummed(pen, store, theme, axis, geometry, found) {
  const brush = new Brush(pen);
  const lanes = found.all.length / found.width;
  for (let lane = 0; lane < lanes; lane++) {
    if (geometry.folded(lane)) continue;
    const zone = geometry.zone(lane);
    const bottom = geometry.top(lane) + zone;
    for (let number = 0; number < found.width; number++) {
      const place = lane * found.width + number;
      const left = axis.left + number * found.column;
      const wide = Math.min(found.column, axis.left + axis.width - left);
      if (!found.all[place]) continue;
      const high = Math.max(1, Math.min(1, found.all[place] / found.most) * zone);
      const kept = high * (found.cached[place] / found.all[place]);
      if (kept > 0) brush.rect(theme.cached, left, bottom - kept, wide, kept);
      if (high > kept) brush.rect(theme.computed, left, bottom - high, wide, high - kept);
      if (found.bad[place]) brush.rect(theme.bad, left, geometry.top(lane), Math.max(2, wide), 4);
    }
  }
  brush.paint();
}

// What a worker reported of itself: the cache in use behind, running and waiting requests in front.
export function drawLoad(pen, theme, axis, geometry, lane, reports, most) {
  const { top, height } = geometry.strip(lane);
  const bottom = top + height;
  const right = axis.left + axis.width;
  const steps = reports.ms.map((ms, at) => [
    Math.max(axis.left, axis.x(ms)),
    Math.min(right, at + 1 < reports.ms.length ? axis.x(reports.ms[at + 1]) : Math.max(axis.x(ms) + 1, axis.x(reports.until))),
  ]);
  const area = (colour, from, share) => {
    pen.fillStyle = colour;
    steps.forEach(([start, end], at) => {
      const value = Math.min(1, share(at)) * height;
      const below = Math.min(1, from(at)) * height;
      if (end > start && value > 0) pen.fillRect(start, bottom - below - value, end - start, value);
    });
  };
  area(theme.occupied, () => 0, (at) => reports.blocks_used[at] / Math.max(1, reports.blocks_total[at]));
  area(theme.decode, () => 0, (at) => reports.running[at] / most);
  area(theme.wait, (at) => reports.running[at] / most, (at) => reports.waiting[at] / most);
}
