// Questions to the server. An error is one sentence.

const BASE = "/debug/api";
const PENDING_MS = 400;

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function asked(path, options) {
  let answer;
  try {
    answer = await fetch(BASE + path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "the server does not answer: does it still run?");
  }
  if (answer.status === 401) throw new Refused(401, (await answer.text()).trim());
  let value;
  try {
    value = await answer.json();
  } catch {
    throw new Refused(answer.status, `the server answered ${answer.status} ${answer.statusText}`);
  }
  if (!answer.ok) throw new Refused(answer.status, value.error ?? `the server answered ${answer.status}`);
  return { status: answer.status, value };
}

function query(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined);
  return given.length ? `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}` : "";
}

export const get = async (path, parameters = {}, signal) => (await asked(path + query(parameters), { signal })).value;

// Of many questions of one kind only the newest matters: one is under way, and one waits.
export class Latest {
  constructor(onPending = () => {}) {
    this.onPending = onPending;
    this.wanted = null;
    this.busy = false;
  }

  // Calls `show` with the answer, or `fail` with the error, unless something newer was asked meanwhile.
  ask(path, options, show, fail) {
    this.wanted = { path, options, show, fail };
    if (!this.busy) this.work();
  }

  drop() {
    this.wanted = null;
  }

  async work() {
    this.busy = true;
    while (this.wanted) {
      const mine = this.wanted;
      try {
        const { status, value } = await asked(mine.path + query(mine.options.query ?? {}), this.options(mine));
        if (this.wanted !== mine) continue;
        if (status === 202) {
          this.onPending(value.error);
          await pause(PENDING_MS);
          continue;
        }
        this.wanted = null;
        mine.show(value);
      } catch (error) {
        if (this.wanted !== mine) continue;
        this.wanted = null;
        mine.fail(error);
      }
    }
    this.busy = false;
  }

  options(mine) {
    if (!mine.options.body) return {};
    const headers = { "content-type": "application/json" };
    return { method: "POST", headers, body: JSON.stringify(mine.options.body) };
  }
}
