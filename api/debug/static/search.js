// Search: what is typed is looked for by the server; arrow keys choose, Enter goes there.

import { get } from "./api.js";
import { el, fill } from "./dom.js";
import { clock } from "./format.js";

const WAIT_MS = 120;
const SHOWN = 12;

export class Search {
  constructor(input, found, store, view, say) {
    Object.assign(this, { input, found, store, view, say });
    this.hits = [];
    this.at = 0;
    input.addEventListener("input", () => this.want());
    input.addEventListener("keydown", (event) => this.key(event));
    input.addEventListener("blur", () => setTimeout(() => this.close(), 150));
    input.addEventListener("focus", () => input.value && this.want());
    found.addEventListener("pointerdown", (event) => {
      const row = event.target.closest("li[data-at]");
      if (row) this.go(Number(row.dataset.at));
    });
  }

  want() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), WAIT_MS);
  }

  async ask() {
    const text = this.input.value.trim();
    if (!text) {
      this.close();
      return [];
    }
    try {
      const { found } = await get("/search", { q: text });
      if (text !== this.input.value.trim()) return this.hits;
      this.hits = found.map((n) => this.store.indexOf(n)).filter((at) => at >= 0).slice(0, SHOWN);
    } catch (error) {
      this.say(error.message);
      return [];
    }
    this.at = 0;
    this.paint();
    return this.hits;
  }

  paint() {
    const { store, hits, at: now } = this;
    fill(this.found, hits.length ? hits.map((at, row) => el("li", { role: "option", id: `hit-${row}`, "aria-selected": row === now, data: { at: row } },
      el("span", {}, clock(store.ms[at])), el("code", {}, store.request[at]), el("span", {}, store.workerName(store.worker[at]))))
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
      const at = this.at;
      const hits = this.found.hidden ? await this.ask() : this.hits;
      if (hits.length) this.go(Math.min(at, hits.length - 1));
    }
  }

  go(row) {
    this.view.follow(false);
    this.view.select(this.hits[row]);
    this.close();
    this.input.blur();
  }
}
