#!/usr/bin/env python3
"""Draws the pictures of docs/architecture.md from the recording in docs/recordings.

  draw_recording.py QUIRE            draws docs/pictures/*.svg
  draw_recording.py --check QUIRE    exit code 1 if a picture is not what it would draw
  draw_recording.py --record QUIRE   makes the recording anew, then draws

`quire replay --window` makes the recording's plans again and tells what is behind each as JSON (docs/window.md). Where
it comes to other plans, as with a scheduler that decides differently, nothing is drawn: then the recording must be
made anew, and what the page says of the pictures looked at.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
RECORDING = ROOT / "docs/recordings/seven_prompts.rec"
PICTURES = ROOT / "docs/pictures"

FOX = "Once there was a fox who lived in a wood, and each morning it walked down to the river. There it met a heron."
CACHE = ("The KV cache keeps keys and values of every token that was read, block by block, so that no token is "
         "computed twice. Continuous batching computes many sequences at once, and paged memory lets them share what "
         "they have in common.")
PROMPTS = [FOX, f"{CACHE} Why is that so?", FOX * 3, "Hello", f"{CACHE} How does it work?", CACHE,
           f"{FOX} The fox asked the heron"]
COMMAND = ["generate", "--device", "cpu", "--dtype", "bfloat16", "--max-num-seqs", "5",
           "--max-num-batched-tokens", "32", "--kv-cache-memory", "672KiB", "--max-model-len", "200",
           "--max-tokens", "24", "--ignore-eos", "--temperature", "0"]

# --- The look. Colours: in light and in dark; of sequences: one for both, and the text's on it.

COLOURS = {
    "paper": ("#ffffff", "#0d1117"), "ink": ("#1f2328", "#e6edf3"), "soft": ("#59636e", "#9da7b3"),
    "rule": ("#d1d9e0", "#3d444d"), "edge": ("#57606a", "#aab4be"), "pale": ("#eef1f4", "#1c232b"),
    "prompt": ("#0072b2", "#56b4e9"), "decode": ("#00805d", "#2fc79b"), "lost": ("#b34a00", "#ff9a52"),
    "used": ("#7a86c9", "#6f7fd6"), "shared": ("#2f2a6b", "#d6d0ff"),
}
DARK, LIGHT = "#111111", "#ffffff"
SEQUENCES = [("#e69f00", DARK), ("#56b4e9", DARK), ("#009e73", DARK), ("#f0e442", DARK), ("#0072b2", LIGHT),
             ("#d55e00", DARK), ("#cc79a7", DARK)]  # Okabe and Ito's
WIDTH, LEFT, RIGHT = 720, 52, 12  # pixels
PATTERNS = """<pattern id="stripes" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">\
<rect class="f-lost" width="3" height="6"/></pattern>
<pattern id="dots" width="6" height="6" patternUnits="userSpaceOnUse"><circle class="f-soft" cx="3" cy="3" r="1.2"/>\
</pattern>"""


class Failure(Exception):
    """What keeps the program from drawing."""


class Svg:
    """A picture in the making. A class f-NAME fills with a colour, s-NAME draws lines of it."""

    def __init__(self, height, title, description):
        self.parts = []
        self.head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
                     f'height="{height}" role="img" aria-labelledby="title desc">\n'
                     f'<title id="title">{escape(title)}</title>\n<desc id="desc">{escape(description)}</desc>\n')
        self.rect(0, 0, WIDTH, height, "f-paper")

    def element(self, name, text=None, **attributes):
        inside = "".join(f' {key.strip("_").replace("_", "-")}="{number(value)}"' for key, value in attributes.items())
        self.parts.append(f"<{name}{inside}/>" if text is None else f"<{name}{inside}>{escape(text)}</{name}>")

    def rect(self, x, y, width, height, look, **more):
        self.element("rect", x=x, y=y, width=width, height=height, class_=look, **more)

    def line(self, x1, y1, x2, y2, look, **more):
        self.element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=look, **more)

    def text(self, x, y, text, look="f-ink", **more):
        self.element("text", text, x=x, y=y, class_=look, **more)

    def chip(self, x, y, sequence, width=18, height=16):
        """A field of a sequence's colour with its number."""
        fill, ink = SEQUENCES[(sequence - 1) % len(SEQUENCES)]
        self.rect(x, y, width, height, "s-edge", fill=fill)
        self.text(x + width / 2, y + height / 2 + 4.2, str(sequence), "mid", fill=ink)

    def legend(self, y, entries):
        """Samples in a row: (width of the sample, what draws it at x, what it means)."""
        x = LEFT
        for width, draw, meaning in entries:
            draw(x)
            self.text(x + width + 6, y + 4, meaning, "f-soft")
            x += width + 6 + text_width(meaning) + 16

    def steps_axis(self, y, steps, width):
        """The numbers of steps below a chart."""
        for step in [steps[0], *(step for step in steps if step % 10 == 0)]:
            self.text(LEFT + (steps.index(step) + 0.5) * width, y + 14, str(step), "f-soft mid")
        self.text(RIGHT, y + 14, "step", "f-soft")

    def written(self):
        def rules(mode):
            return "".join(f".f-{name}{{fill:{values[mode]}}}.s-{name}{{stroke:{values[mode]}}}"
                           for name, values in COLOURS.items())

        style = (f"<style>\ntext{{font:12px system-ui,sans-serif}}.mid{{text-anchor:middle}}.end{{text-anchor:end}}"
                 f".small{{font-size:11px}}"
                 f".none{{fill:none}}\n{rules(0)}\n@media (prefers-color-scheme:dark){{{rules(1)}}}\n</style>\n")
        return f"{self.head}{style}<defs>{PATTERNS}</defs>\n" + "\n".join(self.parts) + "\n</svg>\n"


def text_width(text):
    """In pixels, about."""
    return 6.5 * len(text)


def number(value):
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else escape(str(value), {'"': "&quot;"})


# --- What a recording says

WAITS, BUDGET, BLOCKS, SEATS = 3, 1, 3, 4  # of Decision in src/scheduler/step_plan.h


def read_frames(quire, recording):
    """What is there behind each plan, in order."""
    command = [str(quire), "replay", str(recording), "--window", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = []
            for line in process.stderr:
                said.append(line)
                if address := re.search(r"http://\S+/window", line):
                    return fetch_frames(address[0])
            raise Failure(f"{' '.join(command)}: {''.join(said).strip()}")
        finally:
            process.kill()


def fetch_frames(address):
    def get(step):
        with urlopen(f"{address}/state?step={step}", timeout=60) as answer:
            return json.load(answer)

    frames = [get(1)]
    frames += [get(step) for step in range(2, frames[0]["about"]["steps"])]
    for frame in frames:
        if frame["difference"]:
            raise Failure(f"{frame['difference']}; --record makes the recording anew")
    return frames


def all_sequences(frames):
    return sorted({int(sequence) for frame in frames for sequence in frame["sequences"]})


def states(frames, sequence):
    """A word for each step: "", waiting, prompt, decode, preempted, paused (it runs, without a token) or ended."""
    found = []
    for frame in frames:
        state = frame["sequences"].get(str(sequence), {"state": ""})["state"]
        spans = [is_prompt for of, _, is_prompt in frame["step"]["spans"] if of == sequence]
        if spans:
            state = "prompt" if spans[0] else "decode"
        elif state in ("prompt", "decoding"):
            state = "paused"
        found.append(state)
    return found


def runs(words):
    """(first, one behind the last, word) of equal neighbours."""
    first = 0
    for i in range(1, len(words) + 1):
        if i == len(words) or words[i] != words[first]:
            yield first, i, words[first]
            first = i


def holders(frame):
    """By block: the sequences whose tables name it, each with how many of the block's tokens are computed."""
    size, found = frame["about"]["block_size"], {}
    for sequence in sorted(map(int, frame["sequences"])):
        of = frame["sequences"][str(sequence)]
        for row, block in of["table"].items():
            found.setdefault(block, []).append((sequence, max(0, min(size, of["computed"] - size * int(row)))))
    return found


def kind(block):
    """Of a block as a frame has it."""
    if isinstance(block, list):
        return "shared" if block[0] > 1 else "used"
    return "warm" if block else "free"


def count(frame, wanted):
    return sum(kind(block) == wanted for block in frame["blocks"].values())


def step_of_every_kind(frames):
    """The first one behind which blocks of every kind are there; without such a one, the middle one."""
    kinds = ("used", "shared", "warm", "free")
    return next((frame for frame in frames if all(count(frame, each) for each in kinds)), frames[len(frames) // 2])


def step_width(frames):
    return (WIDTH - LEFT - RIGHT) / len(frames)


def step_ids(frames):
    return [frame["step"]["id"] for frame in frames]


# --- The pictures

def draw_steps(frames):
    """Which sequences get how many of each step's tokens."""
    budget, width, scale, top = frames[0]["about"]["budget"], step_width(frames), 7, 58
    bottom = top + budget * scale
    svg = Svg(bottom + 24, "The tokens of each step",
              f"{len(frames)} steps, each a column of at most {budget} tokens: one for each sequence that is writing, "
              "then chunks of prompts.")
    svg.legend(14, [(18, lambda x: svg.chip(x, 6, 3), "a chunk of a prompt, with the sequence's number"),
                    (8, lambda x: dot(svg, x + 4, 14, 3), "one token of a sequence that writes")])
    for tokens in range(0, budget + 1, 8):
        y = bottom - tokens * scale
        svg.line(LEFT, y, WIDTH - RIGHT, y, "s-rule")
        svg.text(LEFT - 6, y + 4, str(tokens), "f-soft end")
    svg.text(RIGHT, top - 12, "tokens", "f-soft")
    for column, frame in enumerate(frames):
        y, x = bottom, LEFT + column * width
        for sequence, tokens, is_prompt in frame["step"]["spans"]:
            y -= tokens * scale
            if is_prompt:
                chunk(svg, x + 1, y, width - 2, tokens * scale - 1, sequence)
            else:
                dot(svg, x + width / 2, y + scale / 2, sequence)
    svg.line(LEFT, top, WIDTH - RIGHT, top, "s-ink", stroke_dasharray="5 4")
    svg.text(WIDTH - RIGHT, top - 6, f"the budget: {budget} tokens a step", "end f-ink")
    svg.steps_axis(bottom, step_ids(frames), width)
    return svg.written()


def dot(svg, x, y, sequence):
    svg.element("circle", cx=x, cy=y, r=3.1, class_="s-edge", fill=SEQUENCES[(sequence - 1) % len(SEQUENCES)][0])


def chunk(svg, x, y, width, height, sequence):
    if height >= 13:
        svg.chip(x, y, sequence, width, height)
    else:
        svg.rect(x, y, width, height, "s-edge", fill=SEQUENCES[(sequence - 1) % len(SEQUENCES)][0])


LIVES = [("waiting", "waits"), ("prompt", "its prompt is read"), ("decode", "it writes"),
         ("preempted", "preempted"), ("end", "its end")]


def draw_lives(frames):
    """A line for each sequence."""
    sequences, width, top, row = all_sequences(frames), step_width(frames), 34, 24
    bottom = top + row * len(sequences)
    svg = Svg(bottom + 24, "The lives of the sequences",
              "A line for each sequence over the steps: "
              + "; ".join(life_in_words(frames, each) for each in sequences))
    svg.legend(14, [(22, lambda x, state=state: draw_state(svg, state, x, x + 22, 14), meaning)
                    for state, meaning in LIVES])
    for step in range(0, len(frames), 10):
        x = LEFT + (max(step, 1) - 0.5) * width
        svg.line(x, top, x, bottom, "s-rule")
    for i, sequence in enumerate(sequences):
        y, seen = top + row * (i + 0.5), states(frames, sequence)
        svg.chip(LEFT - 26, y - 8, sequence)
        for first, last, state in runs(seen):
            if state == "ended":
                draw_state(svg, "end", LEFT + first * width, LEFT + first * width, y)
            else:
                draw_state(svg, state, LEFT + first * width, LEFT + last * width, y)
            why = reason(frames[first:last], sequence) if state == "waiting" else ""
            if 0 < text_width(why) < (last - first) * width:
                svg.text(LEFT + last * width - 4, y - 4, why, "f-soft end small")
        if seen[-1] != "ended":  # the last step is its last
            draw_state(svg, "end", LEFT + len(seen) * width, LEFT + len(seen) * width, y)
    svg.steps_axis(bottom, step_ids(frames), width)
    return svg.written()


def reason(frames, sequence):
    """Why it waits at the last of these steps that says so; "" where it is not the first of those that wait."""
    names = {BUDGET: "the step is full", SEATS: "no seat is free"}
    for frame in reversed(frames):
        for of, what, why, blocks in frame["step"]["decisions"]:
            if of == sequence and what == WAITS:
                return f"lacks {blocks} blocks" if why == BLOCKS else names.get(why, "")
    return ""


def life_in_words(frames, sequence):
    steps = step_ids(frames)
    parts = [f"{state} from step {steps[first]}" for first, _, state in runs(states(frames, sequence)) if state]
    return f"sequence {sequence} {', '.join(parts)}"


def draw_state(svg, state, x1, x2, y):
    if state in ("waiting", "paused"):
        svg.line(x1, y, x2, y, "s-soft" if state == "waiting" else "s-decode", stroke_width=2)
    elif state == "prompt":
        svg.rect(x1, y - 8, x2 - x1, 16, "f-prompt")
    elif state == "decode":
        svg.rect(x1, y - 4, x2 - x1, 8, "f-decode")
    elif state == "preempted":
        svg.rect(x1, y - 6, x2 - x1, 12, "s-lost", fill="url(#stripes)")
    elif state == "end":
        svg.line(x2, y - 9, x2, y + 9, "s-ink", stroke_width=2)


def draw_blocks(frames):
    """The cache as a field of blocks, and the block tables, at one step."""
    frame = step_of_every_kind(frames)
    size, tables, of_block = frame["about"]["block_size"], tables_of(frame), holders(frame)
    columns, height, top = 7, 50, 34
    width = (WIDTH - 2 * RIGHT) / columns
    field = top + height * -(-len(frame["blocks"]) // columns)
    svg = Svg(field + 22 + 22 * len(tables), f"The KV cache behind the plan of step {frame['step']['id']}",
              "; ".join(block_in_words(int(block), frame, of_block) for block in frame["blocks"]))
    svg.text(RIGHT + 5, 16,
             f"The KV cache at step {frame['step']['id']}: {len(frame['blocks'])} blocks of {size} tokens")
    for key, block in frame["blocks"].items():
        row, column = divmod(int(key), columns)
        x, y = RIGHT + column * width + 5, top + row * height
        draw_block(svg, x, y, width - 10, int(key), kind(block), of_block.get(int(key), []), size)
    svg.text(RIGHT + 5, field + 14, "The block tables: which blocks hold a sequence's tokens, in order")
    for i, (sequence, table) in enumerate(tables):
        y = field + 24 + 22 * i
        svg.chip(RIGHT + 5, y, sequence)
        tokens, blocks = frame["sequences"][str(sequence)]["computed"], "block" if len(table) == 1 else "blocks"
        svg.text(RIGHT + 30, y + 12, f"{tokens} tokens in {blocks} {', '.join(map(str, table))}")
    return svg.written()


def tables_of(frame):
    tables = [(int(sequence), list(of["table"].values())) for sequence, of in frame["sequences"].items()]
    return sorted((sequence, table) for sequence, table in tables if table)


def draw_block(svg, x, y, width, block, what, held, size):
    svg.text(x, y + 10, f"block {block}", "f-soft small")
    bar, tall = y + 15, 26
    svg.rect(x, bar, width, tall, "f-pale s-edge" if what != "free" else "none s-edge",
             **({"stroke_dasharray": "3 3"} if what == "free" else {}))
    if what == "warm":
        svg.rect(x, bar, width, tall, "none", style="fill:url(#dots)")
    if not held:
        inside = {"warm": "warm", "free": "free"}.get(what, "a step")
        svg.rect(x + width / 2 - 17, bar + 4, 34, 18, "f-pale" if what != "free" else "f-paper")
        return svg.text(x + width / 2, bar + 17, inside, "mid f-ink")
    for i, (sequence, tokens) in enumerate(held):
        share = width / len(held)
        svg.chip(x + i * share, bar, sequence, max(12.0, share * tokens / size), tall)
    tokens = max(tokens for _, tokens in held)
    svg.text(x + width, y + 10, "shared" if len(held) > 1 else f"{tokens} of {size}", "f-soft end small")


def block_in_words(block, frame, of_block):
    held = of_block.get(block, [])
    if not held:
        return f"block {block} is {kind(frame['blocks'][str(block)])}"
    return f"block {block} holds {max(tokens for _, tokens in held)} tokens of " + " and ".join(
        str(sequence) for sequence, _ in held)


USES = [("used", "in use by one sequence"), ("shared", "shared by several"), ("warm", "warm"), ("free", "free")]


def draw_use(frames):
    """How many blocks are what, over the steps."""
    total, width, scale, top = len(frames[0]["blocks"]), step_width(frames), 9, 40
    bottom = top + total * scale
    svg = Svg(bottom + 24, "The use of the KV cache's blocks",
              f"Of {total} blocks, over the steps: " + ", ".join(
                  f"at most {max(count(frame, use) for frame in frames)} {meaning}" for use, meaning in USES))
    svg.legend(14, [(16, lambda x, use=use: use_bar(svg, use, x, 8, 16, 12), meaning) for use, meaning in USES])
    svg.text(RIGHT, top - 10, "blocks", "f-soft")
    svg.rect(LEFT, top, WIDTH - LEFT - RIGHT, bottom - top, "none s-rule")
    for blocks in range(0, total + 1, 4):
        svg.text(LEFT - 6, bottom - blocks * scale + 4, str(blocks), "f-soft end")
    for column, frame in enumerate(frames):
        y = bottom
        for use in ("shared", "used", "warm"):
            height = count(frame, use) * scale
            y -= height
            if height:
                use_bar(svg, use, LEFT + column * width + 0.5, y, width - 1, height)
    svg.line(LEFT, bottom, WIDTH - RIGHT, bottom, "s-edge")
    svg.steps_axis(bottom, step_ids(frames), width)
    return svg.written()


def use_bar(svg, use, x, y, width, height):
    if use == "warm":
        svg.rect(x, y, width, height, "f-pale s-edge", stroke_width=0.5)
        svg.rect(x, y, width, height, "s-edge", fill="url(#dots)", stroke_width=0.5)
    elif use == "free":
        svg.rect(x, y, width, height, "none s-rule")
    else:
        svg.rect(x, y, width, height, f"f-{use}")


DRAWINGS = {"steps.svg": draw_steps, "lives.svg": draw_lives, "blocks.svg": draw_blocks, "use.svg": draw_use}


# --- The commands

def record(quire):
    prompts = [part for prompt in PROMPTS for part in ("--prompt", prompt)]
    done = subprocess.run([str(quire), *COMMAND, *prompts, "--record", str(RECORDING)], stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Failure(done.stderr.strip())


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quire", metavar="QUIRE", help="the program")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true")
    what.add_argument("--record", action="store_true")
    options = parser.parse_args(arguments)
    try:
        if options.record:
            record(options.quire)
        frames = read_frames(options.quire, RECORDING)
    except (Failure, OSError) as failure:
        print(f"draw_recording.py: {failure}", file=sys.stderr)
        return 2
    stale = 0
    for name, draw in DRAWINGS.items():
        path, drawn = PICTURES / name, draw(frames)
        if not options.check:
            path.write_text(drawn, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != drawn:
            print(f"{path}: is not what is drawn from {RECORDING}; draw_recording.py QUIRE draws it")
            stale += 1
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
