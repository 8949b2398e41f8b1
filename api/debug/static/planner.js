// Planner: workers, demand and predicted attainment over time, and the card of one decision on the size of the fleet.

import { get, Latest } from "./api.js";
import { Axis } from "./axis.js";
import { Brush, fit } from "./canvas.js";
import { el, fill, pairs, perFrame, renew, swatch, table } from "./dom.js";
import { amount, count, moment, percent, words } from "./format.js";

const ROW_PX = 56;
const GUTTER_PX = 110;
const DIGITS = 2;
const ROWS = ["workers", "requests/s", "attained"];
const STEPS = { ArrowLeft: -1, ArrowRight: 1 };

export class Planner {
  constructor(root, store, theme) {
    Object.assign(this, { root, store, theme, all: [], rows: [], models: [], last: 0, chosen: -1, reading: false });
    this.question = new Latest();
    this.canvas = el("canvas");
    this.chart = el("div", {
      class: "planner", tabIndex: 0, role: "slider", "aria-label": "Decisions of the planner; arrow keys step through them",
      "aria-valuemin": 0, "aria-valuemax": 0, "aria-valuenow": 0,
      on: { click: (event) => this.press(event), keydown: (event) => this.step(event) },
    }, this.canvas);
    this.legend = el("p", { class: "fine" }, swatch("cached", "ready"), " ", swatch("wait", "starting"), " ",
      swatch("decode", "arrived, and attained by the prediction for the target"), " ", swatch("computed", "target, and forecast"));
    this.model = el("select", { "aria-label": "Model", hidden: true, on: { change: () => this.choose(this.filter().length - 1) } });
    this.card = el("div", { id: "planner-card" });
    this.draw = perFrame(() => this.paint());
    fill(root, this.model, this.chart, this.legend, this.card);
    new ResizeObserver(() => this.draw()).observe(root);
    theme.addEventListener("changed", () => this.draw());
    store.addEventListener("data", () => store.status?.live && !root.hidden && this.read());
    store.addEventListener("reset", () => Object.assign(this, { all: [], rows: [], last: 0, chosen: -1 }));
  }

  open() {
    this.read();
  }

  // Rows are read once; a recording that grows adds to them.
  async read() {
    if (this.reading) return;
    this.reading = true;
    try {
      for (let more = true; more; ) {
        const found = await get("/planner", { after: this.last });
        this.all.push(...found.rows);
        this.last = found.last;
        more = found.more;
      }
      this.filter();
      if (this.chosen < 0 && this.rows.length) this.choose(this.rows.length - 1);
      else if (!this.rows.length) this.fail(new Error("No decision yet: the speed of a worker is not known, or no planner leads."));
    } catch (error) {
      this.fail(error);
    } finally {
      this.reading = false;
    }
    this.draw();
  }

  // The rows of the chosen fleet, where a planner sizes several: of models, or of roles of one.
  filter() {
    const roles = this.all.some((row) => row.role);
    const fleet = (row) => [row.model, roles ? row.role ?? "decode" : ""].filter(Boolean).join(" · ");
    const models = [...new Set(this.all.map(fleet).filter(Boolean))].sort();
    if (models.join() !== this.models.join()) {
      const before = this.model.value;
      fill(this.model, models.map((name) => el("option", { value: name }, name)));
      this.model.value = models.includes(before) ? before : models[0] ?? "";
      this.models = models;
    }
    this.model.hidden = !models.length;
    this.rows = models.length ? this.all.filter((row) => fleet(row) === this.model.value) : this.all;
    return this.rows;
  }

  fail(error) {
    fill(this.card, el("p", { class: "none bad" }, error.message));
  }

  press(event) {
    if (!this.axis || !this.rows.length) return;
    const ms = this.axis.ms(event.clientX - this.chart.getBoundingClientRect().left);
    const behind = this.rows.findIndex((row) => row.ms >= ms);
    const right = behind < 0 ? this.rows.length - 1 : behind;
    const left = Math.max(0, right - 1);
    this.choose(ms - this.rows[left].ms < this.rows[right].ms - ms ? left : right);
  }

  step(event) {
    const by = STEPS[event.key];
    if (!by || !this.rows.length) return;
    event.preventDefault();
    this.choose(Math.min(this.rows.length - 1, Math.max(0, this.chosen + by)));
  }

  choose(at) {
    this.chosen = at;
    const row = this.rows[at];
    this.chart.setAttribute("aria-valuemax", String(this.rows.length - 1));
    this.chart.setAttribute("aria-valuenow", String(at));
    this.chart.setAttribute("aria-valuetext", `${moment(row.ms, this.store.dated)}, ${row.ready} ready, target ${row.target}`);
    this.draw();
    const given = Object.entries({ model: row.model, role: row.role }).filter(([, value]) => value);
    const fleet = given.length ? `?${new URLSearchParams(given)}` : "";
    this.question.ask(`/planner/${row.seq}${fleet}`, {}, (found) => this.show(found), (error) => this.fail(error));
  }

  paint() {
    const { rows, theme, root } = this;
    const width = root.clientWidth - 20; // without the panel's padding
    if (root.hidden || width <= GUTTER_PX || !rows.length) return;
    const axis = new Axis(rows[0].ms, rows.at(-1).ms, GUTTER_PX, width - GUTTER_PX - 10);
    this.axis = axis;
    const pen = fit(this.canvas, width, ROW_PX * ROWS.length);
    const brush = new Brush(pen);
    const most = [
      rows.reduce((top, row) => Math.max(top, row.ready + row.starting, row.target), 1),
      rows.reduce((top, row) => Math.max(top, row.rate, row.forecast), 1e-9), 1,
    ];
    const high = (place, value) => (value / most[place]) * (ROW_PX - 8);
    const bar = (colour, place, x, wide, value, under = 0) => brush.rect(colour, x, (place + 1) * ROW_PX - 1 - high(place, under + value), wide, high(place, value));
    const line = (colour, place, x, wide, value) => brush.rect(colour, x, (place + 1) * ROW_PX - 2 - high(place, value), wide, 2);
    rows.forEach((row, at) => {
      const x = axis.x(row.ms);
      const wide = Math.max(1, axis.x(rows[at + 1]?.ms ?? row.ms) - x);
      bar(theme.cached, 0, x, wide, row.ready);
      bar(theme.wait, 0, x, wide, row.starting, row.ready);
      bar(theme.decode, 1, x, wide, row.rate);
      bar(theme.decode, 2, x, wide, row.predicted ?? 0);
      line(theme.computed, 0, x, wide, row.target);
      line(theme.computed, 1, x, wide, row.forecast);
    });
    if (this.chosen >= 0) brush.rect(theme.accent, axis.x(rows[this.chosen].ms), 0, 1, ROW_PX * ROWS.length);
    brush.paint();
    this.label(pen, [amount(most[0]), amount(most[1]), percent(1)]);
  }

  // What each row is, and how much its highest bar stands for.
  label(pen, tops) {
    pen.font = `11px ${this.theme.font}`;
    pen.textBaseline = "middle";
    pen.fillStyle = this.theme.muted;
    ROWS.forEach((name, place) => {
      pen.textAlign = "left";
      pen.fillText(name, 0, place * ROW_PX + ROW_PX / 2);
      pen.textAlign = "right";
      pen.fillText(tops[place], GUTTER_PX - 6, place * ROW_PX + ROW_PX / 2);
    });
  }

  show(found) {
    const { decided, demand, window: before } = found;
    const per = (thousandths) => `${(thousandths / 1000).toFixed(DIGITS)}/s`;
    const share = (hundredths) => percent(hundredths / 10_000, DIGITS);
    const eased = decided.candidates.some((each) => each.eased_bp !== undefined);
    const heads = [
      ["workers", "number"], ["at", "number", "arrivals a second for which the prediction is"], ["attained", "number"], ["first token", "number"],
      ["between tokens", "number"], ["computing prompts", "number", "share of time"], ["step", "number"],
      ...(eased ? [["eased", "number", "with short waits, where no worker meets a bound"]] : []),
    ];
    const rows = decided.candidates.map((each) => [
      count(each.workers), per(each.rate_m), share(each.attainment_bp), share(each.first_token_bp), share(each.between_tokens_bp), share(each.prefill_bp),
      `${(each.step_us / 1000).toFixed(1)} ms`, ...(eased ? [share(each.eased_bp)] : []),
    ]);
    renew(this.card,
      el("h3", {}, moment(decided.at_ms, this.store.dated), " ", el("span", { class: "count" }, `scale:${found.seq}`)),
      found.summary.map((text, at) => el("p", { class: at === found.summary.length - 1 && found.verdict === "different" ? "verdict bad" : "verdict" }, text)),
      pairs([
        ["fleet", `${decided.ready} ready, ${decided.starting} starting, ${decided.overdue} overdue, ${decided.draining} draining`],
        ["demand", `${per(decided.rate_m)}${decided.burst_m ? `, a burst of ${per(decided.burst_m)}` : ""}`],
        demand && ["last period", `${count(demand.arrivals)} arrivals, ${count(demand.waiting)} waiting, ${count(demand.running)} running`],
        ["forecast", `${per(decided.forecast.upper_m)} in ${decided.forecast.horizon_s} s (${decided.forecast.predictor})`],
        ["required", `${decided.required}; sought ${share(decided.goal_bp)}, ceiling ${share(decided.ceiling_bp)}`],
        before && ["window", `up to ${before.required} required before${before.is_full ? "" : ", not full yet"}`],
        decided.budget === undefined ? null : ["devices", `${decided.budget} of all fleets; alone ${decided.sought} workers`],
        decided.judged === undefined ? null : ["judge", decided.judged.absent ? `absent: ${decided.judged.absent}`
          : decided.judged.workers.map((each) => `${count(each.workers)} workers ${share(each.attainment_bp)}`).join(", ")],
        ["reason", words(decided.bound)],
      ]),
      rows.length ? table(heads, rows, { class: "grid" }) : null);
  }
}
