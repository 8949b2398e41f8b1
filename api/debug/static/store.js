// Store: the decisions in columns, as the server gives them, and everybody who is named in them.

import { get, Refused } from "./api.js";
import { day, natural } from "./format.js";

const LIVE_MS = 1000;
const READING_MS = 200; // while the server still reads: drawing what came so far takes from the same processors
const NEARLY_MS = 50; // when it is nearly through
const STATUS_MS = 500;
const RETRY_MS = 2000;
const WELL = new Set(["stop", "length", "abort", "declined"]);
const COLUMNS = {
  n: Float64Array, ms: Float64Array, worker: Int16Array, replica: Int16Array, attempt: Int16Array,
  prompt_tokens: Int32Array, predicted: Int32Array, before_ms: Int32Array, waited_ms: Int32Array,
  cached: Int32Array, ttft_ms: Int32Array, duration_ms: Int32Array, outcome: Int16Array,
};

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export class Store extends EventTarget {
  constructor() {
    super();
    this.status = null;
    this.trouble = null; // why the server gave no answer last
    this.reset();
  }

  reset() {
    this.count = 0;
    this.waitedMost = 0;
    this.after = 0;
    this.run = "";
    this.complete = false;
    this.workers = [];
    this.replicas = [];
    this.notes = [];
    this.notesDropped = {}; // by kind
    this.outcomes = [];
    this.request = [];
    this.tenant = [];
    this.session = [];
    this.lanes = [];
    this.laneOf = new Int16Array(0);
    this.workerById = new Map();
    this.replicaById = new Map();
    for (const [name, kind] of Object.entries(COLUMNS)) this[name] = new kind(4096);
  }

  // --- reading ------------------------------------------------------------------------------------------------

  get fromMs() {
    return this.status && this.status.from_ms >= 0 ? this.status.from_ms : this.count ? this.ms[0] : 0;
  }

  get toMs() {
    const last = this.count ? this.ms[this.count - 1] : 0;
    return Math.max(last, this.status ? this.status.to_ms : 0, this.fromMs + 1000);
  }

  // Whether times take a date to be told apart.
  get dated() {
    return day(this.fromMs) !== day(this.toMs);
  }

  // The first decision made at or after that time; `count` if there is none.
  from(ms) {
    return lower(this.ms, this.count, ms);
  }

  indexOf(n) {
    const at = lower(this.n, this.count, n);
    return at < this.count && this.n[at] === n ? at : -1;
  }

  // The decision that is nearest in time.
  near(ms) {
    const at = this.from(ms);
    if (at >= this.count) return this.count - 1;
    return at > 0 && ms - this.ms[at - 1] < this.ms[at] - ms ? at - 1 : at;
  }

  // When the request came, from when its times count.
  cameAt(at) {
    return this.ms[at] - this.before_ms[at];
  }

  // When it ended; the end of the log for one that is under way.
  endAt(at) {
    return this.duration_ms[at] >= 0 ? this.cameAt(at) + this.duration_ms[at] : this.toMs;
  }

  // The attempt of which the client has the answer that this one goes on with; -1 if this one begins it.
  goesOnFrom(at) {
    for (let row = at - 1; this.attempt[at] && row >= 0; row--) {
      if (this.request[row] !== this.request[at] || this.replica[row] !== this.replica[at]) continue;
      if (this.ttft_ms[row] >= 0) return row;
      if (!this.attempt[row]) return -1;
    }
    return -1;
  }

  // How long the client heard nothing before its first token: since the request came, or since the answer broke off.
  waitOf(at) {
    const from = this.ttft_ms[at] < 0 ? -1 : this.goesOnFrom(at);
    return from < 0 ? this.ttft_ms[at] : Math.max(0, this.ttft_ms[at] - this.duration_ms[from]);
  }

  // What was cached of the prompt: as the engine said, or as was expected while it has not.
  cachedOf(at) {
    return this.cached[at] >= 0 ? this.cached[at] : this.predicted[at];
  }

  outcomeOf(at) {
    return this.outcome[at] < 0 ? "" : this.outcomes[this.outcome[at]];
  }

  // A client that hung up is no failure.
  failed(at) {
    return this.outcome[at] >= 0 && !WELL.has(this.outcomes[this.outcome[at]]);
  }

  workerName(number) {
    const life = this.workers[number];
    return life ? life.name || life.id : "–";
  }

  nameOfId(id) {
    const number = this.workerById.get(id);
    return number === undefined ? id : this.workerName(number);
  }

  replicaName(number) {
    const life = this.replicas[number];
    return life ? life.name || life.id : "–";
  }

  nameOfReplicaId(id) {
    const number = this.replicaById.get(id);
    return number === undefined ? id : this.replicaName(number);
  }

  // --- filling ------------------------------------------------------------------------------------------------

  // Reads everything, and then on for as long as there is more to come.
  async follow() {
    let statusDue = 0;
    for (;;) {
      try {
        if (performance.now() >= statusDue) {
          await this.readStatus();
          statusDue = performance.now() + (this.status.scanned < 1 ? NEARLY_MS : STATUS_MS);
        }
        const more = await this.readMore();
        if (this.trouble) {
          this.trouble = null;
          this.tell("well");
        }
        if (!more && this.settled) return;
        if (!more) await pause(this.idleMs);
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        this.trouble = error;
        this.tell("trouble", error);
        if (error.status === 401) return;
        await pause(RETRY_MS);
        statusDue = 0;
      }
    }
  }

  get idleMs() {
    const now = this.status;
    if (now.scanned < 1) return now.scanned < 0.8 ? READING_MS : NEARLY_MS;
    return now.live ? LIVE_MS : STATUS_MS;
  }

  get settled() {
    const now = this.status;
    return !now.live && ((now.scanned >= 1 && now.folded >= 1) || now.error !== "");
  }

  async readStatus() {
    const before = this.status;
    this.status = await get("/status");
    if (before && before.run !== this.status.run) {
      this.reset();
      this.tell("reset");
    }
    this.tell("status");
  }

  async readMore() {
    const scanned = this.status.scanned >= 1;
    const found = await get("/timeline", { after: this.after, notes: this.notes.length, run: this.run });
    if (this.run && found.run !== this.run) {
      this.reset();
      this.tell("reset");
      return true;
    }
    const before = [this.count, this.notes.length, this.workers.length, this.replicas.length].join();
    this.take(found);
    const changed = before !== [this.count, this.notes.length, this.workers.length, this.replicas.length].join();
    const complete = scanned && !found.more;
    if (changed || found.updates.n.length || complete !== this.complete) {
      this.complete = complete;
      this.tell("data");
    }
    return found.more;
  }

  take(found) {
    const fresh = found.decisions.n.length;
    this.reserve(this.count + fresh);
    for (const name of Object.keys(COLUMNS)) this[name].set(found.decisions[name], this.count);
    for (const request of found.decisions.request) this.request.push(request);
    for (const tenant of found.decisions.tenant) this.tenant.push(tenant);
    for (const session of found.decisions.session) this.session.push(session);
    for (const waited of found.decisions.waited_ms) this.waitedMost = Math.max(this.waitedMost, waited);
    this.count += fresh;
    this.update(found.updates);
    this.outcomes = found.outcomes;
    this.after = found.after;
    this.run = found.run;
    this.notes.length = found.notes_from;
    this.notes.push(...found.notes);
    this.notesDropped = found.notes_dropped;
    this.takeNames(found);
  }

  update(updates) {
    updates.n.forEach((n, row) => {
      const at = this.indexOf(n);
      if (at < 0) return;
      for (const name of ["cached", "ttft_ms", "duration_ms", "outcome"]) this[name][at] = updates[name][row];
    });
  }

  reserve(size) {
    if (size <= this.n.length) return;
    for (const [name, kind] of Object.entries(COLUMNS)) {
      const larger = new kind(Math.max(size, 2 * this[name].length));
      larger.set(this[name].subarray(0, this.count));
      this[name] = larger;
    }
  }

  // Lives of one name share a lane.
  takeNames(found) {
    this.workers = found.workers;
    this.replicas = found.replicas;
    this.workerById = new Map(found.workers.map((life, number) => [life.id, number]));
    this.replicaById = new Map(found.replicas.map((life, number) => [life.id, number]));
    const models = new Set(found.workers.map((life) => life.model));
    const byName = new Map();
    found.workers.forEach((life, number) => {
      const key = `${life.model} ${life.name || life.id}`;
      if (!byName.has(key)) byName.set(key, { name: life.name || life.id, model: models.size > 1 ? life.model : "", workers: [] });
      byName.get(key).workers.push(number);
    });
    this.lanes = [...byName.entries()].sort(([one], [two]) => natural(one, two)).map(([, lane]) => lane);
    this.laneOf = new Int16Array(found.workers.length).fill(-1);
    this.lanes.forEach((lane, at) => lane.workers.forEach((number) => (this.laneOf[number] = at)));
  }

  tell(kind, detail) {
    this.dispatchEvent(new CustomEvent(kind, { detail }));
  }
}

function lower(column, length, value) {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (column[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
