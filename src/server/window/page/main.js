// Gets frames, and draws them.

import { Charts } from "./charts.js";
import { blocksOf, colorOf, Fields, readStyle } from "./field.js";
import { Sequences } from "./sequences.js";
import { follow, frameAt, keepKey, NeedsKey } from "./stream.js";
import {
  blockMeaning, count, CUT, decided, make, milliseconds, number, setText, share, WAITS, wasCut, whyWaits,
} from "./words.js";

const LEAST_INTERVAL = 1000 / 30;  // milliseconds between two drawings
const byId = (id) => document.getElementById(id);

let style = readStyle();
let frame = null;
let shownAbout = "";  // the frame's, as JSON
let live = null;  // the stream's own, which changes with each event
let isPaused = false;
let needsKey = false;  // nothing is asked for before there is one
let isDrawing = false;
let drawnAt = 0;
let toldStatusAt = 0;

const draw = () => {
  if (isDrawing || !frame) return;
  isDrawing = true;
  const wait = Math.max(0, drawnAt + LEAST_INTERVAL - performance.now());
  setTimeout(() => requestAnimationFrame(drawNow), wait);
};
const sequences = new Sequences(draw);
const fields = new Fields(byId("fields"), byId("block-note"), (id) => sequences.choose(id));
const charts = new Charts(draw);

function drawNow() {
  isDrawing = false;
  drawnAt = performance.now();
  frame.waits = waitsOf(frame);
  tellNumbers();
  tellStep();
  fields.draw(frame, blocksOf(frame, sequences.chosen).size > 0 ? sequences.chosen : "", style);
  sequences.draw(frame, style);
  charts.draw(frame, style);
  const data = document.documentElement.dataset;  // for whoever measures
  data.drawMilliseconds = (performance.now() - drawnAt).toFixed(2);
  data.frames = Number(data.frames ?? 0) + 1;
}

// Sequence -> the sentence that says why it waits.
function waitsOf({ sequences: all, step }) {
  const waiting = Object.keys(all).filter((id) => all[id].state === "waiting" || all[id].state === "preempted");
  const first = step.decisions.find(([, kind]) => kind === WAITS);
  const why = (id) => {
    if (first?.[0] === Number(id)) return `: ${whyWaits(first)}`;
    return first?.[0] in all ? ` behind sequence ${first[0]}, whose turn it is` : " for the next step, which decides";
  };
  return new Map(waiting.map((id) => [id, `Sequence ${id} waits${why(id)}.`]));
}

// A WindowSecond, as it is written.
const lastSecond = () => Object.values(frame.seconds).at(-1) ?? [0, 0, 0, 0, 0, 0, 0];

function tellNumbers() {
  const all = Object.values(frame.sequences);
  const inState = (...states) => all.filter(({ state }) => states.includes(state)).length;
  const held = Object.values(frame.blocks).filter((block) => Array.isArray(block)).length;
  const pairs = [
    ["running", number(inState("prompt", "decoding"))],
    ["waiting", number(inState("waiting", "preempted"))],
    ["tokens written a second", number(lastSecond()[0])],
    ["blocks in use", share(held / Math.max(frame.about.blocks, 1))],
    ["step", number(frame.step.id)],
    ["a step takes", frame.applied[0] > 0 ? milliseconds(frame.applied[0]) : "–"],
  ];
  fill(byId("numbers"), pairs, () => make("div", {}, make("dt"), make("dd")), (row, [name, value]) => {
    setText(row.firstChild, name);
    setText(row.lastChild, value);
  });
}

// Gives the parent a child for each of all, and has that one tell of it.
function fill(parent, all, newChild, tell) {
  while (parent.children.length > all.length) parent.lastChild.remove();
  all.forEach((one, i) => tell(parent.children[i] ?? parent.appendChild(newChild()), one));
}

function tellStep() {
  const { step, about } = frame;
  const budget = byId("budget");
  fill(budget, step.spans, () => make("i"), (part, [id, tokens]) => {
    const width = `max(2px, ${(100 * tokens) / about.budget}%)`;
    const color = colorOf(id, style);
    if (part.dataset.drawn === width + color) return;
    part.dataset.drawn = width + color;
    part.style.width = width;
    part.style.background = color;
  });
  const prompts = step.spans.filter(([, , isPrompt]) => isPrompt);
  const read = prompts.reduce((sum, [, tokens]) => sum + tokens, 0);
  const pieces = prompts.length > 0 ? ` and ${count(read, "token")} of ${count(prompts.length, "prompt")}` : "";
  const text = step.id === 0 ? "No step yet: there is nothing to compute." :
    `Step ${number(step.id)} computes ${number(step.tokens)} of at most ${number(about.budget)} tokens: ` +
    `one each for ${count(step.spans.length - prompts.length, "sequence that writes", "sequences that write")}` +
    `${pieces}.`;
  setText(byId("step-text"), text);
  budget.setAttribute("aria-label", text);
  const cuts = step.decisions.filter(([, kind]) => kind === CUT).map(wasCut);
  const waits = [...frame.waits.values()];
  const more = waits.length > 5 ? [`… and ${number(waits.length - 5)} more behind them.`] : [];
  setLines(byId("waits"), [...cuts.slice(0, 5), ...waits.slice(0, 5), ...more], "Nobody waits.");
  setLines(byId("events"), frame.events.slice(-20).reverse().map(decided), "Nothing yet.");
  setLimits();
}

function setLines(list, lines, none) {
  fill(list, lines.length > 0 ? lines : [none], () => make("li"), setText);
}

// What the last step that is done read, and what those of the last second computed, beside what this machine can at
// best. A step reads all weights once, and of each sequence in it the blocks that it attends to.
function setLimits() {
  const { about: { limits, budget, seats }, step, applied: [seconds, tokens, blocks] } = frame;
  const [written, read, , , , , busy] = lastSecond();
  const meters = [
    ["of the last second, a step was under way", busy],
    [`of the ${number(budget)} tokens that a step may have`, step.tokens / budget],
    [`of the ${number(seats)} sequences that may run at once`, step.spans.length / seats],
  ];
  if (limits.read_gb_per_s > 0 && seconds > 0) {
    const met = 1 - (1 - limits.routed_share) ** tokens;
    const bytes = limits.weight_bytes + limits.expert_bytes * met + blocks * limits.block_bytes;
    const ofReading = bytes / seconds / (limits.read_gb_per_s * 1e9);
    const flop = limits.flop_per_token * (written + read);
    const ofMatrix = busy > 0 ? flop / busy / (limits.matrix_gflop_per_s * 1e9) : 0;
    meters.push([`of the ${number(limits.read_gb_per_s)} GB a second that memory gives; caches give more`, ofReading]);
    meters.push([`of the ${number(limits.matrix_gflop_per_s)} GFLOP a second that it can compute`, ofMatrix]);
  }
  fill(byId("limits"), meters, newMeter, (meter, [name, value]) => {
    setText(meter.children[0], name);
    meter.children[1].firstChild.style.width = `${Math.min(100, 100 * value)}%`;
    setText(meter.children[2], share(value));
  });
}

function newMeter() {
  const bar = make("div", {}, make("i"));
  bar.setAttribute("aria-hidden", "true");
  return make("div", { className: "meter" }, make("span"), bar, make("b"));
}

// For screen readers, too, so not with every frame.
function tellStatus(text, isUrgent = true) {
  if (!isUrgent && performance.now() - toldStatusAt < 10000) return;
  toldStatusAt = performance.now();
  setText(byId("status"), text);
}

function show(next) {
  const about = JSON.stringify(next.about);
  if (shownAbout !== about) {
    shownAbout = about;
    const { model, device, dtype } = next.about;
    setText(byId("model"), [model, device, dtype].filter(Boolean).join(" · "));
    setText(byId("what-block"), blockMeaning(next.about));
    byId("main").hidden = false;
    fields.build(next.about);
  }
  frame = next;
  draw();
}

async function watch() {
  for (let wait = 1000; ; wait = Math.min(2 * wait, 10000)) {
    try {
      await follow((state) => {
        wait = 1000;
        byId("key-form").hidden = true;
        if (state.about.steps === 0) tellStatus("Live", byId("status").textContent !== "Live");
        live = state;
        if (!isPaused) show(state);
      });
      return startPlayer();
    } catch (error) {
      if (error instanceof NeedsKey) return askKey();
      tellStatus(`Not connected (${error.message}); trying again …`);
    }
    await new Promise((resume) => setTimeout(resume, wait));
  }
}

function askKey() {
  needsKey = true;
  tellStatus("An API key is needed.");
  byId("key-form").hidden = false;
  byId("key").focus();
}

// A recording.
let steps = 1;
let playing = 0;  // the timer; 0: it stands still
let wanted = "";
let isAsking = false;

// Asks for one frame at a time: the last that is wanted when the one before is there.
async function go(query) {
  wanted = query;
  if (isAsking) return;
  isAsking = true;
  while (wanted) {
    const next = wanted;
    wanted = "";
    try {
      show(await frameAt(next));
      tellPlace();
    } catch (error) {
      stop();
      tellStatus(`It cannot be shown: ${error.message}`);
    }
  }
  isAsking = false;
}

const goToStep = (step) => go(`?step=${Math.max(1, Math.min(steps, step))}`);

function tellPlace() {
  if (document.activeElement !== byId("seek") || playing) byId("seek").value = frame.step.id;
  const { step: { id }, time, about } = frame;
  const text = `step ${number(id)} of ${number(steps - 1)}, ${number(time)} of ${number(about.seconds)} s`;
  setText(byId("place"), text);
  byId("seek").setAttribute("aria-valuetext", text);
  byId("difference").hidden = !frame.difference;
  setText(byId("difference"), frame.difference);
}

function stop() {
  clearInterval(playing);
  playing = 0;
  setText(byId("play"), "Play");
}

function play() {
  if (playing) return stop();
  let time = frame.step.id >= steps - 1 ? 0 : frame.time, last = performance.now();
  setText(byId("play"), "Stop");
  playing = setInterval(() => {
    const now = performance.now();
    time += ((now - last) / 1000) * Number(byId("speed").value);
    last = now;
    go(`?time=${time.toFixed(4)}`);
    if (time < frame.about.seconds) return;
    stop();
    goToStep(steps);
  }, 100);
}

function startPlayer() {
  tellStatus("A recording");
  byId("pause").hidden = true;
  byId("player").hidden = false;
  steps = frame.about.steps;
  byId("seek").max = steps;
  byId("seek").addEventListener("input", () => goToStep(Number(byId("seek").value)));
  byId("back").addEventListener("click", () => (stop(), goToStep(frame.step.id - 1)));
  byId("forth").addEventListener("click", () => (stop(), goToStep(frame.step.id + 1)));
  byId("play").addEventListener("click", play);
  tellPlace();
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey(byId("key").value);
  if (!needsKey) return;  // Enter was pressed twice
  needsKey = false;
  watch();
});
byId("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  if (frame) show(isPaused ? structuredClone(live) : live);
  byId("pause").setAttribute("aria-pressed", String(isPaused));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  style = readStyle();
  draw();
});
addEventListener("resize", draw);
watch();
