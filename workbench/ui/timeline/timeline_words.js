// What the data says, in sentences: one event, one idle time, or the whole.

const NOTHING_MOVED = 1e3; // bytes a nanosecond: no memory is as fast, so there was nothing to move

class Sentences {
  constructor(data) {
    this.data = data;
  }

  whole() {
    return this.data.blocks.map((block) => {
      const lanes = block.lanes.map(({ busy, idle }, row) => (
        `${this.lane(row)} ${percent(busy)} busy`
        + (idle === null ? "" : `, longest idle ${duration(idle[1] - idle[0])}`)));
      return `${block.label}: ${duration(block.span)}. ${lanes.join("; ")}.`;
    }).join(" ");
  }

  lane(row) {
    const { rank, lane, words } = this.data.rows[row];
    const whose = this.data.ranks.length > 1 ? `rank ${rank}, ` : "";
    return `${whose}lane ${lane}${lane === words ? "" : ` (${words})`}`;
  }

  event({ block: index, i }) {
    const block = this.data.blocks[index], name = this.data.names[block.name[i]];
    const took = block.end[i] - block.start[i], bytes = block.bytes[i];
    let text = `${block.label}: ${name.words} (${name.name}), step ${block.step[i]}, `
      + `${this.lane(block.row[i])}; starts at ${instant(block.start[i])}, takes ${duration(took)}`;
    if (bytes > 0 && bytes > NOTHING_MOVED * took) text += "; had nothing to move";
    else if (bytes > 0) text += `; moves ${amount(bytes)} at ${digits(bytes / took, 3)} GB/s`;
    const twin = twinOf(this.data, { block: index, i });
    if (twin === null) return `${text}.`;
    const theirs = this.data.blocks[twin.block], other = theirs.end[twin.i] - theirs.start[twin.i];
    const [said, was] = theirs.source === "predicted" ? [other, took] : [took, other];
    const ratio = said > 0 ? ` (measured / predicted: ${(was / said).toPrecision(3)})` : "";
    return `${text}; ${theirs.source} ${duration(other)}${ratio}.`;
  }

  gap({ block, row, gap }) {
    return `${this.data.blocks[block].label}: ${this.lane(row)} idle for `
      + `${duration(gap[1] - gap[0])}, from ${instant(gap[0])} to ${instant(gap[1])}`
      + `${this.between(block, row, gap)}.`;
  }

  between(index, row, gap) {
    const block = this.data.blocks[index], lane = block.lanes[row];
    const after = firstAbove(block.start, lane.first, lane.last, gap[0]);
    if (after === lane.first || after === lane.last) return "";
    const [before, next] = [after - 1, after].map((i) => this.data.names[block.name[i]].name);
    return `, after ${before} and before ${next}`;
  }
}
