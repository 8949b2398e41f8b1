// Distribution: first tokens as recorded and in a scenario, one histogram over the other, on one scale of ratios.

import { el, swatch } from "./dom.js";
import { count, duration } from "./format.js";

const BINS = 48;
const TICKS = [1, 2, 5];

// Both histograms, each with its median and its 99th percentile; null of nothing.
export function distribution({ recorded, new: after }) {
  if (!recorded.length) return null;
  const all = [...recorded, ...after].map(atLeastOne);
  const scale = { from: Math.log(Math.min(...all)), to: Math.log(Math.max(...all) * 1.02) };
  const [before, then] = [recorded, after].map((values) => binned(values, scale));
  const most = Math.max(...before, ...then);
  const half = (kind, text, values, bins) => {
    const sorted = Float64Array.from(values).sort();
    const [p50, p99] = [0.5, 0.99].map((share) => sorted[Math.ceil(share * sorted.length) - 1]);
    const said = `${text}: p50 ${duration(p50)}, p99 ${duration(p99)}`;
    return el("div", { class: "half", role: "img", "aria-label": said, title: said },
      bins.map((value) => el("i", { class: kind, vars: { height: `${(100 * value) / most}%` } })),
      mark("p50", p50, scale), mark("p99", p99, scale), el("span", {}, said));
  };
  return el("div", { class: "spread", id: "spread" },
    el("p", { class: "keys" }, `First tokens of ${count(recorded.length)} requests:`, swatch("before", "recorded"), swatch("after", "in this scenario, estimated")),
    half("before", "recorded", recorded, before), half("after", "then", after, then), ticks(scale));
}

const atLeastOne = (ms) => Math.max(1, ms);

const shareOf = (scale, ms) => (Math.log(atLeastOne(ms)) - scale.from) / Math.max(1e-9, scale.to - scale.from);

const mark = (kind, ms, scale) => el("b", { class: kind, vars: { left: `${100 * shareOf(scale, ms)}%` } });

function binned(values, scale) {
  const bins = new Array(BINS).fill(0);
  for (const ms of values) bins[Math.min(BINS - 1, Math.max(0, Math.floor(BINS * shareOf(scale, ms))))] += 1;
  return bins;
}

function ticks(scale) {
  const found = [];
  for (let power = 1; power <= Math.exp(scale.to); power *= 10) found.push(...TICKS.map((each) => each * power));
  const inside = found.filter((ms) => shareOf(scale, ms) > 0.03 && shareOf(scale, ms) < 0.97);
  const shown = inside.length > 8 ? inside.filter((ms) => /^1/.test(String(ms))) : inside;
  return el("div", { class: "scale" }, shown.map((ms) => el("span", { vars: { left: `${100 * shareOf(scale, ms)}%` } }, duration(ms))));
}
