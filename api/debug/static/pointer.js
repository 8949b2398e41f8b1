// The mouse on the lanes: a click chooses, a drag scrubs, the wheel zooms, and what lies below is named.

import { el, fill } from "./dom.js";
import { count, duration, moment, percent, words } from "./format.js";
import { wordOf } from "./notes.js";

const CLICK_PX = 3;
const TIP_NOTES = 8;

export function hearPointer(root, tip, timeline, store, view, onNote) {
  let pressed = null;
  const place = (event) => {
    const box = root.getBoundingClientRect();
    return [event.clientX - box.left + root.scrollLeft, event.clientY - box.top + root.scrollTop];
  };
  root.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const [x, y] = place(event);
    if (x < timeline.axis.left) timeline.toggleAt(y);
    if (x < timeline.axis.left || x > root.clientWidth) return;
    pressed = { x, y, moved: false, pan: event.shiftKey, from: view.from, to: view.to };
    root.setPointerCapture(event.pointerId);
    tip.hidden = true;
  });
  root.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (!pressed) {
      showTip(x, y, event);
      return;
    }
    pressed.moved ||= Math.abs(x - pressed.x) > CLICK_PX;
    if (!pressed.moved) return;
    view.follow(false);
    if (pressed.pan) {
      const by = (pressed.x - x) / timeline.axis.scale;
      view.show(pressed.from + by, pressed.to + by);
    } else view.choose(store.near(timeline.axis.ms(x)), { reveal: false });
  });
  root.addEventListener("pointerup", (event) => {
    const was = pressed;
    pressed = null;
    if (!was || was.moved) return;
    const [x, y] = place(event);
    const note = timeline.noteAt(x, y);
    view.follow(false);
    if (note) onNote(note.notes[note.notes.length - 1]);
    else view.choose(timeline.hit(x, y));
  });
  root.addEventListener("pointercancel", () => (pressed = null));
  root.addEventListener("pointerleave", () => (tip.hidden = true));
  root.addEventListener("wheel", (event) => {
    const [x] = place(event);
    if (x < timeline.axis.left || event.altKey) return;
    event.preventDefault();
    view.follow(false);
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : event.shiftKey ? event.deltaY : 0;
    if (sideways) view.pan(Math.sign(sideways) * Math.min(0.25, Math.abs(sideways) / 600));
    else view.zoom(Math.exp(Math.sign(event.deltaY) * Math.min(0.6, Math.abs(event.deltaY) / 250)), timeline.axis.ms(x));
    tip.hidden = true;
  }, { passive: false });

  function showTip(x, y, event) {
    const note = timeline.noteAt(x, y);
    const at = note || x < timeline.axis.left ? -1 : timeline.hit(x, y);
    if (!note && (at < 0 || timeline.laneAt(y) < 0)) {
      tip.hidden = true;
      return;
    }
    fill(tip, note ? noteTip(note) : decisionTip(at));
    tip.hidden = false;
    const box = root.parentElement.getBoundingClientRect();
    const left = Math.min(event.clientX - box.left + 14, box.width - tip.offsetWidth - 8);
    tip.style.setProperty("left", `${left}px`);
    tip.style.setProperty("top", `${event.clientY - box.top + 16}px`);
  }

  function noteTip({ notes }) {
    const rows = notes.slice(0, TIP_NOTES).map((note) => el("div", {}, el("b", {}, `${moment(note.ms, store.dated)} ${wordOf(note.kind)} `), note.text));
    if (notes.length > TIP_NOTES) rows.push(el("div", {}, `and ${notes.length - TIP_NOTES} more`));
    return rows;
  }

  function decisionTip(at) {
    const tokens = store.prompt_tokens[at];
    const outcome = store.outcomeOf(at);
    return [
      el("div", {}, el("b", {}, store.request[at])),
      el("div", {}, `${moment(store.ms[at], store.dated)} → ${store.workerName(store.worker[at])}, by ${store.replicaName(store.replica[at])}`),
      el("div", {}, `${count(tokens)} tokens, ${percent(tokens ? store.cachedOf(at) / tokens : 0)} cached${store.cached[at] < 0 ? " (expected)" : ""}`),
      store.waited_ms[at] ? el("div", {}, `${duration(store.waited_ms[at])} in the router before it was sent`) : null,
      el("div", {}, `${store.goesOnFrom(at) < 0 ? "first token" : "went on after"} ${duration(store.waitOf(at))}, took ${duration(store.duration_ms[at])}${outcome ? `, ${words(outcome)}` : ""}`),
    ];
  }
}
