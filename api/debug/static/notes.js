// Notes: what else happened, as marks above the lanes.

export const NOTES_PX = 20;
const NEAR_PX = 9;

const KINDS = {
  worker_joined: ["good", "joined"], worker_left: ["muted", "left"], worker_lost: ["bad", "lost"],
  replica_joined: ["good", "joined"], replica_left: ["muted", "left"], replica_lost: ["bad", "lost"],
  settings: ["accent", "settings"], divergence: ["bad", "differ"], rejected: ["bad", "refused"],
  client_gone: ["muted", "hung up"], migrated: ["wait", "moved"], doubt: ["muted", "doubt"], cache_cleared: ["wait", "cleared"],
};
const WEIGHT = { bad: 5, accent: 4, good: 3, wait: 2, muted: 1 };
const LINED = new Set(["settings", "divergence", "worker_lost", "replica_lost"]);

export const colourOf = (kind) => (KINDS[kind] ?? ["muted"])[0];
export const wordOf = (kind) => (KINDS[kind] ?? ["", kind])[1];

// Notes that would lie on each other are one mark.
export function groups(notes, axis) {
  const right = axis.left + axis.width;
  const found = [];
  const shown = notes.filter((note) => note.ms >= axis.from && note.ms <= axis.to).sort((one, two) => one.ms - two.ms);
  for (const note of shown) {
    const x = Math.min(right, axis.x(note.ms));
    const last = found[found.length - 1];
    if (last && x - last.x < NEAR_PX) last.notes.push(note);
    else found.push({ x, notes: [note] });
  }
  return found;
}

export function drawNotes(pen, theme, axis, found, height) {
  pen.textAlign = "center";
  for (const { x, notes } of found) {
    const kind = notes.map((note) => colourOf(note.kind)).reduce((one, two) => (WEIGHT[two] > WEIGHT[one] ? two : one));
    pen.fillStyle = theme[kind];
    if (notes.some((note) => LINED.has(note.kind))) {
      pen.globalAlpha = 0.55;
      pen.fillRect(Math.round(x), NOTES_PX, 1, height);
      pen.globalAlpha = 1;
    }
    pen.beginPath();
    pen.arc(x, NOTES_PX / 2, notes.length > 1 ? 7 : 4, 0, 2 * Math.PI);
    pen.fill();
    if (notes.length > 1) {
      pen.fillStyle = theme.ground;
      pen.font = `600 9px ${theme.font}`;
      pen.fillText(notes.length > 99 ? "99" : String(notes.length), x, NOTES_PX / 2 + 0.5);
    }
  }
  pen.textAlign = "left";
  pen.font = `11px ${theme.font}`;
}
