// Amounts in words, the data as typed arrays, where everything lies, and the colours of the page.
//
// Times are nanoseconds from the start of their block, places are CSS pixels from the top.

const AXIS = 26, HEADER = 24, STEPS = 15, STRIP = 32, STRIP_TITLE = 15, GAP = 8, OVERVIEW = 12;
const HEIGHTS = [[26, 22], [60, 16], [Infinity, 12]]; // up to so many rows, pixels of each
const WEAK = 1.6; // contrast below which a bar gets an edge

function digits(value, most) {
  return String(Number(value.toPrecision(most)));
}

function duration(ns) {
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (Math.abs(ns) >= size) return `${digits(ns / size, 4)} ${unit}`;
  }
  return `${digits(ns, 4)} ns`;
}

function instant(ns) {
  return `${(ns / 1e6).toFixed(3)} ms`;
}

function amount(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; bytes >= 1023.5 && i < units.length - 1; i++) bytes /= 1024;
  return `${digits(bytes, 4)} ${units[i]}`;
}

function percent(share) {
  return `${Math.round(100 * share)} %`;
}

// Distance of the marks on the axis, the unit they are written in, and how many decimals they need.
function marks(nsPerPixel, wanted = 70) {
  const least = nsPerPixel * wanted;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((m) => m * power).find((size) => size >= least);
  const [unit, size] = step >= 5e8 ? ["s", 1e9] : step >= 1e4 ? ["ms", 1e6] : ["µs", 1e3];
  return { step, unit, size, decimals: Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9)) };
}

// The data with columns as typed arrays, and for each block a way to find one event in another.
function prepare(data) {
  const names = data.names.map((name) => ({ ...name, short: name.name.replace(/^\d+:/, "") }));
  const blocks = data.blocks.map((block) => {
    const count = block.events.start.length;
    const column = (name) => Float64Array.from(block.events[name]);
    const of = { name: Int32Array.from(block.events.name), step: column("step"),
      start: column("start"), end: column("end"), bytes: column("bytes") };
    const look = Uint8Array.from(of.name, (name) => names[name].look);
    const reach = new Float64Array(count), row = new Int32Array(count), at = new Map();
    block.lanes.forEach((lane, index) => {
      for (let i = lane.first, far = -Infinity; i < lane.last; i++) {
        reach[i] = far = Math.max(far, of.end[i]);
        row[i] = index;
        at.set(`${of.name[i]} ${of.step[i]}`, i);
      }
    });
    return { ...block, ...of, look, reach, row, at };
  });
  return { ...data, names, blocks };
}

// The first index in [from, to) whose value is above `limit`; values do not fall.
function firstAbove(values, from, to, limit) {
  while (from < to) {
    const middle = (from + to) >> 1;
    if (values[middle] > limit) to = middle;
    else from = middle + 1;
  }
  return from;
}

// The index of the lane's event that is nearest to a time; the lane has one.
function nearest(block, lane, at) {
  const after = firstAbove(block.start, lane.first, lane.last, at);
  if (after === lane.first) return after;
  if (after === lane.last || block.end[after - 1] >= at) return after - 1;
  return at - block.end[after - 1] <= block.start[after] - at ? after - 1 : after;
}

// The same action of the same step in the other block, or null.
function twinOf(data, { block: index, i }) {
  const { name, step } = data.blocks[index], key = `${name[i]} ${step[i]}`;
  for (let other = 0; other < data.blocks.length; other++) {
    const found = other === index ? undefined : data.blocks[other].at.get(key);
    if (found !== undefined) return { block: other, i: found };
  }
  return null;
}

// Where everything lies from the top; `rank` is one of the ranks, or null for all of them.
function layout(data, rank) {
  const shown = data.rows.map((row, index) => ({ ...row, index }))
    .filter((row) => rank === null || row.rank === rank);
  const many = rank === null && data.ranks.length > 1;
  const height = HEIGHTS.find(([most]) => shown.length * data.blocks.length <= most)[1];
  let y = AXIS;
  const blocks = data.blocks.map((block, index) => {
    const header = y;
    y += HEADER + STEPS;
    const top = y;
    const rows = shown.map((row, i) => {
      if (many && i && shown[i - 1].rank !== row.rank) y += height / 2;
      y += height;
      return { index: row.index, y: y - height, name: many ? `${row.rank}:${row.lane}` : row.lane };
    });
    const bottom = y;
    const strips = block.memory.filter((strip) => rank === null || strip.rank === rank)
      .map((strip) => {
        y += STRIP_TITLE + STRIP;
        return { strip, y: y - STRIP, title: (many ? `rank ${strip.rank} ` : "") + strip.tier };
      });
    y += GAP;
    return { index, header, top, bottom, rows, strips };
  });
  return { blocks, height, overview: y, bottom: y + OVERVIEW };
}

function luminance(hex) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(a, b) {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
}

// The page's colours, and how each kind of work is filled on them.
function palette(root, context, looks, ratio) {
  const style = getComputedStyle(root);
  const color = {};
  for (const name of ["paper", "ink", "soft", "track", "line", "accent"]) {
    color[name] = style.getPropertyValue(`--tl-${name}`).trim();
  }
  context.fillStyle = "#808080";
  context.fillStyle = color.track; // the canvas writes any colour it knows as #rrggbb or rgba()
  const track = String(context.fillStyle).startsWith("#") ? context.fillStyle : "#808080";
  const fills = looks.map((look) => ({
    solid: look.color,
    ink: look.ink,
    hatched: hatch(context, look, ratio),
    lines: hatch(context, { ink: look.ink }, ratio),
    edge: contrast(look.color, track) < WEAK,
  }));
  const grey = { color: "#8c96a0", ink: "white" };
  const memory = { solid: grey.color, hatched: hatch(context, grey, ratio) };
  return { color, fills, memory, family: style.fontFamily };
}

function hatch(context, look, ratio) {
  const size = Math.round(7 * ratio);
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const ink = tile.getContext("2d");
  ink.fillStyle = look.color ?? "transparent";
  ink.fillRect(0, 0, size, size);
  ink.strokeStyle = look.ink === "white" ? "rgba(255,255,255,0.6)" : "rgba(0,0,0,0.38)";
  ink.lineWidth = 1.3 * ratio;
  for (const shift of [-size, 0, size]) { // the neighbours' lines, which cut the corners
    ink.beginPath();
    ink.moveTo(shift - 1, size + 1);
    ink.lineTo(shift + size + 1, -1);
    ink.stroke();
  }
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
}
