// Keys: everything can be done without a mouse. Keys that a control needs stay its own.

import { byId, el, fill } from "./dom.js";

const SHOWN = [
  ["← → ↑ ↓", "one decision back or on; with Shift ten"],
  ["Home End", "the first, the last"],
  ["/", "search a request id, a time, a place in the log"],
  ["+ −", "zoom in, out"],
  ["0", "show everything"],
  ["[ ]", "move half a screen back or on"],
  ["n p", "the next event, the one before: joins, losses, settings"],
  ["1 to 7", "Decision, What if, Replicas, Events, State where it is a tab, Cache, and Planner where there is one"],
  ["g", "open or fold the group of workers at the cursor, in a large fleet"],
  ["f", "follow a running system"],
  ["Tab", "on to the next part of the page"],
  ["?", "this"],
];
const OWN = "input:not([type=range]), select, textarea, [contenteditable]";
const ARROWS = `${OWN}, input[type=range], [role=tab], [role=separator], .planner`;

export function listKeys() {
  fill(byId("keys"), SHOWN.map(([key, text]) => el("div", {}, el("dt", {}, key.split(" ").map((each) => [el("kbd", {}, each), " "])), el("dd", {}, text))));
}

export function hearKeys(view, actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || document.querySelector("dialog[open]")) return;
    const { target, key } = event;
    if (target.matches(OWN)) return;
    const by = event.shiftKey ? 10 : 1;
    const arrows = {
      ArrowLeft: () => view.step(-by), ArrowRight: () => view.step(by), ArrowUp: () => view.step(-by), ArrowDown: () => view.step(by),
      Home: () => view.edge(false), End: () => view.edge(true),
    };
    if (arrows[key]) {
      if (target.matches(ARROWS)) return;
      event.preventDefault();
      arrows[key]();
      return;
    }
    const others = {
      "/": actions.search, "?": actions.help, "+": () => view.zoom(0.5), "=": () => view.zoom(0.5), "-": () => view.zoom(2),
      "0": () => view.fit(), "[": () => view.pan(-0.5), "]": () => view.pan(0.5), n: () => actions.event(1), p: () => actions.event(-1),
      f: actions.follow, g: actions.group, 1: () => actions.tab(0), 2: () => actions.tab(1), 3: () => actions.tab(2), 4: () => actions.tab(3), 5: () => actions.tab(4), 6: () => actions.tab(5), 7: () => actions.tab(6),
    };
    if (others[key]) {
      event.preventDefault();
      others[key]();
    }
  });
}
