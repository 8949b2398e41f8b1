// Search: what is typed is looked for by the server; arrow keys choose, Enter goes there.

import { get, Refused } from "./api.js";
import { el, fill } from "./dom.js";
import { moment } from "./format.js";

const WAIT_MS = 120;
const SHOWN = 12;

export class Search {
  constructor(input, found, store, view, say) {
    Object.assign(this, { input, found, store, view, say });
    this.hits = [];
    this.at = 0;
    this.asked = null; // what the hits are the answer to
    input.addEventListener("input", () => this.want());
    input.addEventListener("keydown", (event) => this.key(event));
    input.addEventListener("blur", () => (clearTimeout(this.timer), setTimeout(() => this.close(), 150)));
    input.addEventListener("focus", () => input.value && this.want());
    found.addEventListener("pointerdown", (event) => {
      const row = event.target.closest("li[data-at]");
      if (row) this.go(Number(row.dataset.at));
    });
    store.addEventListener("reset", () => this.forget());
  }

  want() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), WAIT_MS);
  }

  get text() {
    return this.input.value.trim();
  }

  // The hits for what stands there, if it still does when they come and nobody has left meanwhile.
  async ask() {
    const { text } = this;
    if (!text) {
      this.close();
      return;
    }
    try {
      const { found } = await get("/search", { q: text });
      if (text !== this.text || document.activeElement !== this.input) return;
      this.asked = text;
      this.hits = found.map((n) => this.store.indexOf(n)).filter((at) => at >= 0).slice(0, SHOWN);
      this.at = 0;
      this.paint();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      this.say(error.message);
      this.forget();
    }
  }

  forget() {
    this.asked = null;
    this.hits = [];
    this.at = 0;
    this.close();
  }

  paint() {
    const { store, hits, at: now } = this;
    fill(this.found, hits.length ? hits.map((at, row) => el("li", { role: "option", id: `hit-${row}`, "aria-selected": row === now, data: { at: row } },
      el("span", {}, moment(store.ms[at], store.dated)), el("code", {}, store.request[at]), el("span", {}, store.workerName(store.worker[at]))))
      : el("li", { class: "none" }, "No decision here is called so, or was made then."));
    this.found.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
    if (hits.length) this.input.setAttribute("aria-activedescendant", `hit-${now}`);
  }

  close() {
    this.found.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }

  async key(event) {
    if (event.key === "Escape") {
      this.input.value = "";
      this.close();
      this.input.blur();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (!this.hits.length) return;
      this.at = (this.at + (event.key === "ArrowDown" ? 1 : -1) + this.hits.length) % this.hits.length;
      this.paint();
    } else if (event.key === "Enter") {
      event.preventDefault();
      clearTimeout(this.timer);
      if (this.found.hidden || this.asked !== this.text) await this.ask();
      if (this.asked === this.text && this.hits.length) this.go(this.at);
    }
  }

  go(row) {
    this.view.choose(this.hits[row]);
    this.view.frame(this.hits[row]);
    this.close();
    this.input.blur();
  }
}
