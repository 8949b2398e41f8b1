// Sliders: the settings that a what-if may change. One that was not touched stays as it was recorded.

import { el, fill } from "./dom.js";
import { words } from "./format.js";

const BY_BLOCKS = ["kv", "approximate"];
const OF_POLICIES = [
  [BY_BLOCKS, "prefill_weight", 0, 8, 0.05, "price of a block that must be computed"],
  [BY_BLOCKS, "decode_weight", 0, 4, 0.02, "price of an active block"],
  [BY_BLOCKS, "request_weight", 0, 50, 0.5, "price of an active request"],
  [["time"], "own_weight", 0, 16, 0.1, "price of a millisecond of the request's own prefill"],
  [["time"], "own_request_weight", 0, 1, 0.01, "the same once more for each active request, which it holds up"],
  [["time"], "active_weight", 0, 1, 0.01, "price of the active blocks, for each token that fits in, in its prefills; more among talks"],
  [["time"], "reuse_weight", 0, 2, 0.05, "price of the talks that live there: of a prefill of the whole prompt, each time that the reuse there doubles"],
  [["time"], "delay_weight", 0, 4, 0.05, "price of delays where talks fill the workers: its own twice, and that of each request that it holds up"],
  [["session"], "session_wait_max_ms", 0, 5000, 10, "with a longer wait for prefills the session's next worker is taken"],
  [["approximate"], "approximate_ttl_s", 0, 1800, 5, "a block counts as cached where it was sent for so many seconds; 0 for ever"],
];
const FIRST = [
  ["temperature", 0, 2, 0.05, "0 takes the cheapest; above, dearer ones get their share"],
  ["tie_margin", 0, 50, 0.5, "costs this close count as equal, in blocks or milliseconds"],
  ["delay_ms", 0, 2000, 10, "every event is known so much later", "log seen later"],
];
const MORE = [
  ["device_credit", 0, 1, 0.05, "what a block cached on the device takes off"],
  ["host_credit", 0, 1, 0.05, "the same for one in host memory"],
  ["disk_credit", 0, 1, 0.05, "on disk"],
  ["remote_credit", 0, 1, 0.05, "elsewhere"],
  ["pending_credit", 0, 1, 0.05, "for one that is being computed for another request"],
  ["stale_credit", 0, 1, 0.05, "all credit of a worker whose reports stopped is multiplied by this"],
  ["waiting_max", 1, 256, 1, "a worker with so many waiting is left out"],
];

export class Sliders {
  constructor(root, changed) {
    this.changed = changed;
    this.set = {}; // what was touched
    this.recorded = {};
    this.without = new Set();
    this.inputs = new Map();
    this.policy = el("select", { id: "set-policy", on: { change: () => this.choose("policy", this.policy.value) } });
    this.workers = el("div", { class: "chips", role: "group", "aria-label": "Workers to leave out" });
    const policy = el("div", { class: "slider" }, el("label", { htmlFor: "set-policy" }, "policy"), this.policy, el("span", {}));
    const ofPolicies = OF_POLICIES.map(([policies, ...spec]) => this.slider(...spec, undefined, policies));
    fill(root,
      el("div", { class: "sliders" }, policy, ofPolicies, FIRST.map((spec) => this.slider(...spec))),
      el("div", { class: "slider wide" }, el("span", { class: "label" }, "without"), this.workers),
      el("details", {}, el("summary", {}, "credits and limits"), el("div", { class: "sliders" }, MORE.map((spec) => this.slider(...spec)))));
  }

  slider(name, min, max, step, title, label = words(name), policies = null) {
    const id = `set-${name}`;
    const value = el("output", { htmlFor: id });
    const back = el("button", { type: "button", class: "link back", "aria-label": `${label}: as recorded`, title: "as recorded", hidden: true, on: { click: () => this.reset(name) } }, "×");
    const input = el("input", { type: "range", id, min, max, step, title, on: { input: () => this.choose(name, Number(input.value)) } });
    const row = el("div", { class: "slider" }, el("label", { htmlFor: id, title }, label), input, el("span", { class: "value" }, value, back));
    this.inputs.set(name, { input, value, back, step, row, policies });
    return row;
  }

  get touched() {
    return Object.keys(this.set).length > 0 || this.without.size > 0;
  }

  // What the server is asked, beside the window.
  get scenario() {
    const { delay_ms: delay = 0, ...settings } = this.set;
    return { settings, without: [...this.without], delay_ms: delay };
  }

  // In words, as people say it.
  get label() {
    const { delay_ms: delay, ...settings } = this.set;
    const texts = Object.entries(settings).map(([name, value]) => `${words(name)} ${value}`);
    if (this.without.size) texts.push(`no ${[...this.without].join(", ")}`);
    if (delay) texts.push(`the log ${delay} ms later`);
    return texts.join(", ");
  }

  choose(name, value) {
    if (value === (this.recorded[name] ?? 0)) delete this.set[name];
    else this.set[name] = value;
    this.show();
    this.changed();
  }

  reset(name) {
    delete this.set[name];
    this.show();
    this.changed();
  }

  clear() {
    this.set = {};
    this.without.clear();
    this.show();
    this.changed();
  }

  // What the decision at the cursor was recorded with.
  setRecorded(settings) {
    this.recorded = settings;
    this.show();
  }

  setPolicies(policies) {
    if (this.policy.options.length === policies.length) return;
    fill(this.policy, policies.map((each) => el("option", { value: each }, each)));
    this.show();
  }

  setWorkers(names) {
    if (this.workers.dataset.names === names.join()) return;
    this.workers.dataset.names = names.join();
    fill(this.workers, names.map((name) => {
      const toggle = (event) => {
        if (!this.without.delete(name)) this.without.add(name);
        event.currentTarget.setAttribute("aria-pressed", String(this.without.has(name)));
        this.changed();
      };
      return el("button", { type: "button", class: "chip", "aria-pressed": String(this.without.has(name)), on: { click: toggle } }, name);
    }));
  }

  show() {
    const inForce = this.set.policy ?? this.recorded.policy ?? "kv";
    for (const [name, { input, value, back, step, row, policies }] of this.inputs) {
      const known = this.set[name] ?? this.recorded[name] ?? 0;
      const touched = name in this.set;
      if (document.activeElement !== input || Number(input.value) !== known) input.value = String(known);
      value.textContent = step < 1 ? String(Number(Number(known).toFixed(3))) : String(known);
      if (name === "delay_ms") value.textContent += " ms";
      value.className = touched ? "touched" : "";
      back.hidden = !touched;
      row.hidden = policies !== null && !policies.includes(inForce) && !touched; // what another policy goes by
    }
    this.policy.value = inForce;
    this.policy.className = "policy" in this.set ? "touched" : "";
    for (const chip of this.workers.children) chip.setAttribute("aria-pressed", String(this.without.has(chip.textContent)));
  }
}
