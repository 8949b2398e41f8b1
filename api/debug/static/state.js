// State: who was there at the cursor, what was cached and under way, and what each replica went by.

import { Latest } from "./api.js";
import { cursorText } from "./decision.js";
import { el, fill, renew, table } from "./dom.js";
import { count, duration, moment, natural, percent, short, words } from "./format.js";

const REQUESTS_SHOWN = 30;
const WORKERS_SHOWN = 32; // of a larger fleet the busiest, until all are asked for
const ID_CHARS = 20;

export class State {
  constructor(root, when, whose, store, view) {
    Object.assign(this, { root, when, whose, store, view });
    this.question = new Latest((text) => this.pending(text));
    this.found = null; // the state that is shown
    this.every = false; // whether all workers of a large fleet are shown
    this.due = false; // whether it is another state than the one shown, and nobody sees it
    view.addEventListener("cursor", () => this.ask());
    store.addEventListener("data", () => {
      this.offer();
      if (store.complete && !store.count) this.ask(); // there is no decision: who is there at the end
    });
    whose.addEventListener("change", () => this.ask());
    new ResizeObserver(() => this.due && this.ask()).observe(root); // it is shown again
    this.offer();
    fill(root, el("p", { class: "none" }, "Working out the state at the cursor …"));
  }

  // Whose view there is: the log's, and that of each replica by its name.
  offer() {
    const names = [...new Set(this.store.replicas.map((life) => life.name || life.id))].sort(natural);
    if (this.whose.dataset.names === names.join()) return;
    this.whose.dataset.names = names.join();
    const before = this.whose.value;
    fill(this.whose, el("option", { value: "" }, "as the log has it"), names.map((name) => el("option", { value: name }, `as ${name} saw it`)));
    this.whose.value = names.includes(before) ? before : "";
  }

  ask() {
    const { view, store } = this;
    this.due = this.root.offsetParent === null;
    if (this.due) return;
    const asked = view.n === null ? { ms: Math.floor(store.toMs) } : { n: view.n };
    this.root.setAttribute("aria-busy", "true");
    this.root.classList.add("stale");
    const query = { ...asked, replica: this.whose.value || null };
    this.question.ask("/state", { query }, (found) => this.show(found), (error) => this.fail(error));
  }

  // The fold has not come so far: it says how far it is.
  pending(text) {
    const share = this.store.status ? percent(this.store.status.folded) : "";
    this.when.textContent = share;
    fill(this.root, el("p", { class: "none" }, `Working it out: ${text} (${share} of the recording so far). The timeline and decisions can be looked at meanwhile.`));
  }

  fail(error) {
    this.root.removeAttribute("aria-busy");
    this.root.classList.remove("stale");
    this.when.textContent = "";
    fill(this.root, el("p", { class: "none bad" }, error.message));
  }

  show(found) {
    const { root, store, view } = this;
    this.found = found;
    root.removeAttribute("aria-busy");
    root.classList.remove("stale");
    root.dataset.digest = found.digest;
    this.when.textContent = view.ms === null ? "at the end" : `before ${moment(view.ms, store.dated)}`;
    const trouble = found.incomplete ? el("p", { class: "bad" }, `${found.incomplete} sources are unknown until they restate themselves.`) : null;
    renew(root, trouble, this.seat(found.seat), this.workers(found), this.requests(found), this.replicas(found),
      el("p", { class: "fine" }, `${cursorText(found.cursor)}; digest ${found.digest}; ${found.took_ms} ms`));
  }

  // What a replica believed is known at its decisions.
  seat(seat) {
    if (!seat) return null;
    const when = seat.seq === null ? "it had decided nothing yet" : `at its decision routing:${seat.seq}, ${seat.time.slice(11, 23)}`;
    const ahead = seat.ahead_events ? `, ${count(seat.ahead_events)} events of its own not read back` : "";
    return el("p", { class: "fine" }, `${seat.name}, ${when}${ahead}. ${seat.doubts.join("; ")}`);
  }

  workers(found) {
    const { store } = this;
    const heads = [
      ["worker"], ["cache", "bar"], ["blocks", "number", "cached, by the index"], ["run", "number", "running by its last report"],
      ["wait", "number", "waiting by its last report"], ["flight", "number", "requests in flight, by the log"],
      ["queued", "number", "prompt tokens still to be computed"],
    ];
    const busiest = this.busiest(found.workers);
    const rows = busiest
      .sort((one, two) => natural(store.nameOfId(one.worker), store.nameOfId(two.worker)))
      .map((each) => {
        const cached = Object.values(each.blocks).reduce((one, two) => one + two, 0);
        const share = each.capacity_blocks ? Math.min(1, cached / each.capacity_blocks) : 0;
        const said = `${count(cached)} of ${count(each.capacity_blocks)} blocks`;
        return {
          class: view(this, each.worker) ? "chosen" : "",
          cells: [
            [store.nameOfId(each.worker), each.load?.draining ? el("em", {}, " draining") : null, each.cache_known ? null : el("em", {}, " unknown")],
            el("span", { class: "stack", role: "img", "aria-label": said, title: said }, el("i", { class: "cached", vars: { width: `${100 * share}%` } })),
            count(cached), each.load ? count(each.load.running) : "–", each.load ? count(each.load.waiting) : "–",
            count(each.active_requests), count(each.prefill_tokens),
          ],
        };
      });
    if (!rows.length) return el("p", { class: "none" }, "No worker was there.");
    if (rows.length === found.workers.length) return table(heads, rows, { class: "grid" });
    const all = () => {
      this.every = true;
      this.show(this.found);
    };
    return [
      table(heads, rows, { class: "grid" }),
      el("p", { class: "fine" }, `The ${rows.length} busiest of ${count(found.workers.length)} workers: `,
        el("button", { type: "button", class: "link", id: "every-worker", on: { click: all } }, "show all")),
    ];
  }

  // All workers, or of a large fleet those with most requests, and the one that was chosen.
  busiest(workers) {
    if (this.every || workers.length <= WORKERS_SHOWN) return [...workers];
    const weight = (each) => (view(this, each.worker) ? Infinity : each.active_requests);
    return [...workers].sort((one, two) => weight(two) - weight(one)).slice(0, WORKERS_SHOWN);
  }

  requests(found) {
    const { store, view: looked } = this;
    if (!found.in_flight.length) return el("h3", {}, "Nothing in flight");
    const now = looked.ms ?? store.toMs;
    const known = new Map(found.in_flight.map((each) => [`${each.request} ${each.attempt}`, -1]));
    const asked = new Set(found.in_flight.map((each) => each.request));
    const low = Math.max(0, looked.index - 20_000);
    for (let at = Math.min(store.count - 1, Math.max(0, looked.index)), left = known.size; at >= low && left; at--) {
      if (!asked.has(store.request[at])) continue;
      const key = `${store.request[at]} ${store.attempt[at]}`;
      if (known.get(key) !== -1) continue;
      known.set(key, at);
      left -= 1;
    }
    const rows = found.in_flight
      .map((each) => ({ ...each, at: known.get(`${each.request} ${each.attempt}`) }))
      .sort((one, two) => one.at - two.at)
      .slice(0, REQUESTS_SHOWN)
      .map((each) => [
        each.at < 0 ? el("code", { title: each.request }, short(each.request, ID_CHARS))
          : el("button", { type: "button", class: "link", title: each.request, data: { at: each.at }, on: { click: () => looked.choose(each.at) } }, short(each.request, ID_CHARS)),
        store.nameOfId(each.worker), store.nameOfReplicaId(each.replica),
        each.at < 0 ? "–" : duration(now - store.ms[each.at]), count(each.blocks),
        each.prefill_tokens ? count(each.prefill_tokens) : "done",
      ]);
    const heads = [["request", "id"], ["worker"], ["replica"], ["since", "number"], ["blocks", "number"], ["prefill", "number", "prompt tokens to compute"]];
    const more = found.in_flight_total - rows.length;
    return [
      el("h3", {}, `In flight `, el("span", { class: "count" }, count(found.in_flight_total))),
      table(heads, rows, { class: "grid" }),
      more > 0 ? el("p", { class: "fine" }, `and ${count(more)} more`) : null,
    ];
  }

  replicas(found) {
    const { store } = this;
    const defaults = store.status?.defaults ?? {};
    const rows = found.replicas.map((each) => {
      const other = Object.entries(each.settings).filter(([name, value]) => defaults[name] !== value);
      const doubts = found.workers.filter((worker) => worker.local[each.replica])
        .map((worker) => `${worker.name}: ${worker.local[each.replica].map(words).join(", ")}`);
      return [
        [each.name, each.known ? null : el("em", {}, " unknown")], String(each.settings_revision),
        other.map(([name, value]) => `${words(name)} ${value}`).join(", ") || "defaults", doubts.join("; ") || "–", count(each.in_flight),
      ];
    });
    if (!rows.length) return null;
    const heads = [["replica"], ["rev.", "number"], ["settings", "wrap"], ["doubts", "wrap", "what only this replica knew of workers"], ["flight", "number"]];
    return [el("h3", {}, "Replicas go by"), table(heads, rows, { class: "grid" })];
  }
}

// Whether it is the worker that the decision at the cursor went to.
const view = (panel, id) => panel.view.index >= 0 && panel.store.workers[panel.store.worker[panel.view.index]]?.id === id;

