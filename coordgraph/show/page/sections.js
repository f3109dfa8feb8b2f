"use strict";
// The sections of the page, in order.

function overview() {
  const h = DATA.headline, run = DATA.runs.find((r) => r.name === h.source), m = DATA.machine;
  const tone = { Yes: "yes", Mostly: "mostly", No: "no" }[h.answer];
  const figure = (name, value, note) => el("div", {}, el("dt", {}, name), el("dd", {}, value, " ", el("small", {}, note)));
  const left = el("div", {},
    el("p", { class: "verdict" }, "Is the GPU busy? ", el("strong", { class: tone }, h.answer + ".")),
    el("p", { class: `answer ${tone}`, id: "utilisation" }, (100 * h.utilisation).toFixed(0), el("small", {}, " %")),
    el("p", { class: "soft" }, `of the ${m.slot === "SM" ? "SMs’" : "slots’"} time is spent multiplying, including waits for loads`, h.source === "measured" ? ", measured" : ", simulated"));
  const [bar, legend] = stack(run);
  const wasted = h.cause === "tiles outside D"; // then no rate of the GPU is the main reason
  const limit = el("p", { class: wasted ? null : "why", id: "limit" }, h.limit.text);
  const why = el("p", { class: wasted ? "why" : null, id: "why" }, h.why);
  const right = el("div", {},
    wasted ? [why, limit] : [limit, why],
    h.advice ? el("p", { class: "try", id: "advice" }, h.advice) : null,
    el("p", { class: "label" }, `Where the time of ${plural(run.slots, m.slot)} goes`), bar, legend,
    el("dl", { class: "figures" },
      figure("time", micros(run.makespan), h.source),
      figure("speed", `${digits(h.flops_per_second / 1e12)} TFLOP/s`, `${percent(h.of_peak)} of the peak of ${digits(h.peak / 1e12)} TFLOP/s`),
      figure("tiles", String(DATA.tiles.count), `${DATA.tiles.shapes.map((s) => s.join("×")).join(", ")}`),
      figure("workgroups", String(m.workgroups), `on ${plural(m.slots, m.slot)}`)),
    m.fallback ? el("p", { class: "small", id: "fallback" }, m.fallback) : null,
    el("p", { class: "small soft", id: "peak" }, `Peak: ${h.peak_source}.`));
  const p = DATA.problem;
  const head = el("div", { class: "head" },
    el("h1", {}, `D = ${p.transpose_a ? "Aᵀ" : "A"} · ${p.transpose_b ? "Bᵀ" : "B"}, ${p.text}, ${p.dtype} to ${p.out_dtype}`),
    el("p", { class: "soft", style: "margin:0" }, el("code", {}, DATA.schedule), ` on ${m.name}, by ${m.instructions}`));
  const node = section("overview", "Overview", "", el("div", { class: "first" }, head, left, right));
  if (h.alternatives.length) node.append(alternativesTable(h));
}

function alternativesTable(h) {
  const base = DATA.runs[0].makespan / 1e9, slowest = Math.max(base, ...h.alternatives.map((a) => a.seconds));
  const rows = [...h.alternatives, { name: "this one", seconds: base, change: 0, utilisation: DATA.runs[0].buckets.multiply / (DATA.runs[0].slots * base), own: true }]
    .sort((a, b) => a.seconds - b.seconds);
  const body = rows.map((a) => el("tr", {},
    el("td", {}, a.own ? el("strong", {}, "this schedule") : el("code", {}, `${a.option} '${a.name}'`)),
    el("td", { class: "number" }, micros(a.seconds * 1e9)),
    el("td", { class: "number" }, a.own ? "" : signed(a.change)),
    el("td", { class: "number" }, percent(a.utilisation)),
    el("td", { style: "width:22%" }, el("span", { class: "meter", style: `width:${100 * a.seconds / slowest}%;${a.own ? "background:var(--soft)" : ""}` }))));
  return el("details", { id: "alternatives" }, el("summary", {}, `Other schedules and plans for this product, simulated (${h.alternatives.length})`),
    el("div", { class: "inside scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ["option", "time", "change", "multiplying", ""].map((t, i) => el("th", { class: i > 0 && i < 4 ? "number" : "" }, t)))), el("tbody", {}, body))));
}

/** The model's terms beside the mean of all slots in each run. */
function modelSection() {
  const t = DATA.terms, number = (seconds) => (seconds === null || seconds === undefined ? "–" : digits(seconds * 1e6, 3));
  const row = (name, what, model, runs) => el("tr", {}, el("td", {}, el("strong", {}, name), " ", el("span", { class: "soft small" }, what)), el("td", { class: "number" }, number(model)), runs.map((s) => el("td", { class: "number" }, number(s))));
  const head = el("tr", {}, el("th", {}, "in µs"), el("th", { class: "number" }, "model"), t.runs.map((name) => el("th", { class: "number" }, name)));
  const body = [...t.rows.map((r) => row(r.name, r.what, r.model, r.runs)), row("total", "", t.total.model, t.total.runs)];
  const bytes = (x) => (x >= 1e9 ? `${digits(x / 1e9)} GB` : x >= 1e6 ? `${digits(x / 1e6)} MB` : `${digits(x / 1e3)} kB`);
  const m = t.memory;
  section("model", "Model", "Where the time goes: the cost model beside the runs",
    el("p", { class: "soft" }, "The model's terms are those of the busiest workgroup: launch, main, tiles, fixup and cluster add up to its total. The terms of a run are means over all slots. The model's total and the simulated one are two predictions: the model computes terms, the simulation runs every workgroup's steps in time, so they differ.", t.note ? ` ${t.note}` : ""),
    el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), el("tbody", {}, body))),
    t.limits.length ? el("div", { class: "scroll" }, el("h3", {}, "The term main is the largest of these"), el("table", {}, el("tbody", {}, t.limits.map((r) => row(r.name, r.what, r.model, []))))) : null,
    el("p", { class: "small soft" }, `Memory delivers ${bytes(m.read)} of A and B (${digits(m.read / m.compulsory)} times their size), the L2 cache is asked for ${bytes(m.asked)}, D has ${bytes(m.stored)}, partial sums and flags have ${bytes(m.workspace)}.`));
}
