// The colours that canvases draw with: those of the style sheet, also when it turns dark.

const NAMES = [
  "ground", "surface", "raised", "line", "line-strong", "text", "muted", "accent", "cached", "computed", "decode", "wait", "soft",
  "bad", "good", "changed", "occupied", "dead", "router",
];

export class Theme extends EventTarget {
  constructor() {
    super();
    this.read();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.read();
      this.dispatchEvent(new CustomEvent("changed"));
    });
  }

  read() {
    const style = getComputedStyle(document.documentElement);
    for (const name of NAMES) this[name.replace("-", "_")] = style.getPropertyValue(`--${name}`).trim();
    this.font = style.getPropertyValue("--font").trim();
  }
}
