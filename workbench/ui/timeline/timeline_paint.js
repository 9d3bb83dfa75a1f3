// The painting of one frame on a canvas: only what is in sight, so that a frame costs what the
// screen is wide, not what the run is long. Simulated bars are hatched, measured ones filled, in
// the colours that figures in print have.
//
// `view` has from and to (ns), left and width (px); `state` what is pointed at or chosen.
const CLOSE_STEPS = 12; // pixels a step; where there are fewer, only steps with a name are marked

class Painter {
  constructor(context, data, look, place, view, state) {
    Object.assign(this, { c: context, data, look, place, view, state });
    this.perPixel = (view.to - view.from) / view.width;
  }

  x(ns) {
    return this.view.left + (ns - this.view.from) / this.perPixel;
  }

  font(size, weight = "") {
    this.c.font = `${weight} ${size}px ${this.look.family}`;
  }

  frame(width, height) {
    const { c, look, place } = this;
    c.fillStyle = look.color.paper;
    c.fillRect(0, 0, width, height);
    c.textBaseline = "middle";
    for (const block of place.blocks) this.tracks(block);
    this.grid(width);
    this.clipped(() => place.blocks.forEach((block) => this.events(block)));
    for (const block of place.blocks) this.header(block, width);
    this.clipped(() => this.pointer());
    this.overview();
  }

  clipped(paint) {
    this.c.save();
    this.c.beginPath();
    this.c.rect(this.view.left, 0, this.view.width, this.place.overview);
    this.c.clip();
    paint();
    this.c.restore();
  }

  tracks({ index, rows, strips }) {
    const { c, look, view } = this, height = this.place.height, block = this.data.blocks[index];
    this.font(Math.min(12, height - 1));
    for (const row of rows) {
      const lane = block.lanes[row.index], middle = row.y + height / 2;
      this.track(block, lane, row.y + 1, height - 2);
      c.globalAlpha = 0.25;
      c.fillStyle = look.color.accent;
      c.fillRect(2, row.y + 1, (view.left - 8) * Math.min(1, lane.busy), height - 2);
      c.globalAlpha = 1;
      c.fillStyle = look.color.ink;
      c.textAlign = "right";
      const share = percent(lane.busy);
      c.fillText(share, view.left - 8, middle);
      c.textAlign = "left";
      c.fillText(row.name, 5, middle, view.left - 20 - c.measureText(share).width);
    }
    for (const strip of strips) this.memory(strip, block.source === "predicted");
  }

  // The ground of a lane, from its first event to its last: outside nothing is known.
  track(block, lane, y, height) {
    if (lane.first === lane.last) return;
    const { c, look, view } = this, end = view.left + view.width;
    const from = Math.max(view.left, this.x(block.start[lane.first]));
    const to = Math.min(end, this.x(block.reach[lane.last - 1]));
    c.fillStyle = look.color.track;
    if (from < to) c.fillRect(from, y, to - from, height);
  }

  grid(width) {
    const { c, look, view, place } = this;
    const { step, unit, size, decimals } = marks(this.perPixel);
    this.font(11);
    c.textAlign = "left";
    c.fillStyle = look.color.soft;
    c.fillText(`time (${unit})`, 5, AXIS / 2);
    for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
      const x = Math.round(this.x(at)) + 0.5, text = (at / size).toFixed(decimals);
      c.strokeStyle = look.color.line;
      c.lineWidth = 1;
      c.beginPath();
      for (const { top, bottom, strips } of place.blocks) { // through no line of text
        c.moveTo(x, top);
        c.lineTo(x, bottom);
        for (const { y } of strips) {
          c.moveTo(x, y);
          c.lineTo(x, y + STRIP);
        }
      }
      c.moveTo(x, AXIS - 5);
      c.lineTo(x, AXIS);
      c.stroke();
      c.textAlign = "center";
      const half = c.measureText(text).width / 2;
      c.fillText(text, Math.min(Math.max(x, view.left + half), width - half), AXIS / 2);
    }
  }

  events({ index, rows, top, bottom }) {
    const block = this.data.blocks[index], hatched = block.source === "predicted";
    for (const row of rows) this.bars(block, block.lanes[row.index], row.y, hatched);
    for (const row of rows) this.idle(block.lanes[row.index].idle, row.y);
    this.stepMarks(block, top, bottom);
  }

  bars(block, lane, y, hatched) {
    const { view, look } = this, { start, end } = block, height = this.place.height - 2;
    const labels = [], columns = new Columns(this, y + 1, height, hatched);
    for (let i = firstAbove(block.reach, lane.first, lane.last, view.from);
      i < lane.last && start[i] <= view.to; i++) {
      const left = this.x(start[i]), width = (end[i] - start[i]) / this.perPixel;
      if (width < 1) {
        columns.add(Math.floor(left + width / 2), block.look[i], width);
        continue;
      }
      columns.flush();
      const from = Math.max(left, view.left - 4);
      const to = Math.min(left + width, view.left + view.width + 4);
      const fill = look.fills[block.look[i]], gap = width > 4 ? 1 : 0;
      this.bar(from, y + 1, to - from - gap, height, fill, hatched ? fill.hatched : fill.solid);
      if (to - from > 12 && height >= 12) labels.push([i, from, to - gap, fill]);
    }
    columns.end();
    if (labels.length) this.labels(block, labels, y + 1, height, hatched);
  }

  bar(x, y, width, height, fill, paint, sides = true) {
    const { c, look } = this;
    c.fillStyle = paint;
    c.fillRect(x, y, width, height);
    if (!fill.edge) return;
    c.fillStyle = look.color.soft;
    c.fillRect(x, y, width, 1);
    c.fillRect(x, y + height - 1, width, 1);
    if (width < 4 || !sides) return;
    c.fillRect(x, y, 1, height);
    c.fillRect(x + width - 1, y, 1, height);
  }

  labels(block, labels, y, height, hatched) {
    const { c, data, view } = this;
    this.font(Math.min(11, height - 3));
    c.textAlign = "center";
    for (const [i, from, to, fill] of labels) {
      const name = data.names[block.name[i]];
      const low = Math.max(from, view.left), high = Math.min(to, view.left + view.width);
      for (const text of [name.short, String(name.unit)]) {
        const width = c.measureText(text).width;
        if (width + 6 > high - low) continue;
        const middle = (low + high) / 2;
        if (hatched) { // letters on their own ground, not on lines
          c.fillStyle = fill.solid;
          c.fillRect(middle - width / 2 - 2, y + 2, width + 4, height - 4);
        }
        c.fillStyle = fill.ink;
        c.fillText(text, middle, y + height / 2 + 0.5);
        break;
      }
    }
  }

  // The lane's longest idle time: a dashed frame, and its length where there is room.
  idle(gap, y) {
    if (gap === null || gap[1] < this.view.from || gap[0] > this.view.to) return;
    const { c, look, state, view } = this, height = this.place.height;
    const left = this.x(gap[0]), right = this.x(gap[1]);
    c.strokeStyle = c.fillStyle = look.color.ink;
    c.lineWidth = state.gap === gap ? 2 : 1;
    if (right - left < 5) { // a tick under the row
      const middle = (left + right) / 2;
      c.beginPath();
      c.moveTo(middle, y + height - 5);
      c.lineTo(middle - 4, y + height);
      c.lineTo(middle + 4, y + height);
      c.fill();
      return;
    }
    c.setLineDash([4, 3]);
    c.strokeRect(left + 1.5, y + 2.5, right - left - 3, height - 5);
    c.setLineDash([]);
    const low = Math.max(left, view.left), high = Math.min(right, view.left + view.width);
    this.font(Math.min(11, height - 5));
    c.textAlign = "center";
    for (const text of [`idle ${duration(gap[1] - gap[0])}`, "idle"]) {
      if (c.measureText(text).width + 8 > high - low) continue;
      c.fillText(text, (low + high) / 2, y + height / 2 + 0.5);
      break;
    }
  }

  stepMarks(block, top, bottom) {
    const { c, look } = this;
    this.font(11);
    c.textAlign = "left";
    const dense = block.each !== null && block.each < CLOSE_STEPS * this.perPixel;
    let free = -Infinity;
    const begun = block.steps.findLast(([, start]) => this.x(start) < this.view.left);
    if (begun !== undefined) { // the step that is under way at the left end
      c.fillStyle = look.color.ink;
      c.fillText(`step ${begun[0]}`, this.view.left + 3, top - STEPS / 2);
      free = this.view.left + c.measureText(`step ${begun[0]}`).width + 8;
    }
    for (const [step, start] of block.steps) {
      const x = Math.round(this.x(start)) + 0.5, text = `step ${step}`;
      const named = x >= free;
      if (x < this.view.left || (dense && !named)) continue; // too many would hide the bars
      c.strokeStyle = c.fillStyle = look.color.ink;
      c.lineWidth = 1;
      c.setLineDash([5, 3]);
      c.beginPath();
      c.moveTo(x, named ? top - STEPS + 1 : top);
      c.lineTo(x, bottom);
      c.stroke();
      c.setLineDash([]);
      if (!named) continue;
      c.fillText(text, x + 3, top - STEPS / 2);
      free = x + c.measureText(text).width + 8;
    }
  }

  header({ index, header }, width) {
    const { c, data, look, view } = this, block = data.blocks[index];
    const middle = header + HEADER / 2 + 2;
    const words = [duration(block.span)];
    const other = data.blocks.find((b) => b.source === "predicted");
    if (block.source === "measured" && other && other.each && block.each) {
      words.push(`a step ${(block.each / other.each).toPrecision(3)} times the prediction`);
    }
    if (block.each !== null) {
      words.push(`${block.steps.length} steps of ${duration(block.each)} on average`);
    }
    c.fillStyle = look.color.ink;
    c.textAlign = "left";
    this.font(13, "600");
    c.fillText(block.label, 5, middle);
    const from = 5 + c.measureText(block.label).width + 10;
    this.font(12);
    c.fillStyle = look.color.soft;
    c.fillText(this.fitting(words, width - from), from, middle);
    c.fillStyle = look.color.line;
    c.fillRect(0, header, view.left + view.width, 1);
  }

  // As many of the words as there is room for; one in any case.
  fitting(words, room) {
    const { c } = this;
    let count = words.length;
    while (count > 1 && c.measureText(words.slice(0, count).join(", ")).width > room) count--;
    return words.slice(0, count).join(", ");
  }

  memory({ strip, y, title }, hatched) {
    const { c, look, view } = this;
    const near = strip.budget !== null && strip.budget <= 3 * strip.peak;
    const most = Math.max(strip.peak, near ? strip.budget : 0, 1) * 1.08;
    const level = (bytes) => y + STRIP - 2 - (STRIP - 4) * (bytes / most);
    c.fillStyle = look.color.track;
    c.fillRect(view.left, y, view.width, STRIP - 1);
    this.clipped(() => this.curve(strip, level, y, hatched));
    if (near) {
      c.strokeStyle = look.color.ink;
      c.setLineDash([6, 3]);
      c.strokeRect(view.left, level(strip.budget), view.width, 0);
      c.setLineDash([]);
    }
    this.font(11);
    c.textAlign = "left";
    c.fillStyle = look.color.soft;
    const words = [`${title} memory: peak ${amount(strip.peak)}`];
    const line = near ? " (dashed)" : "";
    if (strip.budget !== null) words.push(`budget ${amount(strip.budget)}${line}`);
    words.push("as the schedule's buffers take it");
    const room = view.left + view.width - 5;
    c.fillText(this.fitting(words, room), 5, y - STRIP_TITLE / 2 + 1);
  }

  // Bytes over time; of what falls into one pixel, the largest.
  curve(strip, level, y, hatched) {
    const { c, look, view } = this, { at, bytes } = strip, bottom = y + STRIP - 2;
    const first = Math.max(0, firstAbove(at, 0, at.length, view.from) - 1);
    c.beginPath();
    c.moveTo(view.left, bottom);
    let column = view.left, highest = bytes[first];
    for (let i = first; i < at.length && at[i] <= view.to; i++) {
      const x = Math.max(view.left, Math.floor(this.x(at[i])));
      if (x > column) {
        c.lineTo(column, level(highest));
        c.lineTo(Math.min(column + 1, x), level(bytes[i - 1]));
        c.lineTo(x, level(bytes[i - 1]));
        column = x;
        highest = bytes[i];
      } else highest = Math.max(highest, bytes[i]);
    }
    c.lineTo(column, level(highest));
    c.lineTo(view.left + view.width, level(highest));
    c.lineTo(view.left + view.width, bottom);
    c.fillStyle = hatched ? look.memory.hatched : look.memory.solid;
    c.fill();
    c.strokeStyle = look.color.ink;
    c.lineWidth = 1;
    c.stroke();
  }

  // The time that is pointed at, and frames around the chosen event and its other half.
  pointer() {
    const { c, look, state, place } = this;
    if (state.at !== null) {
      const x = Math.round(this.x(state.at)) + 0.5, text = instant(state.at);
      c.strokeStyle = look.color.ink;
      c.lineWidth = 1;
      c.globalAlpha = 0.5;
      c.beginPath();
      c.moveTo(x, AXIS);
      c.lineTo(x, place.overview - GAP);
      c.stroke();
      c.globalAlpha = 1;
      this.font(11);
      c.textAlign = "center";
      const half = c.measureText(text).width / 2 + 4;
      const { left, width } = this.view;
      const middle = Math.min(Math.max(x, left + half), left + width - half);
      c.fillStyle = look.color.ink;
      c.fillRect(middle - half, 4, 2 * half, AXIS - 8);
      c.fillStyle = look.color.paper;
      c.fillText(text, middle, AXIS / 2 + 0.5);
    }
    for (const { event, dashed } of state.framed) this.outline(event, dashed);
  }

  outline({ block, i }, dashed) {
    const { c, look, place, data } = this, of = data.blocks[block];
    const row = place.blocks[block].rows.find((r) => r.index === of.row[i]);
    if (row === undefined) return;
    const left = this.x(of.start[i]), right = Math.max(this.x(of.end[i]), left + 3);
    c.setLineDash(dashed ? [4, 3] : []);
    for (const [color, line] of [[look.color.paper, 4], [look.color.ink, 2]]) { // on any colour
      c.strokeStyle = color;
      c.lineWidth = line;
      c.strokeRect(left - 1.5, row.y - 0.5, right - left + 3, place.height + 1);
    }
    c.setLineDash([]);
  }

  // Which part of the whole is in sight.
  overview() {
    const { c, look, view, place } = this, y = place.overview, whole = view.high - view.low;
    c.fillStyle = look.color.track;
    c.fillRect(view.left, y, view.width, OVERVIEW - 5);
    const from = ((view.from - view.low) / whole) * view.width;
    const width = ((view.to - view.from) / whole) * view.width;
    c.globalAlpha = 0.5;
    c.fillStyle = look.color.accent;
    c.fillRect(view.left + Math.min(from, view.width - 8), y, Math.max(8, width), OVERVIEW - 5);
    c.globalAlpha = 1;
  }
}
