// Elements from data. Text becomes text nodes, so nothing that a gallery holds is ever read as HTML.

export const $ = (id) => document.getElementById(id);

/** Characters that turn or hide text, as their names: an id must look like what it is. */
export const visible = (text) => text.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g,
  (found) => `‹U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`);

const READ = new Set(["title", "aria-label", "alt", "placeholder"]);

/** make("button", {class: "link", onclick: f, "aria-label": "…"}, "text", child, …) */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : READ.has(name) ? visible(value) : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) element.append(typeof child === "string" ? visible(child) : child);
  return element;
}

/** For screen readers; the same words twice are said twice. */
export function announce(words) {
  const region = $("announce");
  region.textContent = "";
  setTimeout(() => { region.textContent = words; }, 60);
}

/** Show what went wrong and what to do, or hide it with null. */
export function notice(element, words, ...actions) {
  element.hidden = words === null;
  element.replaceChildren(...(words === null ? [] : [make("p", {}, words), ...actions]));
}

/** Draw only if the data changed: focus and scroll stay where they are. */
export function onChange(draw) {
  let before;
  return (data, ...rest) => {
    const now = JSON.stringify(data);
    if (now === before) return;
    before = now;
    draw(data, ...rest);
  };
}
