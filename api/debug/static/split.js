// Split: how much of the page the timeline has; dragged, or moved with the arrow keys.

const STEP = 4;

export function hearSplit(split) {
  const set = (percent) => {
    const kept = Math.round(Math.min(Number(split.ariaValueMax), Math.max(Number(split.ariaValueMin), percent)));
    split.setAttribute("aria-valuenow", String(kept));
    document.body.style.setProperty("--timeline", `${kept}%`);
  };
  split.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    split.setPointerCapture(event.pointerId);
    const top = split.previousElementSibling.getBoundingClientRect().top;
    const move = (moved) => set((100 * (moved.clientY - top)) / window.innerHeight);
    split.addEventListener("pointermove", move);
    split.addEventListener("pointerup", () => split.removeEventListener("pointermove", move), { once: true });
  });
  split.addEventListener("keydown", (event) => {
    const by = { ArrowUp: -STEP, ArrowDown: STEP }[event.key];
    if (!by) return;
    event.preventDefault();
    set(Number(split.ariaValueNow) + by);
  });
}
