// What the page says of the scheduler's decisions, and how it puts it there. The numbers are those of Decision in
// scheduler/step_plan.h.

// Makes it the element's text. Returns whether that was another one.
export function setText(element, text) {
  const isNew = element.textContent !== text;
  if (isNew) element.textContent = text;
  return isNew;
}

export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

export function addRow(table, cells, tag) {
  table.insertRow().append(...cells.map((cell) => make(tag, { textContent: cell })));
}

const PREEMPTED = 1;
export const CUT = 2, WAITS = 3;

const format = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
export const number = (value) => format.format(value);
export const count = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;
export const share = (value) => `${number(100 * value)} %`;
export const milliseconds = (seconds) => `${number(1000 * seconds)} ms`;

// By Decision::Why.
const WHYS = [
  "",
  "the step’s budget of tokens is used up",
  "a sequence may have no more tokens in one step",
  "too few blocks are free",
  "as many sequences run as may at once; one must end first",
  "no slot for its fixed state is free",
  "its state is kept behind what it got",
  "another sequence has priority",
  "another output of the same prompt computes what both will share",
  "steps under way still use what it waits for",
  "a step was lost, and whoever was in it now runs alone",
];

const because = (why) => (WHYS[why] ? `: ${WHYS[why]}` : "");

// Why the first of those that wait does.
export function whyWaits([, , why, lacking]) {
  if (why === 3 && lacking > 0)
    return `it needs ${count(lacking, "more block")} than are free; they come back when others end`;
  return WHYS[why] || "the next step decides";
}

export function decided([step, sequence, kind, why, amount]) {
  const who = `Step ${number(step)}: sequence ${sequence}`;
  if (kind === PREEMPTED) {
    const kept = amount > 0 ? `; ${count(amount, "block")} saved in the host’s memory` : "; it will be computed again";
    return `${who} is preempted, and gives its blocks back${because(why)}${kept}`;
  }
  return amount > 0
    ? `${who} begins; ${count(amount, "token")} of it found in the cache, and not computed again`
    : `${who} begins`;
}

export const wasCut = ([sequence, , why, amount]) =>
  `Sequence ${sequence} gets ${count(amount, "token")} less than it wanted${because(why)}.`;

const STATES = { waiting: "waits", prompt: "reads", decoding: "writes", preempted: "preempted", ended: "ended" };
const ENDS = {
  stop: "ended itself", length: "ended: long enough", abort: "aborted", timeout: "out of time", error: "failed",
};

export const stateOf = ({ state }) => STATES[state];

// Of a sequence, as a reader of the list hears it.
export function describe(id, sequence) {
  const state = (sequence.state === "ended" && ENDS[sequence.end]) || stateOf(sequence);
  return `Sequence ${id}: ${state}, ${count(sequence.tokens, "token")}`;
}

export const blockMeaning = (about) =>
  "A model remembers what it has read as keys and values: the KV cache. It is cut into " +
  `${number(about.blocks)} blocks, each with room for ${about.block_size} tokens (a token is a word or a piece of ` +
  `one). A sequence, which is one text in the making, takes a block whenever ${about.block_size} more of its tokens ` +
  "are read or written, and gives all of them back when it ends. A sequence that finds too few blocks free waits.";

export function groupName(window) {
  return window === 0 ? "Layers that look back at all tokens" : `Layers that look back at ${number(window)} tokens`;
}
