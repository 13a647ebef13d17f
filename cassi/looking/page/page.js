// Draws a report and joins pointer, keyboard and spectra. Text reaches the page through textContent alone.
"use strict";

(async () => {
  const $ = (id) => document.getElementById(id);
  const facts = JSON.parse($("facts").textContent);
  const [bands, height, width] = facts.shape;
  const colors = ["#4285d6", "#e2711d", "#1f9d6b", "#d6569b", "#b8860b", "#1aa3b8", "#d6453d", "#8b6fd6"];
  const order = [...facts.centers.keys()].sort((a, b) => facts.centers[a] - facts.centers[b]);
  const centers = order.map((c) => facts.centers[c]);
  const kept = []; // {number, color, name, kind, corners, pixels, rows: [r0, r1), columns: [c0, c1), values, std, truth, uncertainty}
  let counted = 0;
  let cursor = null; // {row, column}

  const AMBER = [0.977, 0.674, 0.351]; // shares in display values
  const short = (v) => (Number.isFinite(v) ? String(Number(v.toPrecision(3))) : "none");
  const bandName = (c) => (facts.in_nm ? `${Number(facts.centers[c].toFixed(1))} nm` : `band ${c + 1}`);
  const placeOf = ({ rows, columns, name }) => {
    if (name) return name;
    const [r0, r1, c0, c1] = [rows[0], rows[1] - 1, columns[0], columns[1] - 1].map((at) => at * facts.thin);
    return r0 === r1 && c0 === c1 ? `row ${r0}, column ${c0}` : `rows ${r0}–${r1}, columns ${c0}–${c1}`;
  };
  const boxed = ([r0, r1], [c0, c1]) => [[r0, c0], [r0, c1], [r1, c1], [r1, c0]];

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

  // The pixels whose centers lie inside a polygon with these corners, (row, column)
  function pixelsIn(corners) {
    const [rows, columns] = [0, 1].map((k) => corners.map((corner) => corner[k]));
    const within = (values, size) => [Math.max(0, Math.floor(Math.min(...values))), Math.min(size, Math.ceil(Math.max(...values)))];
    const [[r0, r1], [c0, c1]] = [within(rows, height), within(columns, width)];
    const found = [];
    for (let i = r0; i < r1; i++)
      for (let j = c0; j < c1; j++) {
        let inside = false;
        for (let k = 0, last = corners.length - 1; k < corners.length; last = k++) {
          const [[ra, ca], [rb, cb]] = [corners[k], corners[last]];
          if (ra > i + 0.5 !== rb > i + 0.5 && j + 0.5 < ca + ((i + 0.5 - ra) / (rb - ra)) * (cb - ca)) inside = !inside;
        }
        if (inside) found.push(i * width + j);
      }
    return { pixels: found, rows: [r0, r1], columns: [c0, c1] };
  }

  const meanSpectrum = ({ values }, pixels) =>
    order.map((c) => pixels.reduce((sum, at) => sum + values[c * height * width + at], 0) / pixels.length);

  const spreadOf = ({ values }, pixels, mean) =>
    order.map((c, i) => Math.sqrt(pixels.reduce((sum, at) => sum + (values[c * height * width + at] - mean[i]) ** 2, 0) / pixels.length));

  const cubes = {};

  const spectrum = (pixels) => {
    const values = meanSpectrum(cubes.cube, pixels);
    return {
      values,
      std: spreadOf(cubes.cube, pixels, values),
      truth: cubes.truth ? meanSpectrum(cubes.truth, pixels) : null,
      uncertainty: cubes.uncertainty ? meanSpectrum(cubes.uncertainty, pixels) : null,
    };
  };

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

  // A picture of numbers between colors of the style sheet, amber where in doubt; what is no number stays clear
  function paintValues(name, { values, rows, columns }, [low, high], stops, gamma = 1, doubtful = () => false) {
    const channels = stops.map((stop) => [1, 3, 5].map((k) => parseInt(stop.slice(k, k + 2), 16)));
    const colorsOf = (kept) =>
      Array.from({ length: 256 }, (_, i) => {
        const at = (i / 255) ** gamma * (stops.length - 1);
        const k = Math.min(Math.floor(at), stops.length - 2);
        const [r, g, b] = channels[k].map((one, j) => Math.round(kept[j] * (one + (at - k) * (channels[k + 1][j] - one))));
        return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
      });
    const [table, doubt] = [colorsOf([1, 1, 1]), colorsOf(AMBER)];
    const scale = 255 / (high - low || 1);
    paint(name, rows, columns, (i) =>
      Number.isFinite(values[i]) ? (doubtful(i) ? doubt : table)[Math.round(Math.min(255, Math.max(0, scale * (values[i] - low))))] : 0,
    );
  }

  const share = (value, of) => `${(100 * value) / of}%`;

  function mark(className, rows, columns, color, text = "") {
    for (const scene of scenes) {
      const made = part(scene.querySelector(".marks"), "i", `mark ${className}`);
      made.style.setProperty("--color", color);
      made.style.left = share(columns[0], width);
      made.style.top = share(rows[0], height);
      if (className === "box" || className === "rubber") {
        made.style.width = share(columns[1] - columns[0], width);
        made.style.height = share(rows[1] - rows[0], height);
      }
      if (text) part(made, "b", "", text);
    }
  }

  function outline(corners, color, text = "") {
    for (const scene of scenes) {
      const svg = element(scene.querySelector(".marks"), "svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none" });
      const points = corners.map(([r, c]) => `${c},${r}`).join(" ");
      for (const kind of ["under", "over"]) element(svg, "polygon", { points, class: kind, stroke: color });
    }
    if (text) mark("label", [Math.min(...corners.map(([r]) => r))], [Math.max(...corners.map(([, c]) => c))], color, text);
  }

  function zoom(factor, x, y) {
    const scale = Math.min(Math.max(1, Math.max(width, height) / 8), Math.max(1, view.scale * factor)); // 8 pixels are seen at least
    $("unzoom").hidden = scale === 1;
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
    for (const { values, uncertainty } of kept.filter((one) => one.uncertainty)) {
      const ys = values.map((v, i) => (uncertainty[i] > v ? v : NaN));
      curves.push({ xs: centers, ys, kind: "doubtful", color: "#a0a4ab" });
    }
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

  const diverging = () =>
    getComputedStyle(document.documentElement).getPropertyValue("--diverging").split(",").map((one) => one.trim());

  function drawQuality() {
    if (!facts.psnr) return;
    const curve = { xs: centers, ys: order.map((c) => facts.psnr[c]), kind: "residual" };
    chart("plot-psnr", [curve], { labels: [facts.labels[0], "PSNR [dB]"] });
  }

  function drawAll() {
    const stops = { measurement: ["#000000", "#ffffff"], residual: diverging() };
    for (const [name, picture] of Object.entries(pictures)) paintValues(name, picture, facts.limits[name], stops[name]);
    drawSpectra();
    drawConvergence();
    drawQuality();
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

  // What the picture of a band shows: maps by their names in the list, in one band or, with `whole`, over all
  const SEQUENTIAL = ["#000000", "#ffffff"];
  const RAINBOW = ["#00224e", "#575d6d", "#a59c74", "#fee838"]; // cividis
  const size = height * width;
  const plane = (cube, c) => cube.values.subarray(c * size, (c + 1) * size);
  const once = {};
  const acrossBands = (name, of) =>
    (once[name] ||= Float32Array.from({ length: size }, (_, at) => of(order.map((c) => c * size + at))));
  const layers = {
    cube: { values: (c) => plane(cubes.cube, c), stops: SEQUENTIAL, gamma: 1 / 2.2 },
    truth: { values: (c) => plane(cubes.truth, c), stops: SEQUENTIAL, gamma: 1 / 2.2 },
    error: { values: (c) => plane(cubes.cube, c).map((v, at) => v - plane(cubes.truth, c)[at]), diverging: true },
    uncertainty: { values: (c) => plane(cubes.uncertainty, c), stops: RAINBOW },
    rms: {
      whole: true,
      stops: RAINBOW,
      values: () =>
        acrossBands("rms", (ats) => Math.sqrt(ats.reduce((sum, at) => sum + (cubes.cube.values[at] - cubes.truth.values[at]) ** 2, 0) / bands)),
    },
    angle: {
      whole: true,
      stops: RAINBOW,
      values: () =>
        acrossBands("angle", (ats) => {
          let [xy, xx, yy] = [0, 0, 0];
          for (const at of ats) {
            const [x, y] = [cubes.cube.values[at], cubes.truth.values[at]];
            [xy, xx, yy] = [xy + x * y, xx + x * x, yy + y * y];
          }
          return (180 / Math.PI) * Math.acos(Math.min(1, Math.max(-1, xy / Math.sqrt(xx * yy))));
        }),
    },
  };

  function showBand(c) {
    const layer = layers[$("layer").value];
    slider.value = String(c);
    slider.setAttribute("aria-valuetext", bandName(c));
    slider.disabled = Boolean(layer.whole);
    $("band-name").textContent = layer.whole ? `all ${bands} bands` : `${bandName(c)}, ${c + 1} of ${bands}`;
    $("plot-spectra").dataset.here = String(facts.centers[c]);
    drawSpectra();
    listKept();
    const values = layer.values(c);
    const common = $("common").checked && layer.stops === SEQUENTIAL;
    let [low, high] = common ? facts.range : robustRange(values);
    if (layer.diverging) [low, high] = [-Math.max(-low, high), Math.max(-low, high)];
    if (layer.stops === RAINBOW) low = 0;
    if (!(high > low)) high = low + 1;
    $("band-low").textContent = short(low);
    $("band-high").textContent = short(high);
    const stops = layer.diverging ? diverging() : layer.stops;
    $("band-scale").style.background = `linear-gradient(90deg, ${stops})`;
    const sigma = layer === layers.cube && cubes.uncertainty && plane(cubes.uncertainty, c);
    const doubtful = sigma ? (i) => sigma[i] > values[i] : undefined;
    paintValues("band", { values, rows: height, columns: width }, [low, high], stops, layer.gamma, doubtful);
    $("plot-band").dataset.band = String(c);
  }
  $("layer").addEventListener("change", () => showBand(Number(slider.value)));
  slider.addEventListener("input", () => showBand(Number(slider.value)));
  $("common").addEventListener("change", () => showBand(Number(slider.value)));

  // Spectra

  function drawKept() {
    for (const scene of scenes) scene.querySelector(".marks").replaceChildren();
    for (const { kind, corners, rows, columns, color, number } of kept) {
      if (kind === "polygon") outline(corners, color, number);
      else if (kind === "box") mark("box", rows, columns, color, number);
      else mark("point", [rows[0] + 0.5], [columns[0] + 0.5], color, number);
    }
    if (corners.length) outline(corners, "#ffffff");
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
        const place = document.createElement("input"); // a name of one's own goes to tables and regions
        place.className = "place";
        place.value = placeOf(one);
        place.maxLength = 60;
        place.setAttribute("aria-label", `Name of spectrum ${one.number}`);
        place.addEventListener("change", () => {
          one.name = place.value.trim();
          drawKept();
        });
        const size = document.createElement("span");
        size.textContent = one.pixels.length > 1 ? `${one.pixels.length} px` : "";
        const value = document.createElement("span");
        value.className = "value";
        value.textContent =
          short(one.values[at]) +
          (one.uncertainty ? ` ± ${short(one.uncertainty[at])}` : "") +
          (one.pixels.length > 1 ? `, pixels vary by ${short(one.std[at])}` : "") +
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
        words.append(place, size, value);
        item.append(badge, words, remove);
        return item;
      }),
    );
    $("save").disabled = $("clear").disabled = $("export").disabled = kept.length === 0;
  }

  function keep(corners, kind, name = "") {
    if (kept.some((one) => String(one.corners) === String(corners))) return;
    const { pixels, rows, columns } = pixelsIn(corners);
    if (!pixels.length) return;
    const used = new Set(kept.map((one) => one.color));
    const more = `hsl(${(47 * kept.length + 20) % 360} 55% 50%)`; // beyond the table hues that differ
    const color = colors.find((one) => !used.has(one)) || more;
    counted = kept.length ? counted + 1 : 1;
    if (kind === "polygon") name ||= `region ${counted}`;
    kept.push({ number: counted, color, name, kind, corners, pixels, rows, columns, ...spectrum(pixels) });
    drawKept();
  }
  const keepPixel = (row, column) => keep(boxed([row, row + 1], [column, column + 1]), "point");

  // A polygon: its corners are clicked one after the other

  let corners = [];
  let drawing = false;

  function draw(on) {
    if (!on && corners.length > 2) keep(corners, "polygon");
    [corners, drawing] = [[], on];
    $("draw").textContent = on ? "Close region" : "Draw region";
    $("draw").setAttribute("aria-pressed", String(on));
    drawKept();
  }
  $("draw").addEventListener("click", () => draw(!drawing));

  const inPicture = (row, column) => row >= 0 && row < height && column >= 0 && column < width;
  let asked = null; // the pixel whose spectrum passes under the pointer

  function pass(row, column) {
    if (asked && asked[0] === row && asked[1] === column) return;
    asked = [row, column];
    passing = meanSpectrum(cubes.cube, [row * width + column]);
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
      if (far(event) && event.pointerType !== "touch" && !drawing) {
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
      if (drawing) {
        corners = [...corners, pixel(event).map((at, k) => Math.min([height, width][k], Math.max(0, Math.round(10 * at) / 10)))];
        drawKept();
      } else if (!far(event) && inPicture(row, column)) keepPixel(row, column);
      else if (far(event) && rows[1] > rows[0] && columns[1] > columns[0]) keep(boxed(rows, columns), "box");
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
      } else if (event.key === "Enter" && drawing && !cursor) {
        draw(false);
      } else if ((event.key === "Enter" || event.key === " ") && cursor) {
        keepPixel(cursor.row, cursor.column);
      } else if (event.key === "Escape" && drawing) {
        corners = [];
        draw(false);
      } else if (event.key === "0") {
        zoom(0, 0, 0);
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

  $("unzoom").addEventListener("click", () => zoom(0, 0, 0));

  function download(text, type, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = `${facts.file.replace(/[^\w.-]+/g, "_").slice(0, 60)}-${name}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // Regions go out and come back in pixels of the whole scene, as cassi.looking.regions has them
  $("export").addEventListener("click", () => {
    const regions = kept.map((one) => ({ name: placeOf(one), corners: one.corners.map((at) => at.map((v) => v * facts.thin)) }));
    download(`${JSON.stringify({ regions }, null, 1)}\n`, "application/json", "regions.json");
  });
  $("import").addEventListener("change", async (event) => {
    try {
      const content = JSON.parse(await event.target.files[0].text());
      for (const { name, corners: found } of content.regions || [content]) {
        if (!(found.length > 2) || !found.flat().every(Number.isFinite)) throw new Error("corners must be [row, column] each");
        keep(found.map((at) => at.map((v) => v / facts.thin)), "polygon", String(name || "").slice(0, 60));
      }
    } catch (error) {
      trouble(new Error(`no regions in this file, ${error.message}`));
    }
    event.target.value = "";
  });

  // Columns of the table are named by plain letters and numbers alone: no other text from the input reaches it
  $("save").addEventListener("click", () => {
    const heads = ["band", facts.in_nm ? "wavelength_nm" : "index"];
    const columns = [order.map((c) => c + 1), centers];
    const unit = /^[\w µ/().%^-]{1,60}$/.test(facts.labels[1]) ? ` [${facts.labels[1]}]` : "";
    for (const one of kept) {
      const place = placeOf(one).replace(/–/g, " to ").replace(/[^\w ]/g, "");
      const many = one.pixels.length > 1;
      const add = (what, values) => {
        heads.push(`${place}${what}${unit}`);
        columns.push(values);
      };
      add(many ? ` mean of ${one.pixels.length} px` : "", one.values);
      if (many) add(" std of pixels", one.std);
      if (one.uncertainty) add(" error bar", one.uncertainty);
      if (one.truth) add(" truth", one.truth);
    }
    const number = (v) => (v === null || Number.isNaN(v) ? "" : String(Number(v.toPrecision(7))));
    const lines = [heads.join(","), ...centers.map((_, i) => columns.map((values) => number(values[i])).join(","))];
    download(`${lines.join("\r\n")}\r\n`, "text/csv", "spectra.csv");
  });

  try {
    showBand(Math.floor(bands / 2));
    for (const [row, column] of facts.points) keepPixel(row, column);
  } catch (error) {
    trouble(error);
  }
  document.documentElement.dataset.ready = "yes";
})();
