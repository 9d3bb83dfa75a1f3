// The timeline a reader handles: wheel, drag, keys and buttons move one view over both blocks, and
// one line of text says what is pointed at. Text of the data enters the page as text only.

const KEYS = [
  // label, key shown, keys that do it, what it does
  ["Zoom in", "+", ["+", "="], (t) => t.zoom(0.5)],
  ["Zoom out", "−", ["-", "_"], (t) => t.zoom(2)],
  ["Fit", "0", ["0"], (t) => t.fit()],
  ["Left", "←", ["ArrowLeft"], (t) => t.pan(-0.2)],
  ["Right", "→", ["ArrowRight"], (t) => t.pan(0.2)],
  ["Previous event", "p", ["p", "P"], (t) => t.step(-1)],
  ["Next event", "n", ["n", "N"], (t) => t.step(1)],
  ["Other block", "o", ["o", "O"], (t) => t.other()],
  ["Longest idle", "i", ["i", "I"], (t) => t.longestIdle()],
];
const MORE_KEYS = [
  [["ArrowUp"], (t) => t.lane(-1)],
  [["ArrowDown"], (t) => t.lane(1)],
  [["Home"], (t) => t.end(-1)],
  [["End"], (t) => t.end(1)],
  [["Enter"], (t) => t.near()],
  [["Escape"], (t) => t.clear()],
];
const HELP = "Keys in the timeline: + and − zoom, ← and → pan, 0 or a double click fits all, "
  + "n and p next and previous event, ↑ and ↓ change the lane, Home and End its first and last "
  + "event, Enter zooms to the event, o finds it in the other block, i the longest idle times.";
const BEGIN = "Point at an event, or go into the timeline with Tab and press n for its events.";
const TOLD = 1650; // pixels of a long description on one line
const SCROLLING = 300; // milliseconds in which a wheel that scrolls the page goes on doing so

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function swatch(color) {
  const square = make("span", { "aria-hidden": "true" });
  square.style.background = color;
  return square;
}

class TimelineView extends Cursor {
  constructor(data, host) {
    super(prepare(data));
    this.rank = null; // all of them
    this.build();
    this.ends = new AbortController();
    this.listen();
    host.replaceChildren(this.root);
    this.arrange();
  }

  // -- the elements ------------------------------------------------------------------------------
  build() {
    const id = `wb-timeline-${Math.random().toString(36).slice(2)}`;
    const words = this.data.title || "Timeline";
    this.canvas = make("canvas", { tabindex: "0", role: "application", "aria-label": words,
      "aria-roledescription": "timeline", "aria-describedby": `${id}-summary ${id}-keys` });
    this.context = this.canvas.getContext("2d");
    this.told = make("p", { class: "wb-timeline-told", role: "status", "aria-live": "polite" });
    this.range = make("span", { class: "wb-timeline-range" });
    const tools = make("div", { class: "wb-timeline-tools", role: "group",
      "aria-label": "Move through the timeline" });
    for (const [label, shown, keys, act] of KEYS) {
      if (label === "Other block" && this.data.blocks.length < 2) continue;
      const button = make("button", { type: "button", title: `${label} (key ${shown})`,
        "aria-keyshortcuts": keys[0] === "+" ? "Plus" : keys[0] }, label);
      button.addEventListener("click", () => act(this));
      tools.append(button);
    }
    if (this.data.ranks.length > 1) tools.append(this.ranks());
    tools.append(this.range);
    this.root = make("div", { class: "wb-timeline" },
      make("div", { class: "wb-timeline-title" }, words), tools, this.told, this.canvas,
      this.legend(), ...this.data.notes.map((note) => make("p", {}, note)),
      make("p", { class: "wb-timeline-keys", id: `${id}-keys` }, HELP),
      make("p", { class: "wb-timeline-hidden", id: `${id}-summary` }, this.sentences.whole()));
    this.tell(null);
  }

  ranks() {
    const select = make("select", { "aria-label": "Rank shown" },
      make("option", { value: "" }, "all ranks"),
      ...this.data.ranks.map((rank) => make("option", { value: rank }, `rank ${rank}`)));
    select.addEventListener("change", () => {
      this.rank = select.value === "" ? null : Number(select.value);
      this.chosen = this.hover = this.gap = null;
      this.gaps = 0;
      this.tell(null);
      this.arrange();
    });
    return select;
  }

  legend() {
    const list = make("ul", { class: "wb-timeline-legend", "aria-label": "Legend" });
    for (const look of this.data.looks) list.append(make("li", {}, swatch(look.color), look.words));
    for (const [fill, source] of [["hatched", "simulated"], ["filled", "measured"]]) {
      list.append(make("li", {}, make("span", { class: `wb-timeline-${fill}`,
        "aria-hidden": "true" }), `${fill}: ${source}`));
    }
    list.append(make("li", {}, "shaded: idle, the longest time framed"));
    list.append(make("li", {}, "blank: not recorded"));
    list.append(make("li", {}, "percent: busy share of a step"));
    return list;
  }

  // Says this, or else what is chosen, or how to begin.
  tell(text) {
    const said = text ?? (this.chosen ? this.sentences.event(this.chosen) : BEGIN);
    if (this.told.textContent !== said) this.told.textContent = said;
  }

  // -- pointer, wheel and keys -------------------------------------------------------------------
  listen() {
    const { canvas, root } = this, { signal } = this.ends;
    const on = (target, type, act, options = {}) => {
      target.addEventListener(type, act, { signal, ...options });
    };
    on(root, "keydown", (event) => this.key(event));
    on(canvas, "pointermove", (event) => this.move(event));
    on(canvas, "pointerdown", (event) => this.press(event));
    on(canvas, "pointerup", (event) => this.release(event));
    on(canvas, "pointercancel", () => this.drop());
    on(canvas, "pointerleave", () => this.leave());
    on(canvas, "dblclick", () => this.fit());
    on(canvas, "wheel", (event) => this.wheel(event), { passive: false });
    on(document, "wheel", (event) => {
      if (event.target !== canvas) this.scrolled = event.timeStamp;
    }, { passive: true, capture: true });
    on(root, "transitionend", (event) => { // the theme changed
      if (event.target !== root) return;
      this.colors = null;
      this.later();
    });
    this.resized = new ResizeObserver(() => this.arrange());
    this.resized.observe(root);
  }

  // A plain key stays here whatever it is: the notebook around might take it for "delete the cell".
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    event.stopPropagation();
    if (event.target.tagName === "SELECT") return;
    if (event.key === "Enter" && event.target !== this.canvas) return;
    const found = [...KEYS.map(([, , keys, act]) => [keys, act]), ...MORE_KEYS]
      .find(([keys]) => keys.includes(event.key));
    if (!found) return;
    event.preventDefault();
    found[1](this);
  }

  // A page that is being scrolled goes on scrolling, and so it does where all is in sight already.
  wheel(event) {
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    const out = !sideways && event.deltaY > 0 && this.to - this.from >= this.high - this.low;
    if (out || event.timeStamp - (this.scrolled ?? -Infinity) < SCROLLING) {
      this.scrolled = event.timeStamp;
      return;
    }
    event.preventDefault();
    const unit = event.deltaMode === 0 ? 1 : 30;
    if (sideways) this.pan(((event.deltaX || event.deltaY) * unit) / this.width());
    else {
      const by = event.deltaY * unit * (event.ctrlKey ? 0.01 : 0.002);
      this.zoom(Math.exp(Math.min(1, Math.max(-1, by))), this.time(event.offsetX));
    }
    this.point(event.offsetX, event.offsetY);
  }

  press(event) {
    if (event.button !== 0) return;
    this.canvas.focus({ preventScroll: true });
    this.canvas.setPointerCapture(event.pointerId);
    const overview = event.offsetY >= this.place.overview;
    this.drag = { x: event.offsetX, from: this.from, to: this.to, moved: false, overview };
    if (overview) this.slide(event.offsetX);
  }

  slide(x) {
    const half = (this.to - this.from) / 2, share = (x - this.left) / this.width();
    const middle = this.low + share * (this.high - this.low);
    this.see(middle - half, middle + half);
  }

  move(event) {
    const { drag } = this;
    if (!drag) return this.point(event.offsetX, event.offsetY);
    const by = event.offsetX - drag.x;
    drag.moved ||= Math.abs(by) > 3;
    if (drag.overview) return this.slide(event.offsetX);
    if (!drag.moved) return undefined;
    this.canvas.classList.add("wb-timeline-dragged");
    this.at = null;
    const shift = (by / this.width()) * (drag.to - drag.from);
    return this.see(drag.from - shift, drag.to - shift);
  }

  release(event) {
    const { drag } = this;
    this.drop();
    if (!drag || drag.moved || drag.overview) return;
    const hit = this.hit(event.offsetX, event.offsetY);
    if (hit && hit.i !== undefined) this.choose(hit.block, hit.i, { follow: false });
    else if (hit) this.tell(this.sentences.gap(hit));
    else this.clear();
  }

  drop() {
    this.drag = null;
    this.canvas.classList.remove("wb-timeline-dragged");
  }

  leave() {
    this.at = this.hover = null;
    if (this.gap === null) this.tell(null);
    this.later();
  }

  point(x, y) {
    const inside = x >= this.left && y < this.place.overview;
    this.at = inside ? Math.max(0, this.time(x)) : null;
    const hit = inside ? this.hit(x, y) : null;
    this.hover = hit && hit.i !== undefined ? hit : null;
    if (hit) this.tell(this.hover ? this.sentences.event(hit) : this.sentences.gap(hit));
    else if (this.gap === null) this.tell(null);
    this.later();
  }

  // The event at a place, or one within three pixels; else the idle time between two events.
  hit(x, y) {
    for (const { index, rows } of this.place.blocks) {
      const row = rows.find((r) => y >= r.y && y < r.y + this.place.height);
      if (!row) continue;
      const block = this.data.blocks[index], lane = block.lanes[row.index], at = this.time(x);
      if (lane.first === lane.last) return null;
      const i = nearest(block, lane, at), near = (3 * (this.to - this.from)) / this.width();
      if (at >= block.start[i] - near && at <= block.end[i] + near) return { block: index, i };
      const after = firstAbove(block.start, lane.first, lane.last, at);
      if (after === lane.first || after === lane.last) return null;
      return { block: index, row: row.index, gap: [block.reach[after - 1], block.start[after]] };
    }
    return null;
  }

  // -- painting ----------------------------------------------------------------------------------
  width() {
    return Math.max(1, this.canvas.clientWidth - this.left);
  }

  time(x) {
    return this.from + ((x - this.left) / this.width()) * (this.to - this.from);
  }

  // After a change of size or of what is shown: places, and a canvas of that many device pixels.
  arrange() {
    this.place = layout(this.data, this.rank);
    this.canvas.style.height = `${this.place.bottom}px`;
    const lines = Math.min(6, Math.max(2, Math.ceil(TOLD / (this.root.clientWidth || TOLD))));
    this.told.style.height = `calc(${1.4 * lines}em + 10px)`; // the same for all that is told
    this.ratio = window.devicePixelRatio || 1;
    const wide = Math.round(this.canvas.clientWidth * this.ratio);
    const high = Math.round(this.place.bottom * this.ratio);
    if (this.canvas.width !== wide || this.canvas.height !== high) {
      this.canvas.width = wide;
      this.canvas.height = high;
    }
    this.colors = null;
    this.later();
  }

  gutter() {
    const { context, place } = this;
    context.font = `${Math.min(12, place.height - 1)}px ${this.colors.family}`;
    const names = place.blocks.flatMap((block) => block.rows.map((row) => row.name));
    const widest = Math.max(...names.map((name) => context.measureText(name).width));
    const room = Math.ceil(widest + context.measureText("100 %").width + 22);
    return Math.min(room, Math.round(this.canvas.clientWidth * 0.4));
  }

  later() {
    this.frame ??= requestAnimationFrame(() => this.paint());
  }

  paint() {
    this.frame = null;
    const { canvas, context, ratio } = this;
    if (!canvas.clientWidth) return; // not shown yet; the observer tells when it is
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.colors ??= palette(this.root, context, this.data.looks, ratio);
    this.left = this.gutter();
    const view = { from: this.from, to: this.to, low: this.low, high: this.high,
      left: this.left, width: this.width() };
    const main = this.hover ?? this.chosen, twin = main && twinOf(this.data, main);
    const framed = [...(twin ? [{ event: twin, dashed: true }] : []),
      ...(this.chosen && this.chosen !== main ? [{ event: this.chosen, dashed: false }] : []),
      ...(main ? [{ event: main, dashed: false }] : [])];
    const state = { at: this.at, gap: this.gap, framed };
    new Painter(context, this.data, this.colors, this.place, view, state)
      .frame(canvas.clientWidth, this.place.bottom);
    this.range.textContent = `${instant(Math.max(0, this.from))} to ${instant(this.to)}`;
  }

  close() {
    this.ends.abort();
    this.resized.disconnect();
    cancelAnimationFrame(this.frame);
    this.root.remove();
  }
}

// Puts the timeline of `data` into an element; returns how to take it away again.
function show(data, element) {
  const view = new TimelineView(data, element);
  return () => view.close();
}

function render({ model, el }) {
  let close = show(model.get("data"), el);
  const again = () => {
    close();
    close = show(model.get("data"), el);
  };
  model.on("change:data", again);
  return () => {
    model.off("change:data", again);
    close();
  };
}

export default { render };
