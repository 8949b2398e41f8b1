// Numbers and times as people read them. Times are UTC, or local if somebody chose that.

const grouped = new Intl.NumberFormat("en-US");
const pad = (value, width = 2) => String(value).padStart(width, "0");

export const count = (value) => grouped.format(value);

let local = false;
export const setLocal = (on) => (local = on);
export const zoneName = () => (local ? "local" : "UTC");

// By how much the clock that is shown is ahead of UTC at that time.
export const zoneMs = (ms) => (local ? -60_000 * new Date(ms).getTimezoneOffset() : 0);

export function clock(ms, digits = 3) {
  if (!(ms >= 0)) return "–";
  const at = new Date(ms + zoneMs(ms));
  const text = `${pad(at.getUTCHours())}:${pad(at.getUTCMinutes())}:${pad(at.getUTCSeconds())}`;
  return digits ? `${text}.${pad(at.getUTCMilliseconds(), 3)}` : text;
}

export function day(ms) {
  const at = new Date(ms + zoneMs(ms));
  return `${at.getUTCFullYear()}-${pad(at.getUTCMonth() + 1)}-${pad(at.getUTCDate())}`;
}

// With the day, where the recording is of more than one.
export const moment = (ms, dated) => (dated && ms >= 0 ? `${day(ms)} ${clock(ms)}` : clock(ms));

// Rounded first, so that sixty seconds are a minute.
export function duration(ms) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  if (Math.round(ms) < 1000) return `${Math.round(ms)} ms`;
  if (Math.round(ms / 10) < 1000) return `${(ms / 1000).toFixed(2)} s`;
  if (Math.round(ms / 100) < 1200) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min ${pad(seconds % 60)} s`;
  const minutes = Math.round(ms / 60_000);
  return `${Math.floor(minutes / 60)} h ${pad(minutes % 60)} min`;
}

export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;

export function bytes(value) {
  if (value < 1024 * 1024) return `${Math.round(value / 1024)} KiB`;
  return `${(value / 1024 / 1024).toFixed(value < 100 * 1024 * 1024 ? 1 : 0)} MiB`;
}

// Blocks and other quantities that may be broken: three digits that count.
export function amount(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 100 || Number.isInteger(value)) return count(Math.round(value));
  return value.toFixed(size >= 10 ? 1 : 2).replace(/\.?0+$/, "");
}

export const signed = (value, text) => (value > 0 ? `+${text}` : value < 0 ? `−${text}` : text);

export const words = (name) => name.replaceAll("_", " ");

export const natural = new Intl.Collator("en", { numeric: true }).compare;

export const sentence = (text) => (/[.!?]$/.test(text) ? text : `${text}.`);

// An id of at most so many characters: of a longer one its beginning and its end.
export const short = (id, most) => (id.length <= most ? id : `${id.slice(0, Math.ceil(most / 2) - 1)}…${id.slice(-Math.floor(most / 2))}`);
