// The cache as fields of blocks: one for each group of layers, one for slots of fixed states, one for host memory.

import { groupName, make, number, setText } from "./words.js";

const MOST_HEIGHT = 360;
const LEAST_CELL = 2, MOST_CELL = 26;
const MARKS = ["copied", "saved", "saved"];  // by WindowMark::Kind

// Of a sequence; neighbours get hues that lie far apart.
export const colorOf = (id, style) => `oklch(${style.lightness} 0.15 ${(id * 137.5) % 360})`;

// The blocks in a sequence's table.
export function blocksOf(frame, id) {
  return new Set(Object.values(frame.sequences[id]?.table ?? {}).filter((block) => block >= 0));
}

export function readStyle() {
  const values = getComputedStyle(document.documentElement);
  const style = {};
  for (const name of ["panel", "line", "text", "dim", "accent", "free", "warm", "copied", "saved", "waiting", "prompt",
    "decoding", "preempted", "ended", "lightness"])
    style[name] = values.getPropertyValue(`--${name}`).trim();
  return style;
}

// Sizes a canvas to its place and the screen's pixels. Returns its context, in CSS pixels, and whether it is empty now;
// with keep, it is not unless its size has changed.
export function prepare(canvas, height, keep = false) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const isNew = canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale);
  if (isNew) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  if (!keep) context.clearRect(0, 0, width, height);
  return { context, width, isNew };
}

class Field {
  // show(block) is whether this field has it; without it, the field's blocks are all of them.
  constructor(parent, key, title, show) {
    this.key = key;
    this.show = show;
    this.canvas = make("canvas");
    this.canvas.setAttribute("role", "img");
    this.caption = make("figcaption", { textContent: title });
    this.counts = make("p", { className: "counts" });
    parent.append(make("figure", {}, this.caption, this.canvas, this.counts));
  }

  draw(frame, marks, chosen, style) {
    const blocks = frame[this.key] ?? {};
    const total = Object.keys(blocks).length;
    const room = Math.sqrt((this.canvas.clientWidth * MOST_HEIGHT) / Math.max(total, 1));
    this.cell = Math.max(LEAST_CELL, Math.min(MOST_CELL, Math.floor(room)));
    this.columns = Math.max(1, Math.floor(this.canvas.clientWidth / this.cell));
    const { context, isNew } = prepare(this.canvas, Math.ceil(total / this.columns) * this.cell || 1, true);
    if (isNew || this.style !== style) this.drawn = [];
    this.style = style;
    const counts = { used: 0, others: 0, shared: 0, warm: 0, free: 0 };
    const gap = this.cell > 4 ? 1 : 0, size = this.cell - gap;
    const isChosen = chosen && this.key === "blocks" ? blocksOf(frame, chosen) : null;
    for (let id = 0; id < total; ++id) {
      const block = blocks[id];
      const isIdle = block === 0 || block === 1;
      if (isIdle) ++counts[block === 0 ? "free" : "warm"];
      const isOthers = !isIdle && this.show && !this.show(block);
      if (!isIdle) ++counts[isOthers ? "others" : "used"];
      if (block[0] > 1 && !isOthers) ++counts.shared;
      const isLit = !chosen || (isChosen ? isChosen.has(id) : block[1] === Number(chosen));
      const isDim = !isIdle && (isOthers || !isLit);
      const mark = this.key === "blocks" ? marks.get(id) : undefined;
      const look = isIdle ? block : `${block[0]} ${block[1]} ${isDim} ${mark}`;
      if (this.drawn[id] === look) continue;
      this.drawn[id] = look;
      const x = (id % this.columns) * this.cell, y = Math.floor(id / this.columns) * this.cell;
      if (isIdle) drawIdle(context, x, y, size, block === 1, style);
      else drawUsed(context, x, y, size, block, isDim, style);
      if (mark !== undefined && !isIdle) drawMark(context, x, y, size, mark, style);
    }
    this.tell(total, counts);
  }

  tell(total, counts) {
    const parts = [`${number(counts.used)} of ${number(total)} in use`, `${number(counts.shared)} of them shared`,
      `${number(counts.warm)} free but kept`, `${number(counts.free)} free and empty`];
    if (this.show) parts.push(`${number(counts.others)} (pale) in use by other layers`);
    const text = parts.join(", ");
    if (setText(this.counts, text)) this.canvas.setAttribute("aria-label", `${this.caption.textContent}: ${text}`);
  }

  // The block at a place of the canvas; -1: there is none.
  at(x, y, frame) {
    const id = Math.floor(y / this.cell) * this.columns + Math.floor(x / this.cell);
    return x < this.columns * this.cell && id in (frame[this.key] ?? {}) ? id : -1;
  }
}

function drawUsed(context, x, y, size, block, isDim, style) {
  context.clearRect(x, y, size, size);
  context.globalAlpha = isDim ? 0.3 : 1;
  context.fillStyle = block[1] === 0 ? style.line : colorOf(block[1], style);
  context.fillRect(x, y, size, size);
  if (block[0] > 1) drawShared(context, x, y, size, block[0], style);
  context.globalAlpha = 1;
}

function drawIdle(context, x, y, size, isWarm, style) {
  context.fillStyle = style.free;
  context.fillRect(x, y, size, size);
  if (!isWarm) return;
  context.fillStyle = style.warm;
  context.beginPath();
  context.arc(x + size / 2, y + size / 2, Math.max(1, size * 0.36), 0, 2 * Math.PI);
  context.fill();
}

function drawShared(context, x, y, size, holders, style) {
  context.fillStyle = style.panel;
  if (size < 12) {
    const inner = Math.max(1, Math.floor(size / 3));
    context.fillRect(x + inner, y + inner, size - 2 * inner, size - 2 * inner);
    return;
  }
  context.fillRect(x + 3, y + 3, size - 6, size - 6);
  context.fillStyle = style.text;
  context.font = `${size - 7}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(holders > 9 ? "+" : String(holders), x + size / 2, y + size / 2 + 0.5);
}

function drawMark(context, x, y, size, kind, style) {
  context.strokeStyle = style[MARKS[kind]];
  context.lineWidth = 2;
  context.setLineDash(kind === 0 ? [] : [2, 1]);
  context.strokeRect(x + 1, y + 1, size - 2, size - 2);
  context.setLineDash([]);
}

export class Fields {
  constructor(parent, note, choose) {
    this.parent = parent;
    this.note = note;
    this.choose = choose;
    this.fields = [];
  }

  build(about) {
    this.parent.replaceChildren();
    this.fields = [];
    const windows = [...new Set(about.windows)];
    for (const size of windows) {
      const title = windows.length > 1 ? groupName(size) : "KV cache";
      const show = windows.length > 1 ? (block) => about.windows[block[2]] === size : undefined;
      this.add("blocks", title, show);
    }
    if (about.slots > 0) this.add("slots", "Slots for the fixed states of recurrent layers, one a sequence");
    if (about.host_blocks > 0) this.add("host", "The host’s memory, for blocks of preempted sequences");
  }

  add(key, title, show) {
    const field = new Field(this.parent, key, title, show);
    this.fields.push(field);
    field.canvas.addEventListener("pointermove", (event) => this.point(field, event));
    field.canvas.addEventListener("click", (event) => {
      const id = this.point(field, event);
      const owner = id >= 0 ? this.frame[field.key][id]?.[1] : 0;
      if (owner) this.choose(String(owner));
    });
  }

  point(field, event) {
    const id = this.frame ? field.at(event.offsetX, event.offsetY, this.frame) : -1;
    if (id >= 0) this.note.textContent = this.tellBlock(field, id);
    return id;
  }

  tellBlock(field, id) {
    const block = this.frame[field.key][id];
    const what = field.key === "slots" ? "Slot" : "Block";
    if (block === 0) return `${what} ${id} is free.`;
    if (block === 1) return `${what} ${id} is kept: it is free, but what it holds can still be found.`;
    if (block[1] === 0) return `${what} ${id} is held by steps under way alone.`;
    const others = block[0] > 1 ? `, shared by ${number(block[0])}` : "";
    const sequence = this.frame.sequences[block[1]];
    const lanes = this.frame.about.windows.length, size = this.frame.about.block_size;
    const place = Object.entries(sequence?.table ?? {}).find(([, held]) => held === id);
    if (field.key !== "blocks" || !place) return `${what} ${id} is held by sequence ${block[1]}${others}.`;
    const row = Math.floor(Number(place[0]) / lanes);
    const tokens = `tokens ${number(row * size + 1)} to ${number((row + 1) * size)}`;
    return `Block ${id} has ${tokens} of sequence ${block[1]}${others}.`;
  }

  draw(frame, chosen, style) {
    this.frame = frame;
    const marks = new Map(frame.marks.map(([block, kind]) => [block, kind]));
    for (const field of this.fields) field.draw(frame, marks, chosen, style);
  }
}
