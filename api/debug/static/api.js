// Questions to the server. An error is one sentence.

const BASE = "/debug/api";
const PENDING_MS = 400;
const RETRY_MS = 2000;
const ANSWER_MS = 65_000; // a front end gives up on the page's process a little earlier, and says so
const PASSING = new Set([0, 502, 503, 504]); // of errors: the server is away, or has too much to do

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

// No answer, or none that is whole.
function away(error) {
  const late = error.name === "TimeoutError";
  return new Refused(0, late ? `no answer within ${ANSWER_MS / 1000} s: is the server busy?` : "the server does not answer: does it still run?");
}

async function asked(path, options) {
  let answer;
  let text;
  try {
    answer = await fetch(BASE + path, { credentials: "same-origin", signal: AbortSignal.timeout(ANSWER_MS), ...options });
    text = await answer.text();
  } catch (error) {
    throw away(error);
  }
  if (answer.status === 401) throw new Refused(401, text.trim());
  let value;
  try {
    value = JSON.parse(text);
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

export const get = async (path, parameters = {}) => (await asked(path + query(parameters), {})).value;

// Of many questions of one kind only the newest matters: one is under way, and one waits.
export class Latest {
  constructor(onPending = () => {}) {
    this.onPending = onPending;
    this.wanted = null;
    this.busy = false;
    this.wake = () => {};
  }

  // Calls `show` with the answer, or `fail` with the error, unless something newer was asked meanwhile. Where the server
  // is away or busy, `fail` is told so and the question is asked again, until there is an answer.
  ask(path, options, show, fail) {
    this.wanted = { path, options, show, fail };
    this.wake();
    if (!this.busy) this.work();
  }

  drop() {
    this.wanted = null;
    this.wake();
  }

  async work() {
    this.busy = true;
    try {
      while (this.wanted) await this.turn(this.wanted);
    } finally {
      this.busy = false;
    }
  }

  async turn(mine) {
    const { status, value, error } = await this.answer(mine);
    if (this.wanted !== mine) return;
    if (status === 202) {
      this.onPending(value.error);
      await this.rest(PENDING_MS);
    } else if (error && PASSING.has(error.status)) {
      mine.fail(error);
      await this.rest(RETRY_MS);
    } else {
      this.wanted = null;
      if (error) mine.fail(error);
      else mine.show(value);
    }
  }

  async answer(mine) {
    try {
      return await asked(mine.path + query(mine.options.query ?? {}), this.options(mine));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      return { error };
    }
  }

  // Until so much later, or until something newer is asked.
  rest(ms) {
    return new Promise((resolve) => {
      this.wake = resolve;
      setTimeout(resolve, ms);
    });
  }

  options(mine) {
    if (!mine.options.body) return {};
    const headers = { "content-type": "application/json" };
    return { method: "POST", headers, body: JSON.stringify(mine.options.body) };
  }
}
