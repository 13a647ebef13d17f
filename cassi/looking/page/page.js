// Draws a report and joins pointer, keyboard and spectra. Text reaches the page through textContent alone.
"use strict";

(async () => {
  const $ = (id) => document.getElementById(id);
  const facts = JSON.parse($("facts").textContent);
  const [bands, height, width] = facts.shape;
  const colors = ["#4285d6", "#e2711d", "#1f9d6b", "#d6569b", "#b8860b", "#1aa3b8", "#d6453d", "#8b6fd6"];
  const order = [...facts.centers.keys()].sort((a, b) => facts.centers[a] - facts.centers[b]);
  const centers = order.map((c) => facts.centers[c]);
  const kept = []; // {number, color, rows: [r0, r1), columns: [c0, c1), values, truth, uncertainty}
  let counted = 0;
  let cursor = null; // {row, column}

  const short = (v) => (Number.isFinite(v) ? String(Number(v.toPrecision(3))) : "none");
  const bandName = (c) => (facts.in_nm ? `${Number(facts.centers[c].toFixed(1))} nm` : `band ${c + 1}`);
  const placeOf = ({ rows, columns }) => {
    const [r0, r1, c0, c1] = [rows[0], rows[1] - 1, columns[0], columns[1] - 1].map((at) => at * facts.thin);
    return r0 === r1 && c0 === c1 ? `row ${r0}, column ${c0}` : `rows ${r0}–${r1}, columns ${c0}–${c1}`;
  };

  function trouble(error) {
    $("trouble").hidden = false;
    $("trouble").textContent = `This page cannot be shown completely: ${error.message || error}`;
  }
  if (typeof DecompressionStream === "undefined") {
    trouble("it needs a browser of 2023 or later");
    return;
  }

  // Cubes

  async function unpack(name) {
    const { shape: [planes, rows, columns], low, step, missing } = facts.arrays[name];
    const element = $(`data-${name}`);
    const text = atob(element.textContent);
    element.textContent = "";
    const packed = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
    const size = planes * rows * columns;
    const values = new Float32Array(size);
    let above = new Int32Array(columns);
    for (let i = 0; i < size; ) {
      const plane = Math.floor(i / (rows * columns));
      if (i % (rows * columns) === 0) above = new Int32Array(columns);
      for (let j = 0, left = 0, corner = 0; j < columns; j++, i++) {
        const folded = bytes[i] | (bytes[size + i] << 8);
        const level = ((folded >>> 1) ^ -(folded & 1)) + left + above[j] - corner;
        corner = above[j];
        above[j] = left = level;
        values[i] = level === missing ? NaN : low[plane] + step[plane] * level;
      }
    }
    return { values, planes, rows, columns };
  }

  function meanSpectrum(cube, [r0, r1], [c0, c1]) {
    return order.map((c) => {
      let sum = 0;
      for (let i = r0; i < r1; i++)
        for (let j = c0; j < c1; j++) sum += cube.values[(c * cube.rows + i) * cube.columns + j];
      return sum / ((r1 - r0) * (c1 - c0));
    });
  }

  const cubes = {};

  const band = (c) => ({
    values: cubes.cube.values.subarray(c * height * width, (c + 1) * height * width),
    rows: height,
    columns: width,
  });

  const spectrum = (rows, columns) => ({
    values: meanSpectrum(cubes.cube, rows, columns),
    truth: cubes.truth ? meanSpectrum(cubes.truth, rows, columns) : null,
    uncertainty: cubes.uncertainty ? meanSpectrum(cubes.uncertainty, rows, columns) : null,
  });

  // Pictures: a canvas, and marks above it at their share of its sides; all pictures of the scene zoom together

  const view = { scale: 1, left: 0, top: 0 }; // left and top in widths and heights of the frame
  const scenes = ["picture", "band"].map((name) => $(`plot-${name}`));

  function part(parent, tag, className, text = "") {
    const made = document.createElement(tag);
    made.className = className;
    made.textContent = text;
    parent.append(made);
    return made;
  }

  for (const frame of document.querySelectorAll(".scene, .detector")) {
    const inner = part(frame, "div", "inner");
    part(inner, "canvas", "");
    part(inner, "div", "marks");
  }

  function paint(name, rows, columns, color) {
    const canvas = $(`plot-${name}`).querySelector("canvas");
    [canvas.width, canvas.height] = [columns, rows];
    const context = canvas.getContext("2d");
    const image = context.createImageData(columns, rows);
    const pixels = new Uint32Array(image.data.buffer);
    for (let i = 0; i < pixels.length; i++) pixels[i] = color(i);
    context.putImageData(image, 0, 0);
  }

  // A picture of numbers between colors of the style sheet; what is no number stays clear
  function paintValues(name, { values, rows, columns }, [low, high], stops) {
    const channels = stops.map((stop) => [1, 3, 5].map((k) => parseInt(stop.slice(k, k + 2), 16)));
    const table = Array.from({ length: 256 }, (_, i) => {
      const at = (i / 255) * (stops.length - 1);
      const k = Math.min(Math.floor(at), stops.length - 2);
      const [r, g, b] = channels[k].map((one, j) => Math.round(one + (at - k) * (channels[k + 1][j] - one)));
      return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
    });
    const scale = 255 / (high - low || 1);
    paint(name, rows, columns, (i) =>
      Number.isFinite(values[i]) ? table[Math.round(Math.min(255, Math.max(0, scale * (values[i] - low))))] : 0,
    );
  }

  const share = (value, of) => `${(100 * value) / of}%`;

  function mark(className, rows, columns, color, text = "") {
    for (const scene of scenes) {
      const made = part(scene.querySelector(".marks"), "i", `mark ${className}`);
      made.style.setProperty("--color", color);
      made.style.left = share(columns[0], width);
      made.style.top = share(rows[0], height);
      if (className !== "point" && className !== "cursor") {
        made.style.width = share(columns[1] - columns[0], width);
        made.style.height = share(rows[1] - rows[0], height);
      }
      if (text) part(made, "b", "", text);
    }
  }

  function zoom(factor, x, y) {
    const scale = Math.min(64, Math.max(1, view.scale * factor));
    const moved = (at, start) => Math.min(0, Math.max(1 - scale, at - ((at - start) * scale) / view.scale));
    Object.assign(view, { left: moved(x, view.left), top: moved(y, view.top), scale });
    for (const scene of scenes)
      Object.assign(scene.querySelector(".inner").style, {
        width: `${100 * scale}%`,
        height: `${100 * scale}%`,
        left: `${100 * view.left}%`,
        top: `${100 * view.top}%`,
      });
  }

  // Curves: a drawing of its own, made anew whenever something changes

  function element(parent, tag, attributes, text = "") {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    parent.append(made);
    return made;
  }

  function ticks(low, high, count) {
    const rough = (high - low) / count;
    const ten = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((k) => k * ten).find((one) => one >= rough);
    const found = [];
    for (let k = Math.ceil(low / step); k * step <= high; k++) found.push(k * step);
    return found;
  }

  // curves: {xs, ys, kind, color, until}; with `until` the area between ys and until
  function chart(id, curves, { labels, log = false, here = null }) {
    const place = $(id);
    const [across, down] = [place.clientWidth, place.clientHeight];
    const [left, right, top, bottom] = [66, 12, 8, 46];
    const seen = (v) => Number.isFinite(v) && (!log || v > 0);
    const to = log ? Math.log10 : (v) => v;
    const range = (values, fallback) => {
      const found = values.filter(seen).map(to);
      if (!found.length) return fallback;
      const [low, high] = found.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
      return high > low ? [low, high] : [low - 0.5, high + 0.5];
    };
    const plain = (values) => values.filter(Number.isFinite);
    const xs = curves.flatMap((one) => plain(one.xs));
    const [x0, x1] = xs.length > 1 && Math.max(...xs) > Math.min(...xs) ? [Math.min(...xs), Math.max(...xs)] : [(xs[0] ?? 0) - 1, (xs[0] ?? 0) + 1];
    let [y0, y1] = range(curves.flatMap((one) => [...one.ys, ...(one.until || [])]), log ? [-3, 0] : [0, 1]);
    [y0, y1] = [y0 - 0.05 * (y1 - y0), y1 + 0.05 * (y1 - y0)];
    const xOf = (x) => left + ((x - x0) / (x1 - x0)) * (across - left - right);
    const yOf = (y) => down - bottom - ((to(y) - y0) / (y1 - y0)) * (down - top - bottom);
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    element(svg, "text", { x: (left + across - right) / 2, y: down - 6, class: "label" }, labels[0]);
    element(svg, "text", { transform: `translate(14 ${(down - bottom + top) / 2}) rotate(-90)`, class: "label" }, labels[1]);
    for (const x of ticks(x0, x1, Math.max(2, across / 110)))
      element(svg, "text", { x: xOf(x), y: down - bottom + 18, class: "tick" }, short(x));
    const levels = log ? ticks(y0, y1, 6).filter(Number.isInteger).map((k) => 10 ** k) : ticks(y0, y1, 6);
    for (const y of levels) {
      element(svg, "line", { x1: left, x2: across - right, y1: yOf(y), y2: yOf(y), class: "grid" });
      element(svg, "text", { x: left - 8, y: yOf(y) + 4, class: "tick side" }, short(y));
    }
    element(svg, "line", { x1: left, x2: across - right, y1: down - bottom, y2: down - bottom, class: "axis" });
    if (here !== null) element(svg, "line", { x1: xOf(here), x2: xOf(here), y1: top, y2: down - bottom, class: "here" });
    const line = (xs, ys) => {
      let pen = "M";
      const points = [];
      for (let i = 0; i < xs.length; i++) {
        if (!seen(ys[i])) pen = "M";
        else points.push(`${pen}${xOf(xs[i]).toFixed(1)} ${yOf(ys[i]).toFixed(1)}`), (pen = "L");
      }
      return points.join("");
    };
    for (const { xs, ys, kind, color, until } of curves) {
      if (until) {
        const d = line([...xs, ...[...xs].reverse()], [...ys, ...[...until].reverse()]);
        element(svg, "path", { d, class: kind, fill: color });
        continue;
      }
      element(svg, "path", { d: line(xs, ys), class: kind, ...(color && { stroke: color }) });
      if (kind !== "truth" && xs.length <= 60)
        xs.forEach((x, i) => seen(ys[i]) && element(svg, "circle", { cx: xOf(x), cy: yOf(ys[i]), r: 2.5, class: kind, ...(color && { fill: color }) }));
    }
    svg.setAttribute("viewBox", `0 0 ${across} ${down}`);
    place.replaceChildren(svg);
    return (pixel) => x0 + ((pixel - left) / (across - left - right)) * (x1 - x0);
  }

  let passing = null; // the spectrum under the pointer
  let waveAt = () => 0;

  function drawSpectra() {
    const shown = Number(slider.value);
    const curves = kept.filter((one) => one.uncertainty).map(({ values, uncertainty, color }) => ({
      xs: centers,
      ys: values.map((v, i) => v + uncertainty[i]),
      until: values.map((v, i) => v - uncertainty[i]),
      kind: "deviation",
      color,
    }));
    if (passing) curves.push({ xs: centers, ys: passing, kind: "passing", color: "#8a8f98" });
    for (const one of kept) if (one.truth) curves.push({ xs: centers, ys: one.truth, kind: "truth", color: one.color });
    for (const one of kept) curves.push({ xs: centers, ys: one.values, kind: "kept", color: one.color });
    waveAt = chart("plot-spectra", curves, { labels: facts.labels, here: facts.centers[shown] });
  }

  function drawConvergence() {
    if (!facts.history.length) return;
    const column = (k) => facts.history.map((record) => record[k]);
    const curve = (k, kind) => ({ xs: column(0), ys: column(k), kind });
    const curves = [curve(2, "residual"), curve(3, "change")];
    chart("plot-convergence", curves, { labels: ["iteration", "relative"], log: true });
  }

  const pictures = {};
  const slider = $("band");

  function drawAll() {
    const css = getComputedStyle(document.documentElement).getPropertyValue("--diverging");
    const stops = { measurement: ["#000000", "#ffffff"], residual: css.split(",").map((one) => one.trim()) };
    for (const [name, picture] of Object.entries(pictures)) paintValues(name, picture, facts.limits[name], stops[name]);
    drawSpectra();
    drawConvergence();
  }
  addEventListener("resize", drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

  try {
    const { values, rows, columns } = await unpack("picture");
    const channel = (p, i) => Math.round(255 * values[p * rows * columns + i]);
    paint("picture", rows, columns, (i) => ((255 << 24) | (channel(2, i) << 16) | (channel(1, i) << 8) | channel(0, i)) >>> 0);
    for (const name of ["measurement", "residual"]) if (facts.arrays[name]) pictures[name] = await unpack(name);
    drawAll();
  } catch (error) {
    trouble(error);
  }
  for (const name of ["cube", "truth", "uncertainty"]) if (facts.arrays[name]) cubes[name] = await unpack(name);

  // Bands

  slider.max = String(bands - 1);

  function robustRange(values) {
    const sample = [];
    const every = Math.max(1, Math.floor(values.length / 20000));
    for (let i = 0; i < values.length; i += every) if (Number.isFinite(values[i])) sample.push(values[i]);
    if (!sample.length) return [0, 1];
    sample.sort((a, b) => a - b);
    return [sample[Math.floor(0.002 * (sample.length - 1))], sample[Math.ceil(0.998 * (sample.length - 1))]];
  }

  function showBand(c) {
    slider.value = String(c);
    slider.setAttribute("aria-valuetext", bandName(c));
    $("band-name").textContent = `${bandName(c)}, ${c + 1} of ${bands}`;
    $("plot-spectra").dataset.here = String(facts.centers[c]);
    drawSpectra();
    listKept();
    const { values, rows, columns } = band(c);
    let [low, high] = $("common").checked ? facts.range : robustRange(values);
    if (!(high > low)) high = low + 1;
    $("band-low").textContent = short(low);
    $("band-high").textContent = short(high);
    paintValues("band", { values, rows, columns }, [low, high], ["#000000", "#ffffff"]);
    $("plot-band").dataset.band = String(c);
  }
  slider.addEventListener("input", () => showBand(Number(slider.value)));
  $("common").addEventListener("change", () => showBand(Number(slider.value)));

  // Spectra

  function drawKept() {
    for (const scene of scenes) scene.querySelector(".marks").replaceChildren();
    for (const { box, rows, columns, color, number } of kept) {
      if (box) mark("box", rows, columns, color, number);
      else mark("point", [rows[0] + 0.5], [columns[0] + 0.5], color, number);
    }
    if (cursor) mark("cursor", [cursor.row + 0.5], [cursor.column + 0.5], "white");
    drawSpectra();
    listKept();
  }

  function listKept() {
    const at = order.indexOf(Number(slider.value));
    $("list").replaceChildren(
      ...kept.map((one) => {
        const item = document.createElement("li");
        const badge = document.createElement("b");
        badge.textContent = String(one.number);
        badge.style.background = one.color;
        const place = document.createElement("span");
        place.className = "place";
        place.textContent = placeOf(one);
        const value = document.createElement("span");
        value.className = "value";
        value.textContent =
          short(one.values[at]) +
          (one.uncertainty ? ` ± ${short(one.uncertainty[at])}` : "") +
          (one.truth ? `, true ${short(one.truth[at])}` : "");
        const remove = document.createElement("button");
        remove.type = "button";
        remove.textContent = "×";
        remove.setAttribute("aria-label", `Remove spectrum ${one.number}, ${placeOf(one)}`);
        remove.addEventListener("click", () => {
          kept.splice(kept.indexOf(one), 1);
          drawKept();
        });
        const words = document.createElement("div");
        words.append(place, value);
        item.append(badge, words, remove);
        return item;
      }),
    );
    $("save").disabled = $("clear").disabled = kept.length === 0;
  }

  function keep(rows, columns, box) {
    if (kept.some((one) => String([one.rows, one.columns]) === String([rows, columns]))) return;
    const found = spectrum(rows, columns);
    const used = new Set(kept.map((one) => one.color));
    const color = colors.find((one) => !used.has(one)) || colors[counted % colors.length];
    counted = kept.length ? counted + 1 : 1;
    kept.push({ number: counted, color, rows, columns, box, ...found });
    drawKept();
  }

  const inPicture = (row, column) => row >= 0 && row < height && column >= 0 && column < width;
  let asked = null; // the pixel whose spectrum passes under the pointer

  function pass(row, column) {
    if (asked && asked[0] === row && asked[1] === column) return;
    asked = [row, column];
    passing = spectrum([row, row + 1], [column, column + 1]).values;
    drawSpectra();
    const value = short(passing[order.indexOf(Number(slider.value))]);
    $("under").textContent =
      `row ${row * facts.thin}, column ${column * facts.thin}: ${value} at ${bandName(Number(slider.value))}`;
  }

  function forget() {
    asked = null;
    passing = null;
    drawSpectra();
    $("under").textContent = "";
  }

  for (const scene of scenes) {
    const pixel = ({ clientX, clientY }) => {
      const at = scene.querySelector(".inner").getBoundingClientRect();
      return [((clientY - at.top) / at.height) * height, ((clientX - at.left) / at.width) * width];
    };
    const span = (a, b, size) => [Math.max(0, Math.floor(Math.min(a, b))), Math.min(size, Math.ceil(Math.max(a, b)))];
    let from = null; // where a box begins, in pixels of the screen and of the scene
    scene.addEventListener("pointerdown", (event) => {
      if (event.button === 0) from = { x: event.clientX, y: event.clientY, at: pixel(event) };
    });
    const far = (event) => from && Math.hypot(event.clientX - from.x, event.clientY - from.y) > 4;
    const box = (event) => {
      const [row, column] = pixel(event);
      return [span(from.at[0], row, height), span(from.at[1], column, width)];
    };
    scene.addEventListener("pointermove", (event) => {
      const [row, column] = pixel(event).map(Math.floor);
      if (far(event) && event.pointerType !== "touch") {
        scene.setPointerCapture(event.pointerId);
        for (const old of document.querySelectorAll(".mark.rubber")) old.remove();
        mark("rubber", ...box(event), "white");
      }
      if (!inPicture(row, column)) return;
      pass(row, column);
    });
    scene.addEventListener("pointerup", (event) => {
      for (const old of document.querySelectorAll(".mark.rubber")) old.remove();
      if (!from) return;
      const [rows, columns] = box(event);
      const [row, column] = pixel(event).map(Math.floor);
      if (!far(event) && inPicture(row, column)) keep([row, row + 1], [column, column + 1], false);
      else if (far(event) && rows[1] > rows[0] && columns[1] > columns[0]) keep(rows, columns, true);
      from = null;
    });
    scene.addEventListener("pointercancel", () => (from = null));
    scene.addEventListener("pointerleave", forget);
    scene.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey) return; // a page scrolls; a pinch on a touchpad comes as Ctrl and wheel
        event.preventDefault();
        const frame = scene.getBoundingClientRect();
        const [x, y] = [(event.clientX - frame.left) / frame.width, (event.clientY - frame.top) / frame.height];
        zoom(Math.exp(-0.005 * event.deltaY), x, y);
      },
      { passive: false },
    );

    scene.addEventListener("keydown", (event) => {
      const far = event.shiftKey ? 10 : 1;
      const moves = { ArrowUp: [-far, 0], ArrowDown: [far, 0], ArrowLeft: [0, -far], ArrowRight: [0, far] };
      if (event.key in moves) {
        const [down, right] = moves[event.key];
        const start = cursor || { row: height >> 1, column: width >> 1 };
        cursor = {
          row: Math.min(height - 1, Math.max(0, start.row + (cursor ? down : 0))),
          column: Math.min(width - 1, Math.max(0, start.column + (cursor ? right : 0))),
        };
        drawKept();
        pass(cursor.row, cursor.column);
      } else if ((event.key === "Enter" || event.key === " ") && cursor) {
        keep([cursor.row, cursor.row + 1], [cursor.column, cursor.column + 1], false);
      } else if (event.key === "Escape" && cursor) {
        cursor = null;
        drawKept();
        forget();
      } else if (event.key === "+" || event.key === "-") {
        const [y, x] = cursor ? [cursor.row / height, cursor.column / width] : [0.5, 0.5];
        zoom(event.key === "+" ? 1.5 : 1 / 1.5, view.left + x * view.scale, view.top + y * view.scale);
      } else {
        return;
      }
      event.preventDefault();
      event.stopPropagation();
    });
  }
  $("plot-spectra").addEventListener("click", (event) => {
    const x = waveAt(event.clientX - $("plot-spectra").getBoundingClientRect().left);
    const nearest = facts.centers.reduce((best, v, c) => (Math.abs(v - x) < Math.abs(facts.centers[best] - x) ? c : best), 0);
    showBand(nearest);
  });

  $("clear").addEventListener("click", () => {
    kept.length = 0;
    drawKept();
  });

  // Columns of the table are named by numbers alone: no text from the input reaches it
  $("save").addEventListener("click", () => {
    const heads = ["band", facts.in_nm ? "wavelength_nm" : "index"];
    const columns = [order.map((c) => c + 1), centers];
    for (const one of kept) {
      const place = placeOf(one).replace(/–/g, " to ").replace(/,/g, "");
      const add = (what, values) => {
        heads.push(`${place}${what}`);
        columns.push(values);
      };
      add("", one.values);
      if (one.uncertainty) add(" standard deviation", one.uncertainty);
      if (one.truth) add(" truth", one.truth);
    }
    const number = (v) => (v === null || Number.isNaN(v) ? "" : String(Number(v.toPrecision(7))));
    const lines = [heads.join(","), ...centers.map((_, i) => columns.map((values) => number(values[i])).join(","))];
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([lines.join("\r\n") + "\r\n"], { type: "text/csv" }));
    link.download = `${facts.file.replace(/[^\w.-]+/g, "_").slice(0, 60)}-spectra.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });

  try {
    showBand(Math.floor(bands / 2));
    for (const [row, column] of facts.points) keep([row, row + 1], [column, column + 1], false);
  } catch (error) {
    trouble(error);
  }
  document.documentElement.dataset.ready = "yes";
})();
