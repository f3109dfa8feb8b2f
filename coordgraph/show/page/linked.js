"use strict";
// The section with the tile map and the timelines: a tile or bar chosen in one is highlighted in all.

const BUCKET_NAMES = { multiply: "multiply", "fix-up": "fix-up", epilogue: "epilogue", "hand-over": "hand-over", wait: "wait", start: "first loads", launch: "launch", gap: "idle between", "outside D": "tiles outside D", tail: "idle at the end" };

/** A stacked bar with the categories of the slots' time, and the bar's legend. */
function stack(run) {
  const total = run.slots * run.makespan / 1e9 || 1;
  const bar = el("div", { class: "stack", role: "img", "aria-label": Object.entries(run.buckets).filter(([, s]) => s / total >= 0.0005).map(([name, s]) => `${BUCKET_NAMES[name]} ${percent(s / total)}`).join(", ") });
  const legend = el("ul", { class: "legend" });
  for (const [name, seconds] of Object.entries(run.buckets)) {
    if (seconds / total < 0.0005) continue;
    const idle = name === "gap" || name === "tail" ? "idle" : "";
    bar.append(el("span", { class: idle, style: `width:${100 * seconds / total}%;background-color:var(--${name.replace(" ", "-")})`, title: `${BUCKET_NAMES[name]} ${percent(seconds / total)}` }));
    legend.append(el("li", {}, el("span", { class: `swatch ${name.replace(" ", "-")}`, style: `background-color:var(--${name.replace(" ", "-")})` }), `${BUCKET_NAMES[name]} `, el("b", {}, percent(seconds / total))));
  }
  return [bar, legend];
}

/** The name of a row of a run's timeline: the slot's number, or in a measured run its SMs. */
function place(run, slot) {
  const processors = (run.processors || [])[slot] || [];
  if (!processors.length) return `${DATA.machine.slot} ${slot}`;
  return `${processors.length > 1 ? "SMs" : "SM"} ${processors.join(", ")} (row ${slot})`;
}

function linkedSection() {
  const runs = DATA.runs, tiles = runs.map(tilesOf), slotName = DATA.machine.slot;
  const kindOf = runs.map((run, r) => {
    const kinds = new Map();
    for (const tile of tiles[r].order) for (const s of tile.segments) kinds.set(`${tile.key}:${s.workgroup}:${s.first}`, s.kind);
    const e = run.events;
    return (i) => kinds.get(`${e.product[i]}:${e.tiling[i]}:${e.m[i]}:${e.n[i]}:${e.workgroup[i]}:${e.first[i]}`) || "whole";
  });
  const end = Math.max(...runs.map((run) => run.makespan), 1);
  const state = { product: 0, map: "workgroup", time: "activity", view: { begin: 0, end }, chosen: null, pinned: false, cursor: 0, event: 0 };
  const detail = el("p", { class: "detail", id: "detail", "aria-live": "polite" });
  const map = el("canvas", { id: "tile-map", tabindex: 0, role: "application", "aria-roledescription": "tile map", "aria-describedby": "map-help", "aria-label": `Tile map of the output: ${plural(DATA.tiles.count, "tile")}` });
  const charts = runs.map((run) => el("canvas", { id: `gantt-${run.name}`, tabindex: 0, role: "application", "aria-roledescription": "timeline", "aria-describedby": "gantt-help", "aria-label": `Timeline of ${plural(run.slots, slotName)}, ${run.name}: ${micros(run.makespan)}` }));
  let mapped = null, timed = [];

  function describe() {
    const c = state.chosen;
    if (!c) return `Point at a tile or at a bar, or use the arrow keys. ${plural(DATA.tiles.count, "tile")}, ${plural(DATA.machine.workgroups, "workgroup")}, ${plural(runs[0].slots, slotName)}.`;
    const run = runs[c.run], t = tiles[c.run].byKey.get(c.tile), parts = [];
    if (c.event !== undefined) {
      const e = run.events, i = c.event;
      parts.push(`${run.name}: workgroup ${e.workgroup[i]} on ${place(run, e.slot[i])}: ${DATA.activities[e.activity[i]]}, ${micros(e.begin[i])} to ${micros(e.end[i])} (${micros(e.end[i] - e.begin[i])})`);
    }
    if (t) {
      const product = DATA.tiles.products.length > 1 ? `product ${t.product}, ` : "";
      const each = t.segments.map((s) => `workgroup ${s.workgroup} on ${place(run, s.slot)} sums k tiles ${s.first}–${s.first + s.count - 1} (${KINDS[s.kind]}) from ${micros(s.begin)} to ${micros(s.end)}`);
      parts.push(`Tile ${product}m ${t.m}, n ${t.n}, rows ${t.row}–${t.row + t.rows - 1}, columns ${t.column}–${t.column + t.columns - 1}: ${each.join("; ")}`);
    }
    return `${parts.join(". ")}.${state.pinned ? " Pinned: Escape releases." : ""}`;
  }
  function draw() {
    mapped = drawTileMap(map, tiles[0], state.product, state.map, state.chosen);
    timed = charts.map((chart, r) => drawTimeline(chart, runs[r], state.view, state.chosen, state.time, kindOf[r]));
    const c = state.chosen;
    for (const canvas of [map, ...charts]) {
      canvas.dataset.tile = c && c.tile ? c.tile : "";
      canvas.dataset.workgroup = c && c.workgroup !== undefined ? c.workgroup : "";
    }
    detail.textContent = describe();
  }
  let queued = false;
  function later() {
    if (!queued) { queued = true; requestAnimationFrame(() => { queued = false; draw(); }); }
  }
  function choose(chosen, keep = false) {
    if (state.pinned && !keep) return;
    state.chosen = chosen;
    later();
  }
  const ofTile = (tile) => tile ? { run: 0, tile: tile.key } : null;
  function ofEvent(r, i) {
    if (i < 0) return null;
    const e = runs[r].events;
    const found = { run: r, event: i, workgroup: e.workgroup[i] };
    if (e.m[i] >= 0) {
      found.tile = `${e.product[i]}:${e.tiling[i]}:${e.m[i]}:${e.n[i]}`;
      if (e.product[i] !== state.product && DATA.tiles.products.length > 1) { state.product = e.product[i]; picker.value = state.product; }
    }
    return found;
  }
  function pin(chosen) {
    state.pinned = chosen !== null && !(state.pinned && state.chosen && chosen.tile === state.chosen.tile && chosen.event === state.chosen.event);
    state.chosen = chosen;
    later();
  }
  map.addEventListener("pointermove", (event) => choose(ofTile(mapped.at(event.offsetX, event.offsetY))));
  map.addEventListener("pointerleave", () => choose(null));
  map.addEventListener("click", (event) => pin(ofTile(mapped.at(event.offsetX, event.offsetY))));
  map.addEventListener("keydown", (event) => {
    const own = mapped.own, now = own.find((t) => state.chosen && t.key === state.chosen.tile) || null;
    const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] || [0, 0];
    if (event.key === "Escape") { state.pinned = false; choose(null, true); return; }
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); if (now) pin(ofTile(now)); return; }
    if (event.key === "Home") { event.preventDefault(); state.pinned = false; choose(ofTile(own[0]), true); return; }
    if (!dx && !dy) return;
    event.preventDefault();
    state.pinned = false;
    if (!now) { choose(ofTile(own[0]), true); return; }
    const [x, y] = mapped.place(now), [w, h] = [now.columns, now.rows];
    const middle = (t) => [t.column + t.columns / 2 - now.column - w / 2, t.row + t.rows / 2 - now.row - h / 2];
    let best = null, least = Infinity;
    for (const t of own) {
      const [mx, my] = middle(t), along = mx * dx + my * dy, across = Math.abs(mx * dy) + Math.abs(my * dx);
      if (along > 0 && along + 4 * across < least) { least = along + 4 * across; best = t; }
    }
    choose(ofTile(best || now), true);
  });
  charts.forEach((chart, r) => {
    const e = runs[r].events;
    chart.addEventListener("pointermove", (event) => choose(ofEvent(r, timed[r].at(event.offsetX, event.offsetY))));
    chart.addEventListener("pointerleave", () => choose(null));
    chart.addEventListener("click", (event) => pin(ofEvent(r, timed[r].at(event.offsetX, event.offsetY))));
    const bySlot = Array.from({ length: runs[r].slots }, () => []);
    e.begin.map((_, i) => i).sort((a, b) => e.begin[a] - e.begin[b]).forEach((i) => bySlot[e.slot[i]].push(i));
    chart.addEventListener("keydown", (event) => {
      if (event.key === "+" || event.key === "=") { zoom(0.5); return; }
      if (event.key === "-") { zoom(2); return; }
      if (event.key === "0") { fit(); return; }
      if (event.key === "Escape") { state.pinned = false; choose(null, true); return; }
      const now = state.chosen && state.chosen.run === r && state.chosen.event !== undefined ? state.chosen.event : -1;
      if ((event.key === "Enter" || event.key === " ") && now >= 0) { event.preventDefault(); pin(ofEvent(r, now)); return; }
      if (!event.key.startsWith("Arrow")) return;
      event.preventDefault();
      state.pinned = false;
      if (now < 0) { choose(ofEvent(r, bySlot.find((own) => own.length)?.[0] ?? -1), true); return; }
      const own = bySlot[e.slot[now]], place = own.indexOf(now);
      if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        choose(ofEvent(r, own[place + (event.key === "ArrowRight" ? 1 : -1)] ?? now), true);
        return;
      }
      let slot = e.slot[now];
      do slot += event.key === "ArrowDown" ? 1 : -1; while (bySlot[slot] && !bySlot[slot].length);
      if (!bySlot[slot]) return;
      const time = (e.begin[now] + e.end[now]) / 2;
      choose(ofEvent(r, bySlot[slot].find((i) => e.end[i] >= time) ?? bySlot[slot].at(-1)), true);
    });
  });
  function zoom(factor) {
    const c = state.chosen, run = c && c.event !== undefined ? runs[c.run] : null, v = state.view;
    const middle = run ? (run.events.begin[c.event] + run.events.end[c.event]) / 2 : (v.begin + v.end) / 2;
    const wide = Math.min(end, Math.max((v.end - v.begin) * factor, end / 500));
    const begin = Math.max(0, Math.min(end - wide, middle - wide / 2));
    state.view = { begin, end: begin + wide };
    later();
  }
  function pan(share) {
    const wide = state.view.end - state.view.begin, begin = Math.max(0, Math.min(end - wide, state.view.begin + share * wide));
    state.view = { begin, end: begin + wide };
    later();
  }
  function fit() { state.view = { begin: 0, end }; later(); }
  const products = DATA.tiles.products.length;
  const picker = el("select", { "aria-label": "Product", onchange: (event) => { state.product = Number(event.target.value); state.chosen = null; later(); } });
  for (let p = 0; p < products; p++) picker.append(el("option", { value: p }, `product ${p}: ${DATA.tiles.products[p].slice(0, 2).join(" × ")}`));
  const button = (text, label, act) => el("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
  const kinds = new Set(tiles[0].order.flatMap((t) => t.segments.map((s) => s.kind)));
  const kindLegend = el("ul", { class: "legend", id: "kinds" });
  for (const [kind, text] of Object.entries(KINDS)) {
    if (!kinds.has(kind)) continue;
    const sample = el("canvas", { width: 28, height: 14, style: "width:28px;height:14px;display:inline-block;vertical-align:-2px;margin-right:.35rem", "aria-hidden": true });
    const pen = sample.getContext("2d");
    pen.fillStyle = KIND_COLOURS[kind];
    pen.fillRect(0, 0, 28, 14);
    hatch(pen, 0, 0, 28, 14, kind);
    kindLegend.append(el("li", {}, sample, text));
  }
  const mapFigure = el("figure", {},
    el("div", { class: "tools" }, el("span", { class: "name" }, "Output tiles"), products > 1 ? picker : null,
      choice({ workgroup: "by workgroup", kind: "by kind" }, state.map, (value) => { state.map = value; later(); }, "Colour of tiles")),
    map, kindLegend,
    el("figcaption", { class: "small", id: "map-help" }, "Numbers are workgroups. Stripes mark parts of a tile that several workgroups sum. Arrow keys move, Enter pins, Escape releases."));
  const timeFigure = el("figure", {},
    el("div", { class: "tools" }, el("span", { class: "name" }, `Timeline of each ${slotName}${DATA.machine.slot_processors > 1 ? ` (${DATA.machine.slot_processors} SMs)` : ""}, in µs`),
      choice({ activity: "by activity", workgroup: "by workgroup" }, state.time, (value) => { state.time = value; later(); }, "Colour of bars"),
      el("span", {}, button("◀", "Earlier", () => pan(-0.5)), " ", button("−", "Zoom out", () => zoom(2)), " ", button("+", "Zoom in", () => zoom(0.5)), " ", button("▶", "Later", () => pan(0.5)), " ", button("all", "Show the whole run", fit))),
    charts.map((chart, r) => [el("p", { class: "label" }, `${runs[r].name}: ${micros(runs[r].makespan)}`), chart]),
    runs.length === 1 ? el("p", { class: "notice small", id: "not-measured" }, "Not measured: run ", el("code", {}, "coordgraph trace … --events FILE"), " on the GPU, and give the file as ", el("code", {}, "--measured FILE"), " to see the real timeline below this one, on the same scale.") : null,
    el("figcaption", { class: "small", id: "gantt-help" }, "Arrow keys move between bars and rows, + and − zoom, 0 shows the whole run, Enter pins, Escape releases."));
  section("tiles", "Tiles and SMs", "Who computes what, where and when", el("div", { class: "linked" }, mapFigure, timeFigure), detail);
  redraws.push(draw);
  draw();
}
