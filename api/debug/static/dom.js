// Elements. Whatever comes from the log goes in as text, never as markup.

export const byId = (id) => document.getElementById(id);

export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("aria")) {
      made.setAttribute(name, String(value));
      continue;
    }
    if (value === false) continue;
    if (name === "class") made.className = value;
    else if (name === "on") for (const [event, heard] of Object.entries(value)) made.addEventListener(event, heard);
    else if (name === "vars") for (const [key, given] of Object.entries(value)) made.style.setProperty(key, given);
    else if (name === "data") Object.assign(made.dataset, value);
    else if (name in made && name !== "role") made[name] = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...there(children));
  return made;
}

const there = (children) => children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);

export const fill = (parent, ...children) => parent.replaceChildren(...there(children));

// The same, but what is the same as before stays: its focus, what is selected in it, and what is being pressed.
export function renew(parent, ...children) {
  const fresh = there(children).map((child) => (child instanceof Node ? child : document.createTextNode(child)));
  fresh.forEach((child, at) => {
    const now = parent.childNodes[at];
    if (!now) parent.append(child);
    else if (!now.isEqualNode(child)) now.replaceWith(child);
  });
  while (parent.childNodes.length > fresh.length) parent.lastChild.remove();
}

// A table: heads are [text, class, title], rows are lists of cells or {cells, ...properties of the row}.
export function table(heads, rows, properties = {}) {
  const head = el("tr", {}, heads.map(([text, kind, title]) => el("th", { class: kind, scope: "col", title }, text)));
  const body = rows.map((row) => {
    const { cells, ...rest } = Array.isArray(row) ? { cells: row } : row;
    return el("tr", rest, cells.map((cell, at) => el("td", { class: heads[at]?.[1] }, cell)));
  });
  return el("table", properties, el("thead", {}, head), el("tbody", {}, body));
}

export function pairs(entries) {
  return el("dl", { class: "facts" }, entries.filter(Boolean).map(([term, ...texts]) =>
    el("div", {}, el("dt", {}, term), el("dd", {}, texts))));
}

export const swatch = (kind, text) => el("span", { class: "swatch" }, el("i", { class: kind }), text);

// Called at most once per frame, however often it is asked for.
export function perFrame(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      work();
    });
  };
}
