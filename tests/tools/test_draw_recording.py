"""tools/draw_recording.py on frames made by hand: python3 -m unittest discover -s tests/tools"""

import contextlib
import io
import re
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import draw_recording  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
ABOUT = {"budget": 8, "block_size": 4, "steps": 5}


def sequence(state, computed=0, table=()):
    return {"state": state, "computed": computed, "table": {str(row): block for row, block in enumerate(table)}}


def frame(step, spans, blocks, decisions=(), **sequences):
    return {"about": ABOUT, "difference": "", "blocks": {str(i): block for i, block in enumerate(blocks)},
            "step": {"id": step, "spans": spans, "decisions": [*decisions]},
            "sequences": {name.strip("_"): of for name, of in sequences.items()}}


# Two sequences that begin alike: the second waits, shares block 0, is preempted, and never comes back.
FRAMES = [
    frame(1, [[1, 8, 1]], [[1, 1, 0, 1], [1, 1, 0, 1], 0, 0, 0], [[2, 3, 1, 0]],
          _1=sequence("prompt", 8, [0, 1]), _2=sequence("waiting")),
    frame(2, [[1, 1, 0], [2, 3, 1]], [[2, 1, 0, 1], [1, 1, 0, 1], [1, 1, 0, 0], [1, 2, 0, 0], 0],
          _1=sequence("decoding", 9, [0, 1, 2]), _2=sequence("prompt", 7, [0, 3])),
    frame(3, [[1, 1, 0], [2, 1, 0]], [[2, 1, 0, 1], [1, 1, 0, 1], [1, 1, 0, 0], 1, 0],
          _1=sequence("decoding", 10, [0, 1, 2]), _2=sequence("decoding", 4, [0])),
    frame(4, [[1, 1, 0]], [[1, 1, 0, 1], [1, 1, 0, 1], [1, 1, 0, 0], 1, 0],
          _1=sequence("decoding", 11, [0, 1, 2]), _2=sequence("preempted")),
]


def elements(drawn, name, look=""):
    root = ElementTree.fromstring(drawn)
    return [each for each in root.iter(SVG + name) if look in each.get("class", "").split() or not look]


def texts(drawn):
    return [each.text for each in elements(drawn, "text")]


def luminance(colour):
    parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


class DrawRecordingTest(unittest.TestCase):
    def test_a_step_has_a_field_for_each_chunk_and_a_dot_for_each_decode(self):
        drawn = draw_recording.draw_steps(FRAMES)
        fill = draw_recording.SEQUENCES[0][0]
        chunks = [each for each in elements(drawn, "rect") if each.get("fill") == fill]
        self.assertEqual([each.get("height") for each in chunks], [str(7 * 8 - 1)])
        self.assertEqual(len(elements(drawn, "circle", "s-edge")), 1 + 4)  # one of the legend
        self.assertIn("the budget: 8 tokens a step", texts(drawn))

    def test_a_sequence_has_a_state_at_each_step(self):
        self.assertEqual(draw_recording.states(FRAMES, 1), ["prompt", "decode", "decode", "decode"])
        self.assertEqual(draw_recording.states(FRAMES, 2), ["waiting", "prompt", "decode", "preempted"])
        self.assertEqual(draw_recording.states(FRAMES, 3), [""] * 4)
        without_a_token = frame(5, [], [], _1=sequence("decoding"))
        self.assertEqual(draw_recording.states([without_a_token], 1), ["paused"])

    def test_lives_are_said_too_and_why_one_waits(self):
        drawn = draw_recording.draw_lives(FRAMES)
        self.assertIn("sequence 2 waiting from step 1, prompt from step 2, decode from step 3, preempted from step 4",
                      elements(drawn, "desc")[0].text)
        self.assertIn("the step is full", texts(drawn))
        lacking = frame(1, [], [], [[2, 3, 3, 5]], _2=sequence("waiting"))
        self.assertEqual(draw_recording.reason([lacking], 2), "lacks 5 blocks")
        self.assertEqual(draw_recording.reason([lacking], 1), "")

    def test_blocks_are_drawn_where_there_is_one_of_every_kind(self):
        drawn = draw_recording.draw_blocks(FRAMES)
        self.assertIn("The KV cache at step 3: 5 blocks of 4 tokens", texts(drawn))
        for text in ("shared", "warm", "free", "2 of 4", "10 tokens in blocks 0, 1, 2"):
            self.assertIn(text, texts(drawn))
        self.assertIn("block 0 holds 4 tokens of 1 and 2", elements(drawn, "desc")[0].text)

    def test_use_adds_up_to_what_is_not_free(self):
        drawn = draw_recording.draw_use(FRAMES)
        heights = {look: [float(each.get("height")) / 9 for each in elements(drawn, "rect", look)][1:]
                   for look in ("f-used", "f-shared", "f-pale")}  # without the legend's
        self.assertEqual(heights, {"f-used": [2, 3, 2, 3], "f-shared": [1, 1], "f-pale": [1, 1]})

    def test_every_picture_has_a_title_a_description_and_both_modes(self):
        for draw in draw_recording.DRAWINGS.values():
            drawn = draw(FRAMES)
            self.assertEqual(drawn, draw(FRAMES))
            self.assertTrue(elements(drawn, "title")[0].text)
            self.assertTrue(elements(drawn, "desc")[0].text)
            self.assertIn("prefers-color-scheme:dark", drawn)
            self.assertEqual(ElementTree.fromstring(drawn).get("width"), "720")

    def test_texts_have_contrast_in_light_and_in_dark(self):
        colours = draw_recording.COLOURS
        for mode in (0, 1):
            for text in ("ink", "soft"):
                for behind in ("paper", "pale"):
                    self.assertGreater(contrast(colours[text][mode], colours[behind][mode]), 4.5, (text, behind, mode))
            for name in ("edge", "prompt", "decode", "lost", "used", "shared"):
                self.assertGreater(contrast(colours[name][mode], colours["paper"][mode]), 3, (name, mode))
        for fill, ink in draw_recording.SEQUENCES:
            self.assertGreater(contrast(fill, ink), 4.5, fill)


class DrawRecordingCommandTest(unittest.TestCase):
    def main(self, *arguments, frames=FRAMES):
        out = io.StringIO()
        with mock.patch.object(draw_recording, "read_frames", return_value=frames), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            return draw_recording.main([*arguments, "quire"]), out.getvalue()

    def test_a_picture_that_is_not_of_the_recording_is_named(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(draw_recording, "PICTURES", Path(folder)):
            self.assertEqual(self.main("--check")[0], 1)
            self.assertEqual(self.main(), (0, ""))
            self.assertEqual(self.main("--check"), (0, ""))
            code, printed = self.main("--check", frames=FRAMES[:3])
            self.assertEqual(code, 1)
            self.assertRegex(printed, r"lives\.svg: is not what is drawn")

    def test_a_recording_that_is_planned_otherwise_is_not_drawn(self):
        other = [FRAMES[0], {**FRAMES[1], "difference": "behind step 2 the replay differs: another plan"}]
        answers = [{**FRAMES[0], "about": {**ABOUT, "steps": 3}}, other[1]]
        with mock.patch.object(draw_recording, "urlopen"), \
                mock.patch.object(draw_recording.json, "load", side_effect=answers), \
                self.assertRaisesRegex(draw_recording.Failure, "behind step 2 .*--record makes"):
            draw_recording.fetch_frames("http://localhost/window")

    def test_a_program_that_does_not_run_is_an_error_of_one_line(self):
        out = io.StringIO()
        with contextlib.redirect_stderr(out):
            self.assertEqual(draw_recording.main(["--check", "/no/such/quire"]), 2)
        self.assertTrue(re.fullmatch(r"draw_recording\.py: .*\n", out.getvalue()), out.getvalue())

    def test_the_page_shows_every_picture(self):
        page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
        for name in draw_recording.DRAWINGS:
            self.assertTrue(f"](pictures/{name})" in page, name)
            self.assertTrue((ROOT / "docs/pictures" / name).exists())


if __name__ == "__main__":
    unittest.main()
