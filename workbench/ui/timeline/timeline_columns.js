// Events thinner than a pixel share the column of pixels they fall into: it has the colour of what
// fills most of it, and is as dense as it is busy. Neighbours that look the same are painted at
// once, and the hatching of simulated ones goes over all that touch.

const FAINT = 0.35; // the least that a column with something in it is painted
const FAINT_WEAK = 0.75; // the same of a colour that stands out little from the ground

class Columns {
  constructor(painter, y, height, hatched) {
    Object.assign(this, { painter, y, height, hatched, run: null, lines: null, at: null });
    this.sums = new Float64Array(painter.look.fills.length);
  }

  add(column, look, width) {
    if (column !== this.at) this.flush();
    this.at = column;
    this.sums[look] += Math.max(width, 0.01);
  }

  flush() {
    if (this.at === null) return;
    const { sums, at, run } = this;
    let total = 0, most = 0;
    for (let look = 0; look < sums.length; look++) {
      total += sums[look];
      if (sums[look] > sums[most]) most = look;
    }
    const least = this.painter.look.fills[most].edge ? FAINT_WEAK : FAINT;
    const density = Math.ceil(8 * Math.max(least, Math.min(1, total))) / 8;
    sums.fill(0);
    this.at = null;
    if (run && run.to === at && run.look === most && run.density === density) run.to = at + 1;
    else {
      this.paint();
      this.run = { from: at, to: at + 1, look: most, density };
    }
  }

  paint() {
    if (this.run === null) return;
    const { painter, run, lines } = this, fill = painter.look.fills[run.look];
    painter.c.globalAlpha = run.density;
    painter.bar(run.from, this.y, run.to - run.from, this.height, fill, fill.solid, false);
    painter.c.globalAlpha = 1;
    if (lines && run.from - lines.to < 4 && lines.fill.ink === fill.ink) lines.to = run.to;
    else {
      this.hatch();
      this.lines = { from: run.from, to: run.to, fill };
    }
    this.run = null;
  }

  hatch() {
    if (this.lines === null || !this.hatched) return;
    const { painter: { c }, lines: { from, to, fill } } = this;
    c.fillStyle = fill.lines;
    c.fillRect(from, this.y, to - from, this.height);
  }

  end() {
    this.flush();
    this.paint();
    this.hatch();
  }
}
