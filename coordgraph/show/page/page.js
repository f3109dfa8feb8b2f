"use strict";
// Shared by all scripts of the page: the data, building elements, numbers as text, colours.
const DATA = JSON.parse(document.getElementById("data").textContent);
const MAIN = document.getElementById("main");

/** An element with attributes and children; texts become text nodes, never markup. */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

const digits = (x, count = 3) => Number(x.toPrecision(count)).toLocaleString("en", { maximumFractionDigits: 6 });
const percent = (x) => `${(100 * x).toFixed(x > 0 && x < 0.01 ? 1 : 0)} %`;
const signed = (x) => `${Math.abs(x) < 0.005 ? "" : x < 0 ? "−" : "+"}${Math.abs(100 * x).toFixed(0)} %`;
const micros = (ns) => (ns >= 1e6 ? `${digits(ns / 1e6, 4)} ms` : `${digits(ns / 1e3, 4)} µs`);
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

// A canvas needs colours as values: they are read from an element that uses the variable.
const PROBE = el("span", { hidden: true });
document.body.append(PROBE);
let colours = new Map();
function colour(name) {
  if (!colours.has(name)) {
    PROBE.style.color = `var(--${name})`;
    colours.set(name, getComputedStyle(PROBE).color);
  }
  return colours.get(name);
}

/** Functions that sections register: they draw a section again when the theme or the width changes. */
const redraws = [];
function redraw() {
  colours = new Map();
  for (const draw of redraws) draw();
}

/** Add a section to the page and to the navigation. */
function section(id, name, title, ...children) {
  const heading = title ? el("h2", { id: `${id}-title` }, title) : null;
  const node = el("section", { id, "aria-labelledby": heading ? `${id}-title` : null, "aria-label": heading ? null : name }, heading, ...children);
  MAIN.append(node);
  document.getElementById("nav").append(el("a", { href: `#${id}` }, name));
  return node;
}

/** A button of a group in which exactly one is pressed. */
function choice(names, chosen, choose, label) {
  const group = el("span", { role: "group", "aria-label": label });
  for (const [value, text] of Object.entries(names)) {
    group.append(el("button", { type: "button", "aria-pressed": String(value === chosen), "data-value": value, onclick: (event) => {
      for (const other of group.children) other.setAttribute("aria-pressed", other === event.currentTarget);
      choose(value);
    } }, text), " ");
  }
  return group;
}

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches;
  root.dataset.theme = dark ? "light" : "dark";
  redraw();
});
prefersDark.addEventListener("change", redraw);
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) { width = innerWidth; redraw(); }
});
