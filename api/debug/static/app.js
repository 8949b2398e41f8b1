// The page: what is read, how it is looked at, and the parts that show it.

import { UrlState } from "./url_state.js";
import { Decision } from "./decision.js";
import { byId, el, fill, renew, swatch } from "./dom.js";
import { Events } from "./events.js";
import { Filters } from "./filters.js";
import { hearDownload } from "./download.js";
import { bytes, clock, count, day, duration, moment, percent, setLocal, zoneName } from "./format.js";
import { hearKeys, listKeys } from "./keys.js";
import { List } from "./list.js";
import { Overview } from "./overview.js";
import { hearPointer } from "./pointer.js";
import { Planner } from "./planner.js";
import { Replicas } from "./replicas.js";
import { Cache } from "./cache.js";
import { Search } from "./search.js";
import { hearSplit } from "./split.js";
import { State } from "./state.js";
import { Store } from "./store.js";
import { Tabs } from "./tabs.js";
import { Trends } from "./trends.js";
import { Theme } from "./theme.js";
import { Timeline } from "./timeline.js";
import { View } from "./view.js";
import { WhatIf } from "./whatif.js";

const store = new Store();
const view = new View(store);
const theme = new Theme();
const say = (text) => (byId("said").textContent = text);
const timeline = new Timeline(byId("lanes"), store, view, theme);
new Overview(byId("overview"), store, view, theme);
new Trends(byId("trends"), store, view, theme);
const list = new List(byId("list"), byId("heads"), byId("list-count"), byId("filter"), new Filters(byId("filters"), store), store, view);
const decision = new Decision(byId("decision"), store, view);
new State(byId("state"), byId("state-when"), byId("state-of"), store, view);
const whatIf = new WhatIf(byId("whatif"), store, view);
const replicas = new Replicas(byId("replicas"), store, view);
const cache = new Cache(byId("cache"), store);
const planner = new Planner(byId("planner"), store, theme);
const events = new Events(byId("events"), store, view);
const tabs = new Tabs(document.querySelector("[role=tablist]"));
new Search(byId("search"), byId("found"), store, view, say);
const address = new UrlState(store, view, say);

// --- the parts know of each other only here ------------------------------------------------------------------------

tabs.addEventListener("opened", ({ detail }) => {
  if (detail === "replicas") replicas.open();
  if (detail === "cache") cache.open();
  if (detail === "planner") planner.open();
  if (detail === "events") events.open();
});

whatIf.addEventListener("outcome", () => {
  const { marks, changes, outcome } = whatIf;
  timeline.setMarks(marks, outcome);
  list.marks = marks;
  list.refilter(false);
  decision.setChanges(changes, outcome?.label ?? "");
});

decision.addEventListener("shown", ({ detail }) => whatIf.sliders.setRecorded(detail.settings));

hearPointer(byId("lanes"), byId("tip"), timeline, store, view, (note) => {
  tabs.openById("events");
  events.go(note);
});

hearKeys(view, {
  search: () => byId("search").focus(),
  help: () => byId("help").showModal(),
  follow: () => !byId("follow").hidden && view.follow(!view.following),
  group: () => view.index >= 0 && timeline.toggleOf(store.laneOf[store.worker[view.index]]),
  tab: (number) => tabs.open(number),
  event: (by) => {
    const note = events.step(by);
    say(note ? `${moment(note.ms, store.dated)} ${note.text}` : "no further event");
  },
});

// --- buttons -------------------------------------------------------------------------------------------------------

listKeys();
hearSplit(byId("split"));
hearDownload(byId("download"), store, view, say);
byId("help-button").addEventListener("click", () => byId("help").showModal());
byId("zoom-in").addEventListener("click", () => view.zoom(0.5));
byId("zoom-out").addEventListener("click", () => view.zoom(2));
byId("zoom-fit").addEventListener("click", () => view.fit());
byId("zone").addEventListener("click", () => showZone(zoneName() === "UTC"));
byId("follow").addEventListener("click", () => view.follow(!view.following));
fill(byId("legend"), swatch("cached", "cached tokens"), swatch("computed", "computed, or waiting for the first"), swatch("router", "in the router"), swatch("decode", "running"),
  swatch("wait", "waiting"), swatch("occupied", "cache in use"), swatch("bad", "failed"));

// All times anew, in this machine's zone or in UTC.
function showZone(local) {
  setLocal(local);
  byId("zone").textContent = zoneName();
  byId("zone").setAttribute("aria-pressed", String(local));
  store.tell("data");
  view.tell("cursor");
}

// --- where we are --------------------------------------------------------------------------------------------------

function showStatus() {
  const now = store.status;
  byId("where").textContent = now.namespace ? `${now.namespace} · ${now.source}` : now.source;
  document.title = `${now.namespace || now.source} · Contrail`;
  const badge = (kind, text, title) => el("span", { class: `badge ${kind}`, title }, text);
  renew(byId("badges"),
    store.trouble ? badge("bad", "no answer", store.trouble.message)
      : !now.live ? badge("", "export", "a file; it does not change")
      : now.away ? badge("bad", "log away", now.away) : badge("live", "live", "the log is followed, second by second"),
    now.proved ? badge("good", "proved", "every message was checked with the deployment's key") : badge("", "not proved", "without the deployment's key chains are taken as they are told"),
    now.redacted ? badge("", "redacted", "names were removed") : null,
    now.price_remarks.length ? badge("bad", "prefill price", now.price_remarks.join(" ")) : null);
  const reading = !store.count && (now.copied || now.scanned < 1 || !store.complete) && !now.error;
  if (reading) fill(byId("totals"), "loading …");
  else fill(byId("totals"), counted(now.decisions, "decision"), ", ", counted(store.lanes.length, "worker"), ", ",
    counted(new Set(store.replicas.map((each) => each.name || each.id)).size, "replica"),
    now.from_ms >= 0 ? `, ${day(now.from_ms)} ${clock(now.from_ms, 0)} to ${store.dated ? `${day(now.to_ms)} ` : ""}${clock(now.to_ms, 0)} ${zoneName()}` : "");
  byId("follow").hidden = !now.live;
  byId("tab-planner").hidden = !now.planner;
  showProgress(now);
  showEmpty(now);
}

function showProgress(now) {
  const share = now.scanned < 1 ? now.scanned : now.folded;
  byId("progress").hidden = share >= 1 && !now.copied;
  byId("progress-bar").style.setProperty("width", percent(now.copied ? now.copied[0] / Math.max(1, now.copied[1]) : share));
  const parts = [
    now.copied ? `copying the log: ${count(now.copied[0])} of ${count(now.copied[1])} messages` : null,
    !now.copied && now.scanned < 1 ? `reading: ${percent(now.scanned)}` : null,
    now.scanned >= 1 && now.folded < 1 ? `folding states: ${percent(now.folded)}` : null,
    now.scanned >= 1 && now.folded >= 1 ? "all states folded" : null,
    now.keyframes ? `${count(now.keyframes)} keyframes, ${bytes(now.keyframes_bytes)}` : null,
    now.jump_ms ? `last jump ${duration(now.jump_ms)}` : null,
    now.skipped ? `${count(now.skipped)} older messages are not shown` : null,
    now.program,
  ];
  byId("footing").textContent = parts.filter(Boolean).join(" · ");
  if (now.error) say(now.error);
}

// What to do where there is nothing to see; how far it is, while it is read.
function showEmpty(now) {
  const reading = !now.error && (now.copied || now.scanned < 1 || !store.complete);
  byId("empty").hidden = store.count > 0;
  byId("empty-text").textContent = now.error || (now.copied ? "Loading: the log is being copied …" : reading ? "Loading: the recording is read …"
    : now.live ? "No request yet: send one to /v1/chat/completions, and its decision is drawn here." : "This recording holds no decision: export a longer range of the log.");
  byId("loading").hidden = !reading;
  byId("loading").value = now.copied ? now.copied[0] / Math.max(1, now.copied[1]) : now.scanned;
}

function showCursor() {
  const lanes = byId("lanes");
  lanes.setAttribute("aria-valuemax", String(Math.max(0, store.count - 1)));
  if (view.index < 0) return;
  const at = view.index;
  lanes.setAttribute("aria-valuenow", String(at));
  lanes.setAttribute("aria-valuetext", `${moment(store.ms[at], store.dated)}, ${store.request[at]} to ${store.workerName(store.worker[at])}`);
  fill(byId("readout"), el("b", {}, moment(store.ms[at], store.dated)), ` ${zoneName()} · decision ${count(at + 1)} of ${count(store.count)} · ${duration(view.span)} shown`);
}

store.addEventListener("status", showStatus);
store.addEventListener("data", () => {
  address.go();
  view.grown();
  showStatus();
  showCursor();
});
store.addEventListener("reset", () => {
  address.restore();
  view.reset();
});
store.addEventListener("trouble", ({ detail }) => {
  say(detail.message);
  if (store.status) showStatus();
  byId("empty").hidden = store.count > 0;
  byId("empty-text").textContent = detail.message;
  byId("loading").hidden = true;
});
store.addEventListener("well", () => {
  say("");
  showStatus();
});
view.addEventListener("cursor", showCursor);
view.addEventListener("window", showCursor);
view.addEventListener("following", () => byId("follow").setAttribute("aria-pressed", String(view.following)));

store.follow();

function counted(number, noun) {
  return [el("b", {}, count(number)), ` ${noun}${number === 1 ? "" : "s"}`];
}
