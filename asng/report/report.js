"use strict";
// Charts of a report: drawn from the data in the page, read by pointer and keys, zoomed by dragging.

const DATA = JSON.parse(document.getElementById("data").textContent);
const MARGIN = { left: 52, right: 12, top: 8, bottom: 34 };
const charts = [];
let axis = "step"; // or "time"

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
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + 1e-9 * step; index++) ticks.push(index * step);
  return ticks;
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
    new ResizeObserver(() => this.plot.clientWidth !== this.width && this.draw()).observe(this.plot);
    this.draw();
  }

  get isTime() { return axis === "time" && !this.spec.logX; }
  xs(curve) { return this.isTime ? curve.time : curve.step; }

  range() { // of all points in x
    const all = this.spec.curves.flatMap((curve) => this.xs(curve));
    const low = all.reduce((a, b) => Math.min(a, b), Infinity), high = all.reduce((a, b) => Math.max(a, b), -Infinity);
    return widen([low, high], this.spec.logX);
  }

  rangeY([low, high]) { // of the points in view
    if (this.spec.unit) return [0, 1];
    let ends = [Infinity, -Infinity];
    for (const curve of this.spec.curves) {
      this.xs(curve).forEach((x, index) => {
        if (x < low || x > high) return;
        const spread = curve.spread && !this.spec.log ? curve.spread[index] : 0;
        ends = [Math.min(ends[0], curve.y[index] - spread), Math.max(ends[1], curve.y[index] + spread)];
      });
    }
    if (ends[0] > ends[1]) return [0, 1];
    ends = widen(ends, this.spec.log);
    const room = this.spec.log ? (ends[1] / ends[0]) ** 0.05 : (ends[1] - ends[0]) * 0.05;
    if (this.spec.log) return [ends[0] / room, ends[1] * room];
    return [ends[0] >= 0 ? Math.max(0, ends[0] - room) : ends[0] - room, ends[1] + room];
  }

  draw() {
    this.width = this.plot.clientWidth;
    const width = Math.max(this.width, 160), height = this.figure.classList.contains("small") ? 150 : 230;
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
    for (const tick of scale.ticks(Math.max(2, Math.floor(width / 75)))) {
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
      const end = (sign) => this.xs(curve).map((x, index) => {
        const value = curve.y[index] + sign * curve.spread[index];
        return [this.x(x), this.spec.log && value <= 0 ? this.size.height : this.y(value)];
      });
      svg("path", { class: `band c${curve.color}`, d: `M${line([...end(1), ...end(-1).reverse()])}z` }, parent);
    }
    const look = `curve c${curve.color} d${curve.dash}${curve.faint ? " faint" : ""}`;
    svg("path", { class: look, d: `M${line(pixels)}` }, parent);
    if (pixels.length === 1) svg("circle", { class: `dot c${curve.color}`, cx: pixels[0][0], cy: pixels[0][1], r: 4 }, parent);
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
      const spread = curve.spread ? ` ± ${format(curve.spread[index])}` : "";
      lines.push(`${curve.name} ${format(curve.y[index])}${spread}`);
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
    const names = [this.spec.x, ...(this.spec.logX ? [] : ["seconds"]), ...this.spec.curves.map((curve) => curve.name)];
    for (const name of names) html("th", name, head).scope = "col";
    this.spec.curves.forEach((curve, column) => curve.step.forEach((step, index) => {
      if (!rows.has(step)) rows.set(step, [curve.time[index], []]);
      const spread = curve.spread ? ` ± ${curve.spread[index]}` : "";
      rows.get(step)[1][column] = `${curve.y[index]}${spread}`;
    }));
    const body = table.createTBody();
    for (const [step, [time, numbers]] of [...rows].sort((a, b) => a[0] - b[0])) {
      const row = body.insertRow();
      html("th", step, row).scope = "row";
      if (!this.spec.logX) html("td", time, row);
      this.spec.curves.forEach((_, column) => html("td", numbers[column] ?? "", row));
    }
  }
}

for (const figure of document.querySelectorAll("figure.chart")) {
  charts.push(new Chart(figure, DATA.charts[Number(figure.dataset.chart)]));
}
for (const input of document.querySelectorAll("input[name=axis]")) {
  input.addEventListener("change", () => {
    axis = input.value;
    for (const chart of charts) chart.zoom(null);
  });
}
if (DATA.reload) {
  const isBusy = () => charts.some((chart) => chart.view || chart.cursor !== null) || document.querySelector("details[open]");
  setInterval(() => document.getElementById("reload").checked && !isBusy() && location.reload(), DATA.reload * 1000);
}
