// Filters: which tenant, session, model, worker and outcome the list is of. A kind with one value is not offered.

import { el, fill } from "./dom.js";
import { natural, words } from "./format.js";

const UNDER_WAY = "under way";
const SESSIONS_MAX = 2_000; // the first ones: a longer list of options helps no reader

// By kind: the value of a decision.
const KINDS = {
  tenant: (store, at) => store.tenant[at],
  session: (store, at) => store.session[at],
  model: (store, at) => store.workers[store.worker[at]]?.model ?? "",
  worker: (store, at) => store.workerName(store.worker[at]),
  outcome: (store, at) => words(store.outcomeOf(at) || UNDER_WAY),
};

export class Filters extends EventTarget {
  constructor(root, store) {
    super();
    this.store = store;
    this.selects = new Map(Object.keys(KINDS).map((kind) => [kind, el("select", { "aria-label": `List only the ${kind}`, hidden: true, on: { change: () => this.dispatchEvent(new CustomEvent("changed")) } })]));
    this.values = new Map(Object.keys(KINDS).map((kind) => [kind, new Set()]));
    this.seen = 0;
    fill(root, [...this.selects.values()]);
    store.addEventListener("data", () => this.offer());
    store.addEventListener("reset", () => this.forget());
  }

  forget() {
    this.seen = 0;
    for (const values of this.values.values()) values.clear();
  }

  // What there is to choose from, in the decisions so far.
  offer() {
    const { store } = this;
    for (; this.seen < store.count; this.seen++) {
      this.values.get("tenant").add(store.tenant[this.seen]);
      if (this.values.get("session").size < SESSIONS_MAX) this.values.get("session").add(store.session[this.seen]);
    }
    for (const life of store.workers) this.values.get("model").add(life.model);
    for (const lane of store.lanes) this.values.get("worker").add(lane.name);
    for (const outcome of [...store.outcomes, UNDER_WAY]) this.values.get("outcome").add(words(outcome));
    for (const [kind, select] of this.selects) this.renew(kind, select, [...this.values.get(kind)].sort(natural));
  }

  renew(kind, select, values) {
    const key = values.join("\n");
    if (select.dataset.key === key) return;
    const before = select.value;
    select.dataset.key = key;
    fill(select, el("option", { value: "" }, `all ${kind}s`), values.map((value) => el("option", { value: `=${value}` }, value || `no ${kind}`)));
    select.value = values.includes(before.slice(1)) ? before : "";
    select.hidden = values.length < 2;
  }

  // Whether a decision is listed; null if all are.
  get fits() {
    const chosen = [...this.selects].filter(([, select]) => select.value).map(([kind, select]) => [KINDS[kind], select.value.slice(1)]);
    return chosen.length ? (at) => chosen.every(([value, wanted]) => value(this.store, at) === wanted) : null;
  }
}
