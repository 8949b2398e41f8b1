// Download: the decisions that are shown, as a trace that Perfetto and Chrome open, or as a table.

const US_PER_MS = 1000;
const ROUTERS = 100_000; // workers have the numbers below
const HEADS = [
  "time", "request", "attempt", "worker", "replica", "prompt_tokens", "predicted_cached_tokens", "cached_tokens",
  "waited_ms", "first_token_ms", "duration_ms", "outcome", "at",
];

const ROWS_MAX = 200_000; // some 200 MB in the browser

export function hearDownload(select, store, view, say) {
  select.addEventListener("change", () => {
    const rows = within(store, view.from, view.to);
    if (rows.length > ROWS_MAX) say(`${rows.length} decisions are too many for one file: zoom in to ${ROWS_MAX} or fewer`);
    else if (select.value === "trace") save("contrail.trace.json", "application/json", JSON.stringify(trace(store, rows)));
    else save("contrail.csv", "text/csv", csv(store, rows));
    select.value = "";
  });
}

function save(name, type, text) {
  const link = document.createElement("a");
  link.download = name;
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.click();
  URL.revokeObjectURL(link.href);
}

// The decisions whose requests were there in that time.
function within(store, from, to) {
  const rows = [];
  for (let at = 0; at < store.count; at++) if (store.cameAt(at) <= to && store.endAt(at) >= from) rows.push(at);
  return rows;
}

// Each worker and each replica is a process; requests beside each other are its threads.
function trace(store, rows) {
  const events = [];
  const busy = new Map(); // by process, until when each thread is taken
  const named = new Set();

  function slice(pid, name, from, to, parts, args) {
    if (!named.has(pid)) events.push({ ph: "M", name: "process_name", pid, args: { name } });
    named.add(pid);
    const threads = busy.get(pid) ?? [];
    busy.set(pid, threads);
    let tid = threads.findIndex((until) => until <= from);
    if (tid < 0) tid = threads.length;
    threads[tid] = Math.max(to, from + 1);
    for (const [part, start, end] of parts) {
      if (end > start || part === args.request) events.push({ ph: "X", pid, tid, name: part, cat: "request", ts: start * US_PER_MS, dur: (end - start) * US_PER_MS, args });
    }
  }

  for (const at of rows) {
    const [came, sent, end] = [store.cameAt(at), store.ms[at], store.endAt(at)];
    const first = store.ttft_ms[at] < 0 ? end : Math.min(end, came + store.ttft_ms[at]);
    const request = store.request[at];
    const args = {
      request, attempt: store.attempt[at], prompt_tokens: store.prompt_tokens[at], cached_tokens: store.cached[at],
      predicted_cached_tokens: store.predicted[at], outcome: store.outcomeOf(at), at: placeOf(store, at),
    };
    const queued = sent - store.waited_ms[at];
    if (queued < sent) slice(ROUTERS + store.replica[at], `router ${store.replicaName(store.replica[at])}`, queued, sent, [[request, queued, sent]], args);
    slice(1 + store.laneOf[store.worker[at]], store.workerName(store.worker[at]), sent, end, [[request, sent, end], ["to the first token", sent, first], ["decode", first, end]], args);
  }
  return { traceEvents: events, displayTimeUnit: "ms" };
}

function csv(store, rows) {
  const known = (value) => (value < 0 ? "" : value);
  const lines = rows.map((at) => [
    new Date(store.ms[at]).toISOString(), store.request[at], store.attempt[at], store.workerName(store.worker[at]), store.replicaName(store.replica[at]),
    store.prompt_tokens[at], store.predicted[at], known(store.cached[at]), store.waited_ms[at], known(store.waitOf(at)), known(store.duration_ms[at]),
    store.outcomeOf(at), placeOf(store, at),
  ]);
  return [HEADS, ...lines].map((line) => line.map(cell).join(",")).join("\r\n") + "\r\n";
}

// Clients choose ids: a program for tables must not take one for a formula.
function cell(value) {
  const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const placeOf = (store, at) => `routing:${Math.floor(store.n[at] / 10_000)}`;
