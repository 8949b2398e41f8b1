// Tabs of the panel: arrow keys go from one to the next, and only the one that is shown is asked for.

export class Tabs extends EventTarget {
  constructor(list) {
    super();
    this.tabs = [...list.querySelectorAll("[role=tab]")];
    for (const tab of this.tabs) tab.addEventListener("click", () => this.open(this.tabs.indexOf(tab)));
    list.addEventListener("keydown", (event) => {
      const now = this.tabs.indexOf(document.activeElement);
      const seen = this.tabs.filter((tab) => tab.offsetParent !== null);
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (now < 0 || !by) return;
      event.preventDefault();
      const next = seen[(seen.indexOf(this.tabs[now]) + by + seen.length) % seen.length];
      this.open(this.tabs.indexOf(next));
      next.focus();
    });
    // the state has a place of its own where there is room
    matchMedia("(max-width: 1599px)").addEventListener("change", (wide) => wide.matches || (this.shown === "state" && this.open(0)));
  }

  get shown() {
    return this.tabs.find((tab) => tab.getAttribute("aria-selected") === "true").getAttribute("aria-controls");
  }

  open(number) {
    const tab = this.tabs[number];
    if (tab.offsetParent === null) return; // it has a place of its own
    for (const each of this.tabs) {
      const chosen = each === tab;
      each.setAttribute("aria-selected", String(chosen));
      each.tabIndex = chosen ? 0 : -1;
      const panel = document.getElementById(each.getAttribute("aria-controls"));
      if (panel.id !== "state") panel.hidden = !chosen;
    }
    document.body.classList.toggle("state-shown", this.shown === "state");
    this.dispatchEvent(new CustomEvent("opened", { detail: this.shown }));
  }

  openById(id) {
    this.open(this.tabs.findIndex((tab) => tab.getAttribute("aria-controls") === id));
  }
}
