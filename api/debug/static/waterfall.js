// Waterfall: the time of a request as one bar to scale, the router's estimate below it, and requests beside it.

import { el, swatch } from "./dom.js";
import { count, duration, short, words } from "./format.js";

const BESIDE_MAX = 12;
const ID_CHARS = 24;
const TICKS_MAX = 5;
const MARK_SHARE = 0.16; // a mark's name takes so much of the bar
const NEAR_SHARE = 1.15; // a little more than to the first token is drawn
const STEPS = [1, 2, 5];

// Parts by kind: the colour, and the words for its time. A kind that is not here is drawn grey, by its own name.
const KINDS = {
  loop: ["earlier", "until it was read"],
  body: ["reading", "reading the body"],
  prepare: ["tokenizing", "tokenizing"],
  queued: ["router", "queued"],
  held: ["held", "held for its worker"],
  route: ["earlier", "being routed"],
  between: ["earlier", "between attempts"],
  link: ["way", "on the way there and back"],
  behind: ["wait", "waiting at the engine"],
  remote: ["remote", "prompt elsewhere"],
  prefill: ["computed", "prefill"],
  unanswered: ["bad", "without a token"],
  decode: ["decode", "decode"],
  written: ["occupied", "written late"],
};
const AT_WORKER = ["link", "behind", "remote", "prefill", "unanswered"];
const colourOf = (kind) => (KINDS[kind] ?? ["earlier"])[0];
const wordsOf = (kind) => (KINDS[kind] ?? ["", words(kind)])[1];

// The course of the request of which `found` is the explanation of the attempt at `at`; null where the log lacks it.
export function waterfall(found, at, store, { near, onNear, choose }) {
  const { course } = found;
  if (!course?.parts.length) return null;
  const first = course.parts.find((part) => part.kind === "prefill")?.to_ms ?? null;
  const scale = scaleOf(course, near ? first : null);
  const others = beside(store, at);
  const origin = store.ms[at] - found.decided_after_ms; // by the log's clock
  return el("section", { class: "waterfall", id: "waterfall", "aria-label": "Course of the request" },
    legend(course, first === null || first > 0.5 * scaleOf(course, null).to ? null : choice(near, onNear)),
    row("", marks(course, scale, first), "marks"),
    row(el("span", {}, "measured"), bars(course.parts, scale), "measured", said(course.parts)),
    course.pauses.length ? row("pause", bars(course.pauses, scale), "pauses", `no output: ${said(course.pauses)}`) : null,
    course.expected.length ? row("expected", bars(course.expected, scale), "ghost", `expected: ${said(course.expected)}`) : null,
    row("", ticks(scale), "ticks"),
    others.length ? el("h4", {}, `Beside it on ${store.workerName(store.worker[at])}`, el("span", { class: "count" }, ` ${count(others.length)}`)) : null,
    nearest(others).map((other) => besideRow(store, other.at, origin, scale, choose)),
    others.length > BESIDE_MAX ? el("p", { class: "fine" }, `and ${count(others.length - BESIDE_MAX)} more`) : null);
}

function row(label, parts, kind, text) {
  const spoken = text ? { role: "img", "aria-label": text, title: text } : {};
  return el("div", { class: `course ${kind}` }, el("span", { class: "label" }, label), el("div", { class: "track", ...spoken }, parts));
}

function scaleOf({ parts, expected }, first) {
  const last = Math.max(1, ...parts.map((part) => part.to_ms), ...expected.map((part) => part.to_ms));
  const from = Math.min(0, parts[0].from_ms);
  return { from, to: first === null ? last : from + Math.max(1, first - from) * NEAR_SHARE };
}

const shareOf = ({ from, to }, ms) => Math.min(1, Math.max(0, (ms - from) / (to - from)));

function piece(colour, from, to, scale) {
  const [left, right] = [shareOf(scale, from), shareOf(scale, to)];
  if (right <= left) return null;
  return el("i", { class: colour, vars: { left: `${100 * left}%`, width: `${100 * (right - left)}%` } });
}

const bars = (parts, scale) => parts.map((part) => piece(colourOf(part.kind), part.from_ms, part.to_ms, scale));

const said = (parts) => parts.map((part) => `${duration(part.to_ms - part.from_ms)} ${wordsOf(part.kind)}`).join(", ");

// How long each part took, and how long it was expected to take.
function legend({ parts, expected, ended }, zoom) {
  const estimated = new Map();
  for (const part of expected) estimated.set(part.kind, (estimated.get(part.kind) ?? 0) + part.to_ms - part.from_ms);
  const spent = new Map();
  for (const part of parts) spent.set(part.kind, (spent.get(part.kind) ?? 0) + part.to_ms - part.from_ms);
  for (const kind of estimated.keys()) if (!spent.has(kind)) spent.set(kind, 0);
  const texts = [...spent].map(([kind, ms]) => swatch(colourOf(kind),
    `${duration(ms)} ${wordsOf(kind)}${estimated.has(kind) ? `, expected ${duration(estimated.get(kind))}` : ""}`));
  return el("div", { class: "keys" }, texts, ended ? null : el("span", {}, "under way when the log ends"), zoom);
}

function choice(near, onNear) {
  const button = (text, value) => el("button", { type: "button", "aria-pressed": near === value, on: { click: () => onNear(value) } }, text);
  return el("span", { class: "group", role: "group", "aria-label": "Part of the course" }, button("whole", false), button("to the first token", true));
}

// Names over the bar, where there is room for them.
function marks({ parts, ended }, scale, first) {
  const sent = parts.find((part) => AT_WORKER.includes(part.kind));
  const named = [["received", parts[0].from_ms], sent && ["sent", sent.from_ms], first !== null && ["first token", first], ended && ["end", parts.at(-1).to_ms]];
  const placed = [];
  for (const [text, ms] of named.filter(Boolean)) {
    const share = shareOf(scale, ms);
    if (ms <= scale.to && placed.every((other) => Math.abs(other.share - share) > MARK_SHARE)) placed.push({ text, share });
  }
  return placed.map(({ text, share }) => el("b", { class: share > 1 - MARK_SHARE ? "right" : "", vars: { left: `${100 * share}%` } }, text));
}

// Times under the bar, from the begin of the course.
function ticks(scale) {
  const fewest = (scale.to - scale.from) / TICKS_MAX;
  const power = 10 ** Math.floor(Math.log10(Math.max(1, fewest)));
  const step = STEPS.map((each) => each * power).find((each) => each >= fewest) ?? 10 * power;
  const found = [];
  for (let ms = 0; ms <= scale.to - scale.from; ms += step) found.push(ms);
  return found.map((ms) => {
    const share = shareOf(scale, scale.from + ms);
    return el("span", { class: share > 0.92 ? "right" : "", vars: { left: `${100 * share}%` } }, ms ? duration(ms) : "0");
  });
}

// Requests whose stay on the worker of `at` overlaps its own: those that were there before its first token first.
export function beside(store, at) {
  const stay = stayOf(store, at);
  const found = [];
  for (let other = 0; other < store.count && store.ms[other] < stay.to; other++) {
    if (other === at || store.worker[other] !== store.worker[at]) continue;
    const { from, to } = stayOf(store, other);
    const both = Math.min(to, stay.to) - Math.max(from, stay.from);
    if (both > 0) found.push({ at: other, early: Math.max(0, Math.min(to, stay.first) - Math.max(from, stay.from)), both });
  }
  return found.sort((one, two) => two.early - one.early || two.both - one.both || one.at - two.at);
}

const nearest = (others) => others.slice(0, BESIDE_MAX).sort((one, two) => one.at - two.at);

function stayOf(store, at) {
  const from = store.ms[at];
  const to = store.endAt(at);
  return { from, to, first: store.ttft_ms[at] < 0 ? to : Math.min(to, Math.max(from, store.cameAt(at) + store.ttft_ms[at])) };
}

function besideRow(store, at, origin, scale, choose) {
  const { from, first, to } = stayOf(store, at);
  const id = store.request[at];
  const name = el("button", { type: "button", class: "link", title: id, data: { at }, on: { click: () => choose(at) } }, short(id, ID_CHARS));
  return row(name, [piece("computed", from - origin, first - origin, scale), piece("soft", first - origin, to - origin, scale)], "other");
}
