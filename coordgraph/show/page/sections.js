"use strict";
// The sections of the page, in order.

function overview() {
  const h = DATA.headline, run = DATA.runs.find((r) => r.name === h.source), m = DATA.machine;
  const tone = { Yes: "yes", Mostly: "mostly", No: "no" }[h.answer];
  const figure = (name, value, note) => el("div", {}, el("dt", {}, name), el("dd", {}, value, " ", el("small", {}, note)));
  const left = el("div", {},
    el("p", { class: "verdict" }, "Is the GPU busy? ", el("strong", { class: tone }, h.answer + ".")),
    el("p", { class: `answer ${tone}`, id: "utilisation" }, (100 * h.utilisation).toFixed(0), el("small", {}, " %")),
    el("p", { class: "soft" }, `of the ${m.slot === "SM" ? "SMs’" : "slots’"} time they multiply`, h.source === "measured" ? ", measured" : ", simulated"));
  const [bar, legend] = stack(run);
  const right = el("div", {},
    el("p", { class: "why", id: "why" }, h.why),
    h.advice ? el("p", { class: "try", id: "advice" }, h.advice) : null,
    el("p", { class: "label" }, `Where the time of ${plural(run.slots, m.slot)} goes`), bar, legend,
    el("dl", { class: "figures" },
      figure("time", micros(run.makespan), h.source),
      figure("speed", `${digits(h.flops_per_second / 1e12)} TFLOP/s`, `${percent(h.of_peak)} of ${digits(h.peak / 1e12)}`),
      figure("tiles", String(DATA.tiles.count), `${DATA.tiles.shapes.map((s) => s.join("×")).join(", ")}`),
      figure("workgroups", String(m.workgroups), `on ${plural(m.slots, m.slot)}`)));
  const p = DATA.problem;
  const head = el("div", { class: "head" },
    el("h1", {}, `D = ${p.transpose_a ? "Aᵀ" : "A"} · ${p.transpose_b ? "Bᵀ" : "B"}, ${p.text}, ${p.dtype} to ${p.out_dtype}`),
    el("p", { class: "soft", style: "margin:0" }, el("code", {}, DATA.schedule), ` on ${m.name}`));
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

overview();
linkedSection();
document.getElementById("footer").append(`coordgraph ${DATA.version}. This file is complete: it loads nothing and sends nothing.`);
document.documentElement.dataset.ready = "true";
