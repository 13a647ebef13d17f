// Joins pointer, keyboard and spectra of a report. Bokeh draws; text reaches the page through textContent alone.
"use strict";

(async () => {
  const $ = (id) => document.getElementById(id);
  const facts = JSON.parse($("facts").textContent);
  const [bands, height, width] = facts.shape;
  const colors = ["#4285d6", "#e2711d", "#1f9d6b", "#d6569b", "#b8860b", "#1aa3b8", "#d6453d", "#8b6fd6"];
  const order = [...facts.centers.keys()].sort((a, b) => facts.centers[a] - facts.centers[b]);
  const centers = order.map((c) => facts.centers[c]);
  const kept = []; // {number, color, rows: [r0, r1), columns: [c0, c1), values, truth, uncertainty}
  const calibrated = facts.spread === "standard deviation";
  let counted = 0;
  let cursor = null; // {row, column}

  const short = (v) => (Number.isFinite(v) ? String(Number(v.toPrecision(3))) : "none");
  const bandName = (c) => (facts.in_nm ? `${Number(facts.centers[c].toFixed(1))} nm` : `band ${c + 1}`);
  const placeOf = ({ rows: [r0, r1], columns: [c0, c1] }) =>
    r1 - r0 === 1 && c1 - c0 === 1
      ? `row ${r0}, column ${c0}`
      : `rows ${r0}–${r1 - 1}, columns ${c0}–${c1 - 1}`;

  function trouble(error) {
    $("trouble").hidden = false;
    $("trouble").textContent = `This page cannot be shown completely: ${error.message || error}`;
  }
  if (typeof DecompressionStream === "undefined") {
    trouble("it needs a browser of 2023 or later");
    return;
  }

  // Cubes: inside the page, or on the server it came from

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

  async function inside() {
    const cubes = {};
    for (const name of ["cube", "truth", "uncertainty"]) if (facts.arrays[name]) cubes[name] = await unpack(name);
    return {
      now: true,
      band: async (c) => ({
        values: cubes.cube.values.subarray(c * height * width, (c + 1) * height * width),
        rows: height,
        columns: width,
      }),
      spectrum: async (rows, columns) => ({
        values: meanSpectrum(cubes.cube, rows, columns),
        truth: cubes.truth ? meanSpectrum(cubes.truth, rows, columns) : null,
        uncertainty: cubes.uncertainty ? meanSpectrum(cubes.uncertainty, rows, columns) : null,
      }),
    };
  }

  async function ask(address) {
    const reply = await fetch(address);
    if (!reply.ok) throw new Error(await reply.text());
    return reply;
  }

  const served = {
    now: false,
    band: async (c) => {
      const values = new Float32Array(await (await ask(`band?band=${c}`)).arrayBuffer());
      return { values, rows: Math.ceil(height / facts.thin), columns: Math.ceil(width / facts.thin) };
    },
    spectrum: async (rows, columns) => {
      const found = await (await ask(`spectrum?rows=${rows.join(":")}&columns=${columns.join(":")}`)).json();
      const sorted = (values) => values && order.map((c) => values[c]);
      return { values: sorted(found.cube), truth: sorted(found.truth), uncertainty: sorted(found.uncertainty) };
    },
  };

  // Bokeh

  Bokeh.set_log_level("error");

  const { document: drawn, roots } = JSON.parse($("drawings").textContent);
  await Bokeh.embed.embed_items({ report: drawn }, [{ docid: "report", roots, root_ids: Object.keys(roots) }]);
  const model = (name) => Bokeh.documents[0].get_model_by_name(name);
  const { ndarray } = Bokeh.require("core/util/ndarray");
  const figures = Object.values(roots).map((id) => model(id.slice("plot-".length)));

  function show(name, values, dtype, rows, columns) {
    const [image] = model(name).renderers;
    image.data_source.data = { image: [ndarray(values.buffer, { dtype, shape: [rows, columns] })] };
  }

  function ramp(stops, count) {
    return Array.from({ length: count }, (_, i) => {
      const at = (i / (count - 1)) * (stops.length - 1);
      const k = Math.min(Math.floor(at), stops.length - 2);
      const channels = [16, 8, 0].map((bit) => {
        const [a, b] = [(stops[k] >> bit) & 255, (stops[k + 1] >> bit) & 255];
        return Math.round(a + (at - k) * (b - a));
      });
      return `rgb(${channels.join(" ")})`;
    });
  }

  function paint() {
    const css = getComputedStyle(document.documentElement);
    const [ink, soft, rule] = ["--ink", "--soft", "--rule"].map((name) => css.getPropertyValue(name).trim());
    for (const figure of figures) {
      for (const axis of [...figure.below, ...figure.left])
        axis.setv({ axis_label_text_color: soft, major_label_text_color: soft, axis_line_color: soft, major_tick_line_color: soft });
      for (const item of [...figure.center, ...figure.above]) {
        if (item.type === "Grid") item.grid_line_color = rule;
        if (item.type === "Legend") item.label_text_color = ink;
      }
    }
    if (facts.arrays.residual) {
      const stops = css.getPropertyValue("--diverging").split(",").map((one) => parseInt(one.trim().slice(1), 16));
      model("residual-colors").palette = ramp(stops, 256);
    }
  }
  paint();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  if (matchMedia("(pointer: coarse)").matches)
    for (const name of ["picture", "band"]) {
      model(name).toolbar.active_drag = null; // a finger scrolls the page; the tool bar starts a box
      model(name).toolbar.autohide = false;
    }

  try {
    const { values, rows, columns } = await unpack("picture");
    const size = rows * columns;
    const pixels = new Uint32Array(size);
    const channel = (p, i) => Math.round(255 * values[p * size + i]);
    for (let i = 0; i < size; i++)
      pixels[i] = ((255 << 24) | (channel(2, i) << 16) | (channel(1, i) << 8) | channel(0, i)) >>> 0;
    show("picture", pixels, "uint32", rows, columns);
    for (const name of ["measurement", "residual"]) {
      if (!facts.arrays[name]) continue;
      const picture = await unpack(name);
      const [low, high] = facts.limits[name];
      model(`${name}-colors`).setv({ low, high });
      show(name, picture.values, "float32", picture.rows, picture.columns);
    }
    if (facts.history.length) {
      const column = (k) => facts.history.map((record) => (k > 1 && !(record[k] > 0) ? NaN : record[k]));
      model("history").data = { iteration: column(0), seconds: column(1), residual: column(2), change: column(3) };
    }
  } catch (error) {
    trouble(error);
  }
  const source = facts.live ? served : await inside();

  // Bands

  const slider = $("band");
  slider.max = String(bands - 1);
  let wanted = -1;

  function robustRange(values) {
    const sample = [];
    const every = Math.max(1, Math.floor(values.length / 20000));
    for (let i = 0; i < values.length; i += every) if (Number.isFinite(values[i])) sample.push(values[i]);
    if (!sample.length) return [0, 1];
    sample.sort((a, b) => a - b);
    return [sample[Math.floor(0.002 * (sample.length - 1))], sample[Math.ceil(0.998 * (sample.length - 1))]];
  }

  async function showBand(c) {
    wanted = c;
    slider.value = String(c);
    slider.setAttribute("aria-valuetext", bandName(c));
    const dot = document.createElement("span");
    dot.className = "dot";
    dot.style.background = facts.tints[c];
    $("band-name").replaceChildren(dot, `${bandName(c)}, ${c + 1} of ${bands}`);
    model("here").setv({ location: facts.centers[c], line_color: facts.tints[c] });
    listKept();
    const { values, rows, columns } = await source.band(c);
    if (wanted !== c) return; // the slider has moved on
    let [low, high] = $("common").checked ? facts.range : robustRange(values);
    if (!(high > low)) high = low + 1;
    $("band-low").textContent = short(low);
    $("band-high").textContent = short(high);
    model("band-colors").setv({ low, high });
    show("band", values.slice(), "float32", rows, columns);
    $("plot-band").dataset.band = String(c);
  }
  slider.addEventListener("input", () => showBand(Number(slider.value)).catch(trouble));
  $("common").addEventListener("change", () => showBand(Number(slider.value)).catch(trouble));

  // Spectra

  function drawKept() {
    const xs = kept.map(() => centers);
    const color = kept.map((one) => one.color);
    const withTruth = kept.filter((one) => one.truth);
    const withSpread = kept.filter((one) => one.uncertainty);
    model("kept").data = { xs, ys: kept.map((one) => one.values), color };
    model("dots").data =
      bands > 60
        ? { x: [], y: [], color: [] }
        : {
            x: kept.flatMap(() => centers),
            y: kept.flatMap((one) => one.values),
            color: kept.flatMap((one) => centers.map(() => one.color)),
          };
    model("truth").data = {
      xs: withTruth.map(() => centers),
      ys: withTruth.map((one) => one.truth),
      color: withTruth.map((one) => one.color),
    };
    const back = [...centers].reverse();
    model("spread").data = {
      xs: withSpread.map(() => [...centers, ...back]),
      ys: withSpread.map(({ values, uncertainty }) => [
        ...values.map((v, i) => v + uncertainty[i]),
        ...values.map((v, i) => v - uncertainty[i]).reverse(),
      ]),
      color: withSpread.map((one) => one.color),
    };
    const boxes = kept.filter((one) => one.box);
    const points = kept.filter((one) => !one.box);
    model("boxes").data = {
      left: boxes.map((one) => one.columns[0]),
      right: boxes.map((one) => one.columns[1]),
      top: boxes.map((one) => one.rows[0]),
      bottom: boxes.map((one) => one.rows[1]),
      color: boxes.map((one) => one.color),
    };
    model("points").data = {
      x: points.map((one) => one.columns[0] + 0.5),
      y: points.map((one) => one.rows[0] + 0.5),
      color: points.map((one) => one.color),
    };
    model("numbers").data = {
      x: kept.map((one) => (one.box ? one.columns[1] : one.columns[0] + 0.5)),
      y: kept.map((one) => (one.box ? one.rows[0] : one.rows[0] + 0.5)),
      text: kept.map((one) => String(one.number)),
      color: kept.map((one) => one.color),
    };
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
          (one.uncertainty ? (calibrated ? ` ± ${short(one.uncertainty[at])}` : `, spread ${short(one.uncertainty[at])}`) : "") +
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

  async function keep(rows, columns, box) {
    if (kept.some((one) => String([one.rows, one.columns]) === String([rows, columns]))) return;
    const found = await source.spectrum(rows, columns);
    const used = new Set(kept.map((one) => one.color));
    const color = colors.find((one) => !used.has(one)) || colors[counted % colors.length];
    counted = kept.length ? counted + 1 : 1;
    kept.push({ number: counted, color, rows, columns, box, ...found });
    drawKept();
  }

  const inPicture = (row, column) => row >= 0 && row < height && column >= 0 && column < width;
  let asked = null; // the pixel whose spectrum passes under the pointer

  async function pass(row, column) {
    if (asked && asked[0] === row && asked[1] === column) return;
    asked = [row, column];
    const { values } = await source.spectrum([row, row + 1], [column, column + 1]);
    if (!asked || asked[0] !== row || asked[1] !== column) return;
    model("passing").data = { x: centers, y: values };
    const value = short(values[order.indexOf(Number(slider.value))]);
    $("under").textContent = `row ${row}, column ${column}: ${value} at ${bandName(Number(slider.value))}`;
  }

  function forget() {
    asked = null;
    model("passing").data = { x: [], y: [] };
    $("under").textContent = "";
  }

  let resting;
  for (const name of ["picture", "band"]) {
    const figure = model(name);
    figure.on_event("tap", ({ x, y }) => {
      const [row, column] = [Math.floor(y), Math.floor(x)];
      if (inPicture(row, column)) keep([row, row + 1], [column, column + 1], false).catch(trouble);
    });
    figure.on_event("selectiongeometry", ({ geometry, final }) => {
      if (!final || geometry.type !== "rect") return;
      const [r0, r1] = [geometry.y0, geometry.y1].sort((a, b) => a - b);
      const [c0, c1] = [geometry.x0, geometry.x1].sort((a, b) => a - b);
      const rows = [Math.max(0, Math.floor(r0)), Math.min(height, Math.ceil(r1))];
      const columns = [Math.max(0, Math.floor(c0)), Math.min(width, Math.ceil(c1))];
      if (rows[1] > rows[0] && columns[1] > columns[0]) keep(rows, columns, true).catch(trouble);
    });
    figure.on_event("mousemove", ({ x, y }) => {
      const [row, column] = [Math.floor(y), Math.floor(x)];
      clearTimeout(resting);
      if (!inPicture(row, column)) return;
      if (source.now) pass(row, column).catch(trouble);
      else resting = setTimeout(() => pass(row, column).catch(trouble), 60); // spare the server a passing pointer
    });
    figure.on_event("mouseleave", () => {
      clearTimeout(resting);
      forget();
    });

    const element = $(`plot-${name}`);
    element.addEventListener("keydown", (event) => {
      const far = event.shiftKey ? 10 : 1;
      const moves = { ArrowUp: [-far, 0], ArrowDown: [far, 0], ArrowLeft: [0, -far], ArrowRight: [0, far] };
      if (event.key in moves) {
        const [down, right] = moves[event.key];
        const start = cursor || { row: height >> 1, column: width >> 1 };
        cursor = {
          row: Math.min(height - 1, Math.max(0, start.row + (cursor ? down : 0))),
          column: Math.min(width - 1, Math.max(0, start.column + (cursor ? right : 0))),
        };
        model("cursor").data = { x: [cursor.column + 0.5], y: [cursor.row + 0.5] };
        pass(cursor.row, cursor.column).catch(trouble);
      } else if ((event.key === "Enter" || event.key === " ") && cursor) {
        keep([cursor.row, cursor.row + 1], [cursor.column, cursor.column + 1], false).catch(trouble);
      } else if (event.key === "Escape" && cursor) {
        cursor = null;
        model("cursor").data = { x: [], y: [] };
        forget();
      } else {
        return;
      }
      event.preventDefault();
      event.stopPropagation();
    });
  }
  model("spectra").on_event("tap", ({ x }) => {
    const nearest = facts.centers.reduce((best, v, c) => (Math.abs(v - x) < Math.abs(facts.centers[best] - x) ? c : best), 0);
    showBand(nearest).catch(trouble);
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
      if (one.uncertainty) add(` ${facts.spread}`, one.uncertainty);
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
    await showBand(Math.floor(bands / 2));
    for (const [row, column] of facts.points) await keep([row, row + 1], [column, column + 1], false);
  } catch (error) {
    trouble(error);
  }
  document.documentElement.dataset.ready = "yes";
})();
