// The part in sight and the chosen event, and the ways from there: along time, from event to event,
// and to the longest idle times. A subclass paints (`later`), tells (`tell`) and knows where lanes lie (`place`).

const CLOSEST = 200; // nanoseconds that the whole width shows at least
const MARGIN = 0.005; // of the whole, left and right of it

class Cursor {
  constructor(data) {
    this.data = data;
    this.sentences = new Sentences(data);
    this.chosen = this.hover = this.gap = this.at = null;
    this.gaps = 0;
    const span = Math.max(...data.blocks.map((block) => block.span), CLOSEST);
    this.low = -MARGIN * span;
    this.high = span * (1 + MARGIN);
    [this.from, this.to] = [this.low, this.high];
  }

  // -- moving ------------------------------------------------------------------------------------
  see(from, to) {
    const width = Math.min(Math.max(to - from, CLOSEST), this.high - this.low);
    const start = Math.min(Math.max(from, this.low), this.high - width);
    [this.from, this.to] = [start, start + width];
    this.later();
  }

  zoom(factor, at = null) {
    const event = this.chosen && this.data.blocks[this.chosen.block];
    const chosen = event ? (event.start[this.chosen.i] + event.end[this.chosen.i]) / 2 : null;
    const seen = chosen !== null && chosen >= this.from && chosen <= this.to;
    const middle = at ?? (seen ? chosen : (this.from + this.to) / 2);
    const width = Math.max((this.to - this.from) * factor, CLOSEST);
    const share = (middle - this.from) / (this.to - this.from);
    this.see(middle - share * width, middle + (1 - share) * width);
  }

  pan(share) {
    const by = share * (this.to - this.from);
    this.see(this.from + by, this.to + by);
  }

  fit() {
    this.see(this.low, this.high);
  }

  // -- from event to event -----------------------------------------------------------------------
  choose(block, i, { follow = true } = {}) {
    this.chosen = { block, i };
    this.gap = null;
    const { start, end } = this.data.blocks[block];
    if (follow && (end[i] < this.from || start[i] > this.to)) {
      const half = (this.to - this.from) / 2, middle = (start[i] + end[i]) / 2;
      this.see(middle - half, middle + half);
    }
    this.tell(null);
    this.later();
  }

  step(by) {
    if (this.chosen === null) return void this.enter(by);
    const { block, i } = this.chosen, lane = this.laneOf(this.chosen);
    if (i + by < lane.first || i + by >= lane.last) {
      const place = by > 0 ? "last" : "first";
      return this.tell(`${this.sentences.event(this.chosen)} It is the lane's ${place} event.`);
    }
    return this.choose(block, i + by);
  }

  laneOf({ block, i }) {
    return this.data.blocks[block].lanes[this.data.blocks[block].row[i]];
  }

  // The first event in sight, or the last one, of the first lane that has any; else the nearest.
  enter(by) {
    for (const { index, rows } of this.place.blocks) {
      const block = this.data.blocks[index];
      for (const row of rows) {
        const lane = block.lanes[row.index];
        const first = firstAbove(block.reach, lane.first, lane.last, this.from);
        const after = firstAbove(block.start, lane.first, lane.last, this.to);
        if (first < after) {
          this.choose(index, by > 0 ? first : after - 1);
          return;
        }
      }
    }
    const { index, rows } = this.place.blocks[0], block = this.data.blocks[index];
    const lane = rows.map((row) => block.lanes[row.index]).find(({ first, last }) => first < last);
    if (lane) this.choose(index, nearest(block, lane, (this.from + this.to) / 2));
  }

  end(by) {
    if (this.chosen === null) return void this.enter(by);
    const lane = this.laneOf(this.chosen);
    return this.choose(this.chosen.block, by < 0 ? lane.first : lane.last - 1);
  }

  // The event nearest in time on the next lane with any, above or below, in either block.
  lane(by) {
    if (this.chosen === null) return void this.enter(by);
    const { block: index, i } = this.chosen, of = this.data.blocks[index];
    const all = this.place.blocks.flatMap((p) => p.rows.map((row) => [p.index, row.index]));
    let next = all.findIndex(([b, row]) => b === index && row === of.row[i]) + by;
    for (; next >= 0 && next < all.length; next += by) {
      const [b, row] = all[next], block = this.data.blocks[b], lane = block.lanes[row];
      if (lane.first === lane.last) continue;
      return this.choose(b, nearest(block, lane, (of.start[i] + of.end[i]) / 2));
    }
    const side = by < 0 ? "above" : "below";
    return this.tell(`${this.sentences.event(this.chosen)} There is no lane ${side}.`);
  }

  near() {
    if (this.chosen === null) return;
    const { start, end } = this.data.blocks[this.chosen.block], { i } = this.chosen;
    const width = Math.max(end[i] - start[i], CLOSEST / 5);
    this.see(start[i] - 2 * width, end[i] + 2 * width);
  }

  clear() {
    this.chosen = this.hover = this.gap = null;
    this.tell(null);
    this.later();
  }

  other() {
    const twin = this.chosen && twinOf(this.data, this.chosen);
    if (twin) this.choose(twin.block, twin.i);
    else if (this.chosen) {
      this.tell(`${this.sentences.event(this.chosen)} The other block has no such event.`);
    }
  }

  // Each press shows the next shorter one of the lanes' longest idle times.
  longestIdle() {
    const found = this.place.blocks.flatMap(({ index, rows }) => rows.map(({ index: row }) => (
      { block: index, row, gap: this.data.blocks[index].lanes[row].idle })))
      .filter(({ gap }) => gap !== null)
      .sort((a, b) => (b.gap[1] - b.gap[0]) - (a.gap[1] - a.gap[0]));
    if (!found.length) return this.tell("No lane is ever idle between two events.");
    const shown = found[this.gaps++ % found.length], width = shown.gap[1] - shown.gap[0];
    this.chosen = null;
    this.gap = shown.gap;
    this.see(shown.gap[0] - width, shown.gap[1] + width);
    return this.tell(this.sentences.gap(shown));
  }
}
