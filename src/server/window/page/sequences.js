// The list of sequences, the lines of their lives, and what there is to know of the chosen one.

import { colorOf, prepare } from "./field.js";
import { addRow, count, describe, make, number, setText, share, stateOf } from "./words.js";

const ROW = 24;  // pixels, as style.css has it
const LEAST_SPAN = 2, MOST_SPAN = 60;  // seconds that a line shows
const MOST_ROWS = 400;
const THICKNESS = { waiting: 3, prompt: 12, decoding: 12, preempted: 12, ended: 2 };

export class Sequences {
  constructor(onChoose) {
    this.list = document.getElementById("list");
    this.canvas = document.getElementById("lives");
    this.detail = document.getElementById("detail");
    this.rows = new Map();
    this.chosen = "";
    this.onChoose = onChoose;
    this.span = document.getElementById("span");
    this.list.addEventListener("scroll", onChoose);
    this.list.addEventListener("keydown", (event) => this.onKey(event));
    this.list.addEventListener("focus", () => this.chosen || this.choose(this.order[0] ?? ""));
    for (const type of ["pointerover", "click"])
      this.list.addEventListener(type, ({ target }) => this.choose(target.closest(".row")?.dataset.id ?? this.chosen));
    this.order = [];
  }

  onKey(event) {
    const at = this.order.indexOf(this.chosen);
    const last = this.order.length - 1;
    const keys = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: last, PageDown: at + 10, PageUp: at - 10 };
    const next = keys[event.key];
    if (next === undefined || last < 0) return;
    event.preventDefault();
    this.choose(this.order[Math.max(0, Math.min(last, next))]);
    this.rows.get(this.chosen)?.scrollIntoView({ block: "nearest" });
  }

  choose(id) {
    if (id === this.chosen) return;
    this.chosen = id;
    this.onChoose();
  }

  draw(frame, style) {
    const sequences = frame.sequences;
    // Those that live first, each in order of arrival; then what ended last.
    const ids = Object.keys(sequences);
    const alive = ids.filter((id) => sequences[id].state !== "ended");
    const ended = ids.filter((id) => sequences[id].state === "ended").reverse();
    this.order = [...alive, ...ended].slice(0, MOST_ROWS);
    this.fill(sequences, style);
    this.drawLives(frame, style);
    this.tell(frame);
  }

  fill(sequences, style) {
    const wanted = new Set(this.order);
    for (const [id, row] of this.rows) {
      if (wanted.has(id)) continue;
      row.remove();
      this.rows.delete(id);
    }
    const { first, last } = this.inView();
    this.order.forEach((id, index) => {
      const row = this.rows.get(id) ?? this.addRow(id);
      if (this.list.children[index] !== row) this.list.insertBefore(row, this.list.children[index] ?? null);
      const sequence = sequences[id];
      row.setAttribute("aria-selected", String(id === this.chosen));
      if (id !== this.chosen && row.dataset.color && (index < first || index > last)) return;  // nobody sees it
      const color = colorOf(Number(id), style);
      if (row.dataset.color !== color) row.firstChild.style.background = row.dataset.color = color;
      const text = `${stateOf(sequence)}, ${number(sequence.tokens)}`;
      if (setText(row.lastChild, text)) row.setAttribute("aria-label", describe(id, sequence));
    });
    if (this.rows.has(this.chosen)) this.list.setAttribute("aria-activedescendant", `sequence-${this.chosen}`);
    else this.list.removeAttribute("aria-activedescendant");
  }

  inView() {
    const first = Math.floor(this.list.scrollTop / ROW);
    return { first, last: first + Math.ceil(this.list.clientHeight / ROW) };
  }

  addRow(id) {
    const name = make("span", { className: "name", textContent: `№ ${id}` });
    const row = make("div", { className: "row", id: `sequence-${id}` }, make("i"), name, make("span"));
    row.dataset.id = id;
    row.setAttribute("role", "option");
    this.rows.set(id, row);
    return row;
  }

  drawLives(frame, style) {
    const { context, width } = prepare(this.canvas, Math.max(this.list.clientHeight, 1));
    const { first, last } = this.inView();
    const past = frame.about.steps > 0 ? frame.about.seconds : frame.time;
    const span = Math.ceil(Math.min(MOST_SPAN, Math.max(LEAST_SPAN, past)));
    setText(this.span, number(span));
    const end = frame.time * 1000, begin = end - span * 1000;
    const place = (time) => ((Math.max(time, begin) - begin) / (end - begin)) * width;
    this.order.slice(first, last + 1).forEach((id, index) => {
      const life = Object.values(frame.sequences[id].life);
      life.forEach(([time, state], i) => {
        const until = i + 1 < life.length ? life[i + 1][0] : end;
        if (until < begin) return;
        const x = place(time), length = Math.max(place(until) - x, 1);
        const thickness = THICKNESS[state], y = (first + index) * ROW - this.list.scrollTop + (ROW - thickness) / 2;
        context.fillStyle = style[state];
        if (state !== "preempted") return context.fillRect(x, y, length, thickness);
        for (let at = x; at < x + length; at += 5) context.fillRect(at, y, Math.min(3, x + length - at), thickness);
      });
    });
  }

  tell(frame) {
    const sequence = frame.sequences[this.chosen];
    const told = JSON.stringify([this.chosen, sequence, frame.waits.get(this.chosen)]);
    if (this.told === told) return;
    this.told = told;
    this.detail.replaceChildren();
    if (!sequence) return;
    this.write("h3", describe(this.chosen, sequence));
    for (const line of this.detailOf(frame, sequence)) this.write("p", line);
    if (sequence.text) this.write("p", sequence.text).className = "text";
    if (sequence.state !== "ended") this.writeTable(frame.about, sequence);
  }

  write(tag, text) {
    return this.detail.appendChild(make(tag, { textContent: text }));
  }

  detailOf(frame, sequence) {
    if (sequence.state === "ended") return ["Its blocks are given back."];
    const computed = sequence.tokens > 0 ? ` (${share(sequence.computed / sequence.tokens)} of them computed)` : "";
    const written = number(sequence.tokens - sequence.prompt);
    const lines = [`${count(sequence.prompt, "token")} of prompt, ${written} written${computed}; ` +
      `it ends at ${number(sequence.most)} at the latest.`];
    if (frame.waits.has(this.chosen)) lines.push(frame.waits.get(this.chosen));
    if (sequence.cached > 0) lines.push(`${count(sequence.cached, "token")} of its prompt were found in the cache.`);
    if (sequence.saved > 0) lines.push(`${count(sequence.saved, "block")} of it are saved in the host’s memory.`);
    if (sequence.request && sequence.request !== Number(this.chosen))
      lines.push(`It is an output of the same request as sequence ${sequence.request}.`);
    return lines;
  }

  // The block table: a row for every so many tokens, and a column for each lane.
  writeTable(about, sequence) {
    const lanes = about.windows.length, rows = Object.keys(sequence.table).length / lanes;
    this.write("h3", rows > 0 ? "Its block table: which blocks have which of its tokens" : "It holds no block.");
    if (rows === 0) return;
    const table = this.write("table", "");
    const nameOf = (size) => (size === 0 ? "all" : `last ${size}`);
    addRow(table, ["tokens", ...(lanes === 1 ? ["block"] : about.windows.map(nameOf))], "th");
    for (let row = 0; row < rows; ++row) {
      const cells = about.windows.map((_, lane) => sequence.table[row * lanes + lane]);
      addRow(table, [`${row * about.block_size + 1}–${(row + 1) * about.block_size}`,
        ...cells.map((block) => (block < 0 ? "–" : block))], "td");
    }
  }
}
