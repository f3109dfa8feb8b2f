"use strict";
// Drawing on canvases: the tile map, and the timeline of the slots.

// Okabe and Ito's colours, which people with every kind of colour vision tell apart.
const WORKGROUP_COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"];
const WHITE_ON = new Set(["#0072b2", "#009e73", "#d55e00"]);
const BUCKET_OF = { multiply: "multiply", send: "fix-up", receive: "fix-up", finish: "epilogue", drain: "epilogue", turn: "hand-over", wait: "wait", start: "start" };
const KIND_COLOURS = { whole: "#0072b2", first: "#56b4e9", middle: "#cc79a7", last: "#e69f00" };
const KINDS = { whole: "whole tile", first: "first part along k", middle: "middle part", last: "last part" };

const workgroupColour = (workgroup) => WORKGROUP_COLOURS[workgroup % WORKGROUP_COLOURS.length];

/** A canvas with as many device pixels as the screen shows; drawing is in CSS pixels. */
function prepare(canvas, height) {
  const box = canvas.clientWidth || 300, scale = devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(box * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, box, height);
  pen.font = "11px system-ui, sans-serif";
  return [pen, box];
}

/** Stripes over a rectangle; their direction says which part of a divided tile it is. */
function hatch(pen, x, y, w, h, kind) {
  if (kind === "whole" || w < 3 || h < 3) return;
  pen.save();
  pen.beginPath();
  pen.rect(x, y, w, h);
  pen.clip();
  pen.strokeStyle = "rgba(255,255,255,0.55)";
  pen.lineWidth = 1.5;
  pen.beginPath();
  const gap = 6;
  if (kind === "middle") {
    for (let at = y + 3; at < y + h; at += gap) { pen.moveTo(x, at); pen.lineTo(x + w, at); }
  } else {
    for (let at = -h; at < w; at += gap) {
      pen.moveTo(x + at, kind === "first" ? y + h : y);
      pen.lineTo(x + at + h, kind === "first" ? y : y + h);
    }
  }
  pen.stroke();
  pen.restore();
}

/** The output tiles of a run with their segments, by key, and in reading order for each product. */
function tilesOf(run) {
  const e = run.events, multiply = DATA.activities.indexOf("multiply"), shapes = DATA.tiles.shapes;
  const tiles = new Map();
  for (let i = 0; i < e.begin.length; i++) {
    if (e.m[i] < 0) continue;
    const shape = shapes[Math.max(e.tiling[i], 0)];
    const key = `${e.product[i]}:${e.tiling[i]}:${e.m[i]}:${e.n[i]}`;
    let tile = tiles.get(key);
    if (!tile) {
      tile = { key, product: e.product[i], m: e.m[i], n: e.n[i], tiling: e.tiling[i], row: e.m[i] * shape[0], column: e.n[i] * shape[1], rows: shape[0], columns: shape[1], segments: [], events: [] };
      tiles.set(key, tile);
    }
    tile.events.push(i);
    if (e.activity[i] === multiply) {
      tile.segments.push({ workgroup: e.workgroup[i], slot: e.slot[i], first: e.first[i], count: e.count[i], begin: e.begin[i], end: e.end[i] });
    }
  }
  for (const tile of tiles.values()) {
    const joined = new Map();
    for (const s of tile.segments) {
      const key = `${s.workgroup}:${s.first}`;
      const known = joined.get(key);
      if (known) { known.begin = Math.min(known.begin, s.begin); known.end = Math.max(known.end, s.end); }
      else joined.set(key, s);
    }
    tile.segments = [...joined.values()].sort((a, b) => a.first - b.first);
    tile.depth = Math.max(1, ...tile.segments.map((s) => s.first + s.count));
    const lone = tile.segments.length === 1;
    tile.segments.forEach((s, place) => {
      s.kind = lone ? "whole" : place === 0 ? "first" : place === tile.segments.length - 1 ? "last" : "middle";
    });
  }
  const order = [...tiles.values()].filter((t) => t.segments.length).sort((a, b) => a.product - b.product || a.row - b.row || a.column - b.column);
  return { byKey: tiles, order };
}

/** Draw the tile map of one product; returns functions from a point to a tile and from a tile to its centre. */
function drawTileMap(canvas, tiles, product, mode, chosen) {
  const own = tiles.order.filter((t) => t.product === product);
  const rows = Math.max(1, ...own.map((t) => t.row + t.rows)), columns = Math.max(1, ...own.map((t) => t.column + t.columns));
  const left = 34, top = 18, room = (canvas.clientWidth || 300) - left - 1;
  const scale = Math.min(room / columns, Math.max(120, Math.min(460, innerHeight * 0.6)) / rows);
  const [pen] = prepare(canvas, Math.ceil(rows * scale) + top + 1);
  const soft = colour("soft");
  pen.fillStyle = soft;
  pen.fillText("n →", left, 11);
  pen.fillText("m ↓", 0, top + 11);
  const lit = chosen && (chosen.tile || chosen.workgroup !== undefined);
  for (const tile of own) {
    const x = left + tile.column * scale, y = top + tile.row * scale, w = tile.columns * scale, h = tile.rows * scale;
    const gap = Math.min(w, h) > 8 ? 1 : 0;
    for (const s of tile.segments) {
      const sx = x + (w - gap) * (s.first / tile.depth), sw = (w - gap) * (s.count / tile.depth);
      const on = !lit || tile.key === chosen.tile || s.workgroup === chosen.workgroup;
      pen.globalAlpha = on ? 1 : 0.22;
      pen.fillStyle = mode === "workgroup" ? workgroupColour(s.workgroup) : KIND_COLOURS[s.kind];
      pen.fillRect(sx, y, sw, h - gap);
      hatch(pen, sx, y, sw, h - gap, s.kind);
      const text = String(s.workgroup), wide = pen.measureText(text).width;
      if (mode === "workgroup" && sw > wide + 6 && h > 13) {
        const from = sx + sw / 2 - wide / 2;
        if (s.kind !== "whole") {
          pen.fillStyle = workgroupColour(s.workgroup);
          pen.fillRect(from - 2, y + h / 2 - 7, wide + 4, 13);
        }
        pen.fillStyle = WHITE_ON.has(workgroupColour(s.workgroup)) ? "#fff" : "#14181f";
        pen.fillText(text, from, y + h / 2 + 4);
      }
    }
    pen.globalAlpha = 1;
    if (chosen && tile.key === chosen.tile) {
      pen.strokeStyle = colour("text");
      pen.lineWidth = 3;
      pen.strokeRect(x - 1, y - 1, w + 1, h + 1);
    }
  }
  return {
    at: (px, py) => {
      const column = (px - left) / scale, row = (py - top) / scale;
      return own.find((t) => column >= t.column && column < t.column + t.columns && row >= t.row && row < t.row + t.rows);
    },
    place: (tile) => [left + (tile.column + tile.columns / 2) * scale, top + (tile.row + tile.rows / 2) * scale],
    own,
  };
}

/** Draw the timeline of a run between two times; returns functions from a point to an event and from an event to its centre. */
function drawTimeline(canvas, run, view, chosen, mode, kinds) {
  const left = 34, bottom = 18, e = run.events;
  const each = Math.max(2, Math.min(16, Math.floor(400 / Math.max(run.slots, 1))));
  const height = run.slots * each;
  const [pen, box] = prepare(canvas, height + bottom);
  const scale = (box - left - 1) / (view.end - view.begin);
  const x = (time) => left + (time - view.begin) * scale;
  pen.fillStyle = colour("sunk");
  pen.fillRect(left, 0, box - left, height);
  pen.save();
  pen.beginPath();
  pen.rect(left, 0, box - left, height);
  pen.clip();
  const idle = colour("gap");
  pen.fillStyle = idle;
  pen.fillRect(x(0), 0, run.makespan * scale, height);
  const lit = chosen && (chosen.tile || chosen.workgroup !== undefined);
  const gap = each > 4 ? 1 : 0;
  for (let i = 0; i < e.begin.length; i++) {
    if (e.end[i] < view.begin || e.begin[i] > view.end) continue;
    const activity = DATA.activities[e.activity[i]], key = `${e.product[i]}:${e.tiling[i]}:${e.m[i]}:${e.n[i]}`;
    const on = !lit || (chosen.tile ? key === chosen.tile : e.workgroup[i] === chosen.workgroup);
    pen.globalAlpha = on ? 1 : 0.2;
    pen.fillStyle = mode === "workgroup" && activity === "multiply" ? workgroupColour(e.workgroup[i]) : colour(BUCKET_OF[activity]);
    const from = x(e.begin[i]), wide = Math.max((e.end[i] - e.begin[i]) * scale, 0.6);
    const behind = e.behind[i], y = e.slot[i] * each, h = each - gap;
    pen.fillRect(from, behind ? y + h * 0.65 : y, wide, behind ? h * 0.35 : h);
    if (each > 6 && activity === "multiply") hatch(pen, from, y, wide, h, kinds(i));
    if (activity === "multiply" && wide > 3) {
      pen.fillStyle = colour("card");
      pen.fillRect(from + wide - 0.8, y, 0.8, h);
    }
  }
  pen.globalAlpha = 1;
  pen.restore();
  pen.fillStyle = colour("soft");
  for (let slot = 0; slot < run.slots; slot += Math.max(1, Math.ceil(28 / each))) pen.fillText(String(slot), 2, Math.min(slot * each + 9, height));
  const step = niceStep((view.end - view.begin) / Math.max(2, Math.floor((box - left) / 90)));
  for (let time = Math.ceil(view.begin / step) * step; time <= view.end; time += step) {
    const at = x(time), text = digits(time / 1000, 6);
    pen.fillRect(at, height, 1, 4);
    pen.fillText(text, Math.min(at + 3, box - pen.measureText(text).width - 1), height + 13);
  }
  return {
    at: (px, py) => {
      const slot = Math.floor(py / each), time = view.begin + (px - left) / scale, slack = 2 / scale;
      let best = -1;
      for (let i = 0; i < e.begin.length; i++) {
        if (e.slot[i] !== slot || time < e.begin[i] - slack || time > e.end[i] + slack) continue;
        if (best < 0 || e.end[i] - e.begin[i] < e.end[best] - e.begin[best] || time > e.end[best]) best = i;
      }
      return best;
    },
    place: (i) => [x((e.begin[i] + e.end[i]) / 2), e.slot[i] * each + each / 2],
    slotAt: (py) => Math.floor(py / each),
  };
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  return power * [1, 2, 5, 10].find((factor) => power * factor >= rough);
}
