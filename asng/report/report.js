"use strict";
// Charts of a report: drawn from the data in the page, read by pointer and keys, zoomed by dragging.

const DATA = JSON.parse(document.getElementById("data").textContent);
for (const curve of DATA.charts.flatMap((chart) => chart.curves)) {
  for (const name of ["step", "time"]) curve[name] = DATA.columns[curve[name]]; // which curves share
}
const MARGIN = { left: 52, right: 12, top: 8, bottom: 34 };
const charts = [];
let axis = "step"; // or "time"
let isPrinting = false;

function svg(name, attributes, parent) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (parent) parent.append(node);
  return node;
}

function html(name, text, parent) {
  const node = document.createElement(name);
  node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

function format(number) {
  if (number === 0) return "0"; // not -0
  const size = Math.abs(number);
  if (size >= 1e6 || size < 1e-3) return number.toExponential(2).replace(/\.?0+e/, "e");
  return number.toLocaleString("en", { maximumSignificantDigits: size >= 1e4 ? 6 : 4 });
}

function linearTicks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = (power < 10 ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10]).map((factor) => factor * power).find((each) => each >= rough);
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + 1e-9 * step; index++) ticks.push(index * step);
  return ticks.length > 1 || count > 8 ? ticks : linearTicks(low, high, count + 1); // one alone tells no scale
}

function logTicks(low, high, count) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const every = Math.max(1, Math.ceil((last - first) / count));
  const factors = last - first <= 2 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let power = first; power <= last; power += every) ticks.push(...factors.map((factor) => factor * 10 ** power));
  const shown = ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  return shown.length > 1 ? shown : linearTicks(low, high, count);
}

function scaleOf(low, high, start, end, isLog) {
  const transform = isLog ? Math.log : (number) => number;
  const [a, b] = [transform(low), transform(high)];
  const scale = (number) => start + ((transform(number) - a) / (b - a || 1)) * (end - start);
  scale.invert = (pixel) => {
    const value = a + ((pixel - start) / (end - start)) * (b - a);
    return isLog ? Math.exp(value) : value;
  };
  scale.ticks = (count) => (isLog ? logTicks : linearTicks)(low, high, count);
  return scale;
}

function widen([low, high], isLog) {
  if (low === high) return isLog ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  return [low, high];
}

class Chart {
  constructor(figure, spec) {
    Object.assign(this, { figure, spec, view: null, cursor: null });
    this.plot = figure.querySelector(".plot");
    this.tip = html("div", "", null);
    this.tip.className = "tip";
    this.tip.hidden = true;
    this.reset = html("button", "Show all", figure);
    this.reset.type = "button";
    this.reset.hidden = true;
    this.reset.addEventListener("click", () => this.zoom(null));
    this.listen();
    figure.querySelector("details").addEventListener("toggle", () => this.fillTable());
    new ResizeObserver(() => !isPrinting && this.plot.clientWidth !== this.width && this.draw()).observe(this.plot);
    this.draw();
  }

  get isTime() { return axis === "time" && this.spec.time; }
  xs(curve) { return this.isTime ? curve.time : curve.step; }
  ends(curve, index) { // of the band around a point
    const y = curve.y[index], spread = curve.spread ? curve.spread[index] : 0;
    if (this.spec.factor) return [y / spread, y * spread];
    return this.spec.log ? [Math.max(y - spread, y / 10), y + spread] : [y - spread, y + spread];
  }
  text(curve, index) {
    const sign = this.spec.factor ? "×/÷" : "±", label = curve.labels ? `: ${curve.labels[index]}` : "";
    return `${format(curve.y[index])}${curve.spread ? ` ${sign} ${format(curve.spread[index])}` : ""}${label}`;
  }

  range() { // of all points in x
    const all = this.spec.curves.flatMap((curve) => this.xs(curve));
    const low = all.reduce((a, b) => Math.min(a, b), Infinity), high = all.reduce((a, b) => Math.max(a, b), -Infinity);
    const [first, last] = widen([low, high], this.spec.logX), room = this.spec.curves.some((curve) => curve.labels) ? (last - first) / 30 : 0;
    return [first - room, last + room];
  }

  rangeY([low, high]) { // of the points in view
    if (this.spec.share) return [0, 1];
    let ends = [Infinity, -Infinity];
    for (const curve of this.spec.curves) {
      this.xs(curve).forEach((x, index) => {
        if (x < low || x > high) return;
        const [bottom, top] = this.ends(curve, index);
        ends = [Math.min(ends[0], bottom), Math.max(ends[1], top)];
      });
    }
    if (ends[0] > ends[1]) return [0, 1];
    ends = widen(ends, this.spec.log);
    const room = this.spec.log ? (ends[1] / ends[0]) ** 0.05 : (ends[1] - ends[0]) * 0.05;
    if (this.spec.log) return [ends[0] / room, ends[1] * room];
    return [ends[0] >= 0 ? Math.max(0, ends[0] - room) : ends[0] - room, ends[1] + room];
  }

  draw() {
    const isSmall = this.figure.classList.contains("small"), height = isSmall ? 150 : 230;
    this.width = isPrinting ? (isSmall ? 260 : 400) : this.plot.clientWidth;
    const width = Math.max(this.width, 160);
    const domain = this.view || this.range(), extent = this.rangeY(domain);
    this.x = scaleOf(...domain, MARGIN.left, width - MARGIN.right, this.spec.logX);
    this.y = scaleOf(...extent, height - MARGIN.bottom, MARGIN.top, this.spec.log);
    this.plot.replaceChildren();
    this.root = svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, this.plot);
    this.size = { width, height };
    this.drawAxes(domain);
    const clip = `clip${this.figure.dataset.chart}`;
    const box = { x: MARGIN.left, y: 0, width: width - MARGIN.left - MARGIN.right + 1, height: height - MARGIN.bottom + 1 };
    svg("rect", box, svg("clipPath", { id: clip }, this.root));
    const group = svg("g", { "clip-path": `url(#${clip})` }, this.root);
    for (const curve of this.spec.curves) this.drawCurve(curve, group);
    this.marks = svg("g", {}, this.root);
    this.plot.append(this.tip);
    this.reset.hidden = this.view === null;
    this.point(null);
  }

  timeUnit() {
    const last = this.range()[1];
    return last > 7200 ? [3600, "hours"] : last > 300 ? [60, "minutes"] : [1, "seconds"];
  }

  drawAxes() {
    const { width, height } = this.size, bottom = height - MARGIN.bottom;
    for (const tick of this.y.ticks(5)) {
      const y = this.y(tick);
      svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }, this.root);
      svg("text", { x: MARGIN.left - 6, y: y + 4, "text-anchor": "end" }, this.root).textContent = format(tick);
    }
    const [unit, name] = this.isTime ? this.timeUnit() : [1, this.spec.x];
    const scale = this.isTime ? scaleOf(this.x.invert(MARGIN.left) / unit, this.x.invert(width - MARGIN.right) / unit,
      MARGIN.left, width - MARGIN.right, false) : this.x;
    const ticks = scale.ticks(Math.max(2, Math.floor(width / 75)));
    const whole = ticks.filter(Number.isInteger); // there is no half of an epoch
    for (const tick of this.spec.time && !this.isTime && whole.length > 1 ? whole : ticks) {
      const x = scale(tick);
      svg("line", { class: "frame", x1: x, x2: x, y1: bottom, y2: bottom + 4 }, this.root);
      const anchor = x > width - 28 ? "end" : "middle";
      svg("text", { x, y: bottom + 16, "text-anchor": anchor }, this.root).textContent = format(tick);
    }
    const middle = (MARGIN.left + width - MARGIN.right) / 2;
    svg("text", { x: middle, y: height - 3, "text-anchor": "middle" }, this.root).textContent = name;
    svg("path", { class: "frame", d: `M${MARGIN.left} ${MARGIN.top}V${bottom}H${width - MARGIN.right}` }, this.root);
  }

  drawCurve(curve, parent) {
    const pixels = this.xs(curve).map((x, index) => [this.x(x), this.y(curve.y[index])]);
    if (!pixels.length) return;
    const line = (points) => points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");
    if (curve.spread) {
      const end = (side) => this.xs(curve).map((x, index) => [this.x(x), this.y(this.ends(curve, index)[side])]);
      svg("path", { class: `band c${curve.color}`, d: `M${line([...end(1), ...end(0).reverse()])}z` }, parent);
    }
    const faint = curve.faint ? " faint" : "";
    if (!curve.labels) svg("path", { class: `curve c${curve.color} d${curve.dash}${faint}`, d: `M${line(pixels)}` }, parent);
    else if (!curve.faint) { // steps from one point of a front to the next
      const steps = pixels.map(([x, y], index) => (index ? `H${x.toFixed(1)}V${y.toFixed(1)}` : `M${x.toFixed(1)} ${y.toFixed(1)}`));
      svg("path", { class: `curve c${curve.color}`, d: steps.join("") }, parent);
    }
    for (const [cx, cy] of curve.labels || pixels.length === 1 ? pixels : []) {
      svg("circle", { class: `dot c${curve.color}${faint}`, cx, cy, r: 4 }, parent);
    }
  }

  positions() { // the x of all points in view, in order, each once
    const [low, high] = this.view || this.range();
    const xs = this.spec.curves.filter((curve) => !curve.faint).flatMap((curve) => this.xs(curve));
    return [...new Set(xs)].filter((x) => x >= low && x <= high).sort((a, b) => a - b);
  }

  point(x) { // read the values at x; null: at none
    this.cursor = x;
    this.marks.replaceChildren();
    this.tip.hidden = x === null;
    if (x === null) return;
    const { height, width } = this.size, pixel = this.x(x);
    svg("line", { class: "cursor", x1: pixel, x2: pixel, y1: MARGIN.top, y2: height - MARGIN.bottom }, this.marks);
    const [unit, name] = this.isTime ? this.timeUnit() : [1, this.spec.x];
    this.tip.replaceChildren();
    const lines = [`${name} ${format(x / unit)}`];
    html("b", lines[0], this.tip);
    for (const curve of this.spec.curves.filter((each) => !each.faint)) {
      const index = this.xs(curve).indexOf(x);
      if (index < 0) continue;
      svg("circle", { class: `dot c${curve.color}`, cx: pixel, cy: this.y(curve.y[index]), r: 4 }, this.marks);
      lines.push(`${curve.name} ${this.text(curve, index)}`);
      html("div", lines.at(-1), this.tip).className = `c${curve.color}`;
    }
    const share = (pixel / width) * 100;
    this.tip.style.left = share < 50 ? `calc(${share}% + 10px)` : "auto";
    this.tip.style.right = share < 50 ? "auto" : `calc(${100 - share}% + 10px)`;
    return lines.join(", ");
  }

  zoom(view) {
    const [low, high] = this.range();
    this.view = view && (view[0] > low || view[1] < high) ? [Math.max(view[0], low), Math.min(view[1], high)] : null;
    this.draw();
  }

  zoomBy(factor) { // around the cursor, or the middle
    const [low, high] = [MARGIN.left, this.size.width - MARGIN.right];
    const middle = this.cursor === null ? (low + high) / 2 : this.x(this.cursor), half = ((high - low) * factor) / 2;
    const cursor = this.cursor;
    this.zoom([this.x.invert(middle - half), this.x.invert(middle + half)]);
    if (cursor !== null) this.point(cursor);
  }

  listen() {
    let start = null, selection = null;
    const pixelOf = (event) => {
      const box = this.root.getBoundingClientRect();
      const pixel = ((event.clientX - box.left) * this.size.width) / box.width;
      return Math.min(Math.max(pixel, MARGIN.left), this.size.width - MARGIN.right);
    };
    const move = (event) => {
      const pixel = pixelOf(event);
      if (start !== null) {
        if (!selection) selection = svg("rect", { class: "selection", y: MARGIN.top, height: this.size.height - MARGIN.top - MARGIN.bottom }, this.root);
        selection.setAttribute("x", Math.min(start, pixel));
        selection.setAttribute("width", Math.abs(pixel - start));
      }
      const xs = this.positions();
      if (xs.length) this.point(xs.reduce((best, x) => Math.abs(this.x(x) - pixel) < Math.abs(this.x(best) - pixel) ? x : best));
    };
    const end = (event) => {
      const from = start, pixel = pixelOf(event);
      start = null;
      if (selection) selection.remove();
      selection = null;
      if (from !== null && Math.abs(pixel - from) > 8) {
        this.zoom([from, pixel].sort((a, b) => a - b).map((each) => this.x.invert(each)));
      }
    };
    const cancel = () => { start = null; if (selection) selection.remove(); selection = null; };
    this.plot.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      start = pixelOf(event);
      this.plot.setPointerCapture(event.pointerId);
      move(event);
    });
    this.plot.addEventListener("pointermove", move);
    this.plot.addEventListener("pointerup", end);
    this.plot.addEventListener("pointercancel", cancel);
    this.plot.addEventListener("pointerleave", () => start === null && this.point(null));
    this.plot.addEventListener("blur", () => this.point(null));
    this.plot.addEventListener("dblclick", () => this.zoom(null));
    this.plot.addEventListener("keydown", (event) => this.press(event));
  }

  press(event) {
    const xs = this.positions(), now = xs.indexOf(this.cursor);
    const moves = { ArrowRight: Math.min(now + 1, xs.length - 1), ArrowLeft: now < 0 ? xs.length - 1 : Math.max(now - 1, 0), Home: 0, End: xs.length - 1 };
    const zooms = { "+": () => this.zoomBy(0.5), "=": () => this.zoomBy(0.5), "-": () => this.zoomBy(2), 0: () => this.zoom(null), Escape: () => this.zoom(null) };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves && xs.length) {
      this.figure.querySelector("output").textContent = this.point(xs[moves[event.key]]);
    } else if (event.key in zooms) {
      zooms[event.key]();
    } else return;
    event.preventDefault();
  }

  fillTable() {
    const box = this.figure.querySelector(".numbers .scroll");
    if (box.firstChild) return;
    box.tabIndex = 0;
    const table = html("table", "", box), head = table.createTHead().insertRow(), rows = new Map();
    const names = [this.spec.x, ...(this.spec.time ? ["seconds"] : []), ...this.spec.curves.map((curve) => curve.name)];
    for (const name of names) html("th", name, head).scope = "col";
    this.spec.curves.forEach((curve, column) => curve.step.forEach((step, index) => {
      if (!rows.has(step)) rows.set(step, [curve.time[index], []]);
      rows.get(step)[1][column] = this.text(curve, index);
    }));
    const body = table.createTBody();
    for (const [step, [time, numbers]] of [...rows].sort((a, b) => a[0] - b[0])) {
      const row = body.insertRow();
      html("th", format(step), row).scope = "row";
      if (this.spec.time) html("td", format(time), row);
      this.spec.curves.forEach((_, column) => html("td", numbers[column] ?? "", row));
    }
  }
}

for (const figure of document.querySelectorAll("figure.chart")) {
  charts.push(new Chart(figure, DATA.charts[Number(figure.dataset.chart)]));
}

// Switches: the x-axis of all charts, and the run of which the architecture and the probabilities are shown.
const memory = { // which lasts as long as the tab, where the browser allows it
  get(name) { try { return sessionStorage.getItem(location.pathname + name); } catch { return null; } },
  set(name, value) { try { sessionStorage.setItem(location.pathname + name, value); } catch { /* private mode */ } },
};
const ACTIONS = {
  axis(value) { axis = value; for (const chart of charts) chart.zoom(null); },
  run(value) { for (const part of document.querySelectorAll("[data-run]")) part.hidden = part.dataset.run !== value; },
};
const inputs = [...document.querySelectorAll("input[data-switch]")];
function choose(kind, value) {
  const same = inputs.filter((input) => input.dataset.switch === kind && input.value === value);
  if (!same.length) return;
  for (const input of same) input.checked = true;
  ACTIONS[kind](value);
  memory.set(kind, value);
}
for (const input of inputs) input.addEventListener("change", () => choose(input.dataset.switch, input.value));
for (const kind of Object.keys(ACTIONS)) {
  const same = inputs.filter((input) => input.dataset.switch === kind);
  if (same.length) choose(kind, (same.find((input) => input.value === memory.get(kind)) || same[0]).value);
}
function print(start) { // all runs are printed, in charts that fit the paper
  isPrinting = start;
  for (const part of document.querySelectorAll("[data-run]")) part.hidden = false;
  const chosen = inputs.find((input) => input.dataset.switch === "run" && input.checked);
  if (!start && chosen) ACTIONS.run(chosen.value);
  for (const chart of charts) chart.draw();
}
addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));
if (DATA.reload) {
  const isBusy = () => charts.some((chart) => chart.view || chart.cursor !== null) || document.querySelector("details[open]");
  setInterval(() => document.getElementById("reload").checked && !isBusy() && location.reload(), DATA.reload * 1000);
}
