"use strict";
// Sections: what passes changed, how indices are computed, the code beside its operations, proofs.

const MARKS = { added: "+", removed: "−", changed: "~", moved: ">" };

function counts(rewrite) {
  const list = el("ul", { class: "marks" });
  for (const [part, kinds] of Object.entries(rewrite.counts)) {
    for (const [kind, count] of Object.entries(kinds)) list.append(el("li", { class: kind }, `${MARKS[kind]} ${part === "problem" ? "problem" : plural(count, part)} ${kind}`));
  }
  return list;
}

/** An SVG that Python drew; it is parsed as an image document, so none of its text is a script. */
function picture(svg, label) {
  const box = el("div", { class: "picture fit", tabindex: 0, "aria-label": label });
  const drawn = document.importNode(new DOMParser().parseFromString(svg, "image/svg+xml").documentElement, true);
  drawn.style.minWidth = `${0.55 * Number(drawn.getAttribute("width"))}px`; // below this, texts cannot be read
  box.append(drawn);
  return box;
}

function passesSection() {
  const node = section("passes", "Passes", "What each pass changed",
    el("p", { class: "soft" }, "Every schedule and lowering is a rewrite of the coordinate graph and the control graph. Added: +, removed: −, changed: ~, moved into another loop or branch: >."));
  if (!DATA.passes.length) node.append(el("p", { class: "notice" }, "The graph was not made by passes of this session (it was read from a file, for example), so there is no history."));
  DATA.passes.forEach((rewrite, place) => {
    const inside = el("div", { class: "inside" });
    const details = el("details", { class: "pass" }, el("summary", {}, el("code", {}, rewrite.pass)), counts(rewrite), inside);
    details.addEventListener("toggle", () => { if (details.open && !inside.childElementCount) inside.append(...passBody(rewrite)); });
    node.append(details);
    if (place === 0) details.open = true;
  });
}

function passBody(rewrite) {
  const c = rewrite.coordinates, views = [];
  const view = choice({ before: "before", changes: "changes", after: "after" }, "changes", (value) => {
    for (const each of views) { each.classList.remove("before", "after"); if (value !== "changes") each.classList.add(value); }
  }, "Which graph is shown");
  const size = choice({ fit: "fit", full: "full size" }, "fit", (value) => {
    for (const each of views) each.classList.toggle("fit", value === "fit");
  }, "Size of the pictures");
  const main = picture(c.svg, "Coordinate graph");
  views.push(main);
  const scopes = Object.entries(c.scopes).map(([scope, svg]) => {
    const one = el("details", {}, el("summary", {}, `${scope}.…`));
    one.addEventListener("toggle", () => {
      if (one.open && !one.querySelector(".picture")) { const drawn = picture(svg, `Coordinates of ${scope}`); views.push(drawn); one.append(drawn); }
    });
    return one;
  });
  const rows = rewrite.control.map((row) => {
    const fields = Object.entries(row.fields || {}).map(([name, [old, now]]) => `   ${name}: ${old} → ${now}`).join("");
    return el("div", { class: row.change || "" }, el("span", { class: "mark" }, row.change ? MARKS[row.change] : ""), "  ".repeat(row.depth), row.branch ? `${row.branch}: ` : "", row.line, el("span", { class: "soft" }, fields));
  });
  const tree = el("div", { class: "tree", tabindex: 0, "aria-label": "Control graph" }, rows);
  views.push(tree);
  const records = rewrite.records.map((r) => el("div", { class: `record ${r.change}` }, `${MARKS[r.change]} `, r.after || r.before, ...Object.entries(r.fields).map(([name, [old, now]]) => el("div", { class: "soft" }, `    ${name}: ${old} → ${now}`))));
  return [
    el("div", { class: "tools" }, el("span", { class: "name" }, `Coordinates: ${plural(c.dimensions, "dimension")}, ${plural(c.edges, "edge")}`), view, size),
    c.collapsed ? el("p", { class: "notice small" }, "The graph is large, so each box stands for the dimensions whose ids begin with the same word. Open a scope below to see all of it.") : null,
    main, ...scopes,
    el("h3", {}, "Control"), tree,
    records.length ? el("h3", {}, "Parameters and tensors") : null, ...records,
  ].filter(Boolean);
}

function addressesSection() {
  const node = section("addresses", "Addresses", "Why is this address what it is?",
    el("p", { class: "soft" }, `Each index of the ${DATA.addresses_of} graph is a path through the coordinate graph. Open one to follow its edges: the formula of each edge, and its numbers at one point of this launch.`));
  const filter = el("input", { type: "search", placeholder: "filter: A.shared, CopyBox …", "aria-label": "Filter indices", style: "font:inherit;padding:.3rem .6rem;border:1px solid var(--line);border-radius:6px;background:var(--card);color:var(--text);width:min(100%,22rem);margin-bottom:.6rem" });
  const list = el("div", { class: "list" });
  for (const entry of DATA.addresses) {
    const d = entry.derivation, body = el("div", { class: "inside" });
    const title = el("summary", {}, el("strong", {}, entry.name), entry.operation ? el("span", { class: "soft" }, ` in ${entry.operation}`) : null,
      d && d.value !== null ? el("span", {}, " = ", el("b", { class: "mono" }, String(d.value))) : null);
    const details = el("details", { class: "address", "data-text": `${entry.name} ${entry.operation}`.toLowerCase() }, title, body);
    details.addEventListener("toggle", () => { if (details.open && !body.childElementCount) body.append(...derivation(entry)); });
    list.append(details);
  }
  filter.addEventListener("input", () => {
    const wanted = filter.value.toLowerCase();
    for (const each of list.children) each.hidden = !each.dataset.text.includes(wanted);
  });
  node.append(filter, list);
}

function derivation(entry) {
  const d = entry.derivation, out = [];
  if (entry.note) out.push(el("p", { class: "notice small" }, entry.note));
  if (!d) return out;
  const numbers = d.value !== null;
  const given = Object.entries(d.given).map(([name, value]) => (name === value ? name : `${name} = ${value}`)).join(", ");
  out.push(el("p", { class: "formula" }, el("span", { class: "soft" }, "given  "), given || "nothing"));
  for (const p of d.parameters) out.push(el("p", { class: "formula", style: "margin:.1rem 0" }, el("span", { class: "soft" }, "with  "), `${p.name}${p.formula ? ` = ${p.formula}` : ""}`, p.value !== null ? el("b", {}, ` = ${p.value}`) : null, p.note ? el("span", { class: "soft" }, `  ${p.note}`) : null));
  const steps = d.steps.map((s) => el("li", {},
    el("div", {}, el("strong", {}, s.kind), el("span", { class: "soft small" }, ` ${s.edge.slice(s.kind.length)}`), s.origin ? el("span", { class: "soft small" }, `, made by ${s.origin}`) : null),
    s.computes.map((c) => el("div", { class: "formula" }, `${c.dimension} = ${c.formula}`, numbers && c.numbers !== null && c.numbers !== String(c.value) ? el("span", { class: "soft" }, ` = ${c.numbers}`) : null, numbers ? el("b", {}, ` = ${c.value}`) : null)),
    s.guards.filter((g) => g.condition !== "true").map((g) => el("div", { class: `guard ${g.value === false && g.applied !== false ? "false" : ""}` }, `guard: ${g.condition}`, g.always ? " (always holds)" : g.value === null ? "" : g.applied === false ? " (does not count here)" : ` (${g.value ? "holds" : "does not hold"} here)`))));
  out.push(el("ol", { class: "steps" }, steps));
  const a = d.address;
  out.push(el("p", { class: "formula", style: "margin-top:.6rem" }, el("strong", {}, `${d.coordinate} = `), d.expression, numbers ? el("b", {}, ` = ${d.value}`) : null, a && a.offset.bytes !== null ? el("span", {}, ` elements = ${a.offset.bytes} bytes from the start of ${a.memory}`) : null));
  if (d.padding) out.push(el("p", { class: "guard false" }, "This index is padding: a guard does not hold, so the kernel does not access it."));
  if (a && a.strides.length) {
    out.push(el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "one step along"), el("th", {}, "moves the address by"))),
      el("tbody", {}, a.strides.map((s) => el("tr", {}, el("td", {}, el("code", {}, s.coordinate)), el("td", {}, s.expression !== null ? `${s.expression} elements` : s.elements !== null ? plural(s.elements, "element") : s.note, s.bytes !== null ? ` = ${plural(s.bytes, "byte")}` : "")))))));
  }
  return out;
}

function codeSection() {
  const c = DATA.code;
  if (!c) {
    section("code", "Code", "The code beside its operations", el("p", { class: "notice" }, "No code was given: make the report with kernel.report(path), or with coordgraph report --target sm_90a."));
    return;
  }
  const byOperation = new Map();
  c.of.forEach((op, line) => { if (!byOperation.has(op)) byOperation.set(op, []); byOperation.get(op).push(line); });
  const operations = c.operations.map((op, number) => {
    const count = (byOperation.get(number) || []).length;
    return el("div", { "data-op": number, class: count ? "" : "empty", title: count ? plural(count, "line") : "no instruction of its own" }, " ".repeat(op.depth), op.line);
  });
  const lines = c.lines.map((text, line) => el("div", { "data-op": c.of[line] }, text.replaceAll("\t", "    ") || " "));
  const left = el("div", { tabindex: 0, role: "listbox", "aria-label": "Operations of the lowered graph", id: "operations" }, el("div", {}, operations));
  const right = el("div", { tabindex: 0, "aria-label": `PTX for ${c.target}`, id: "ptx" }, el("div", {}, lines));
  const status = el("p", { class: "small soft", "aria-live": "polite", id: "code-status" }, "Choose an operation to see the instructions that it became, or a line to see its operation. With the keyboard: arrow keys in the list of operations.");
  let chosen = -1;
  const scrollTo = (box, child) => { box.scrollTop = child.offsetTop - box.clientHeight / 3; };
  function choose(op, from) {
    for (const node of [...left.querySelectorAll(".chosen"), ...right.querySelectorAll(".chosen")]) { node.classList.remove("chosen"); node.removeAttribute("aria-selected"); }
    chosen = op;
    operations[op].classList.add("chosen");
    operations[op].setAttribute("aria-selected", "true");
    const own = byOperation.get(op) || [];
    for (const line of own) lines[line].classList.add("chosen");
    if (from !== "right" && own.length) scrollTo(right, lines[own[0]]);
    if (from !== "left") scrollTo(left, operations[op]);
    status.textContent = `Operation #${op}, ${c.operations[op].line.trim()}: ${plural(own.length, "line")} of PTX.`;
  }
  const hit = (event) => event.target.closest("[data-op]");
  left.addEventListener("click", (event) => { const node = hit(event); if (node) choose(Number(node.dataset.op), "left"); });
  right.addEventListener("click", (event) => { const node = hit(event); if (node) choose(Number(node.dataset.op), "right"); });
  left.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    let next = chosen + step;
    while (next >= 0 && next < operations.length && !byOperation.has(next)) next += step;
    if (next >= 0 && next < operations.length) choose(next, "key");
  });
  for (const box of [left, right]) {
    box.addEventListener("pointerover", (event) => {
      const node = hit(event);
      for (const each of document.querySelectorAll(".codes .lit")) each.classList.remove("lit");
      if (!node) return;
      operations[node.dataset.op].classList.add("lit");
      for (const line of byOperation.get(Number(node.dataset.op)) || []) lines[line].classList.add("lit");
    });
    box.addEventListener("pointerleave", () => { for (const each of document.querySelectorAll(".codes .lit")) each.classList.remove("lit"); });
  }
  section("code", "Code", `PTX for ${c.target} beside the operations that it comes from`, status, el("div", { class: "codes" }, left, right));
}

function proofsSection() {
  const p = DATA.proofs;
  if (!p) return;
  const tone = (verdict) => `verdict-${verdict.startsWith("proved") ? "proved" : verdict.startsWith("refuted") ? "refuted" : verdict.startsWith("holds") ? "holds" : "unknown"}`;
  const rows = p.verdicts.map((v) => el("tr", {}, el("td", {}, el("strong", {}, v.check)), el("td", { class: tone(v.verdict) }, `${v.verdict.startsWith("refuted") ? "✗" : v.verdict.startsWith("not") ? "?" : "✓"} ${v.verdict}`), el("td", {}, v.method), el("td", {}, v.detail,
    v.counterexamples.map((x) => el("div", { class: "guard false" }, x.problem, x.launch ? ` (${Object.entries(x.launch.parameters).map(([k, n]) => `${k}=${n}`).join(", ")})` : "", x.workgroups ? `, workgroups ${x.workgroups.join(", ")}` : "", x.tile ? `, tile ${x.tile.join(", ")}` : "")))));
  section("proofs", "Proofs", p.refuted ? "A check is refuted" : "What is proved about this kernel",
    el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ["check", "verdict", "method", "detail"].map((t) => el("th", {}, t)))), el("tbody", {}, rows))),
    el("details", {}, el("summary", {}, `Launches that were examined (${p.launches.length})`), el("div", { class: "inside small mono" }, p.launches.map((text) => el("div", {}, text)))));
}

overview();
linkedSection();
modelSection();
passesSection();
addressesSection();
codeSection();
proofsSection();
document.getElementById("footer").append(`coordgraph ${DATA.version}. This file is complete: it loads nothing and sends nothing.`);
document.documentElement.dataset.ready = "true";
