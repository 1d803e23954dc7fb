"""tools/check_figures.py with a quire that prints what a test tells it: python3 -m unittest discover -s tests/tools"""

import contextlib
import io
import json
import stat
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import check_figures  # noqa: E402

# Prints the next object that answers.json has for its command, without --json; notes the command in calls.
QUIRE = """#!{python}
import json, os, sys
from pathlib import Path
folder = Path(__file__).parent
command = " ".join(sys.argv[1:-1])
assert sys.argv[-1] == "--json"
with open(folder / "calls", "a") as calls:
    print(command, file=calls)
answers = json.loads((folder / "answers.json").read_text())
if command not in answers:
    sys.exit("quire: no " + command)
count = (folder / "calls").read_text().splitlines().count(command)
print(json.dumps(answers[command][(count - 1) % len(answers[command])]))
"""

THROUGHPUT = "bench throughput --shape tiny"
LATENCY = "bench latency --shape tiny"
DOCTOR = {"cores": 2, "cpu_isas": ["reference", "avx2"], "gpus": [{"name": "NVIDIA H200"}]}

FIGURES = """{
  "machines": {
    "h200": {"device": "cuda", "name": "NVIDIA H200", "section": "A card", "tolerance": 0.02, "runs": 1},
    "pair": {"device": "cpu", "name": "A CPU, 2 cores, avx2", "section": "A pair", "tolerance": 0.1, "runs": 3}
  },
  "figures": [
    {"name": "many, tokens/s", "machine": "h200", "commit": "abc1234", "command": "bench throughput --shape tiny",
     "path": "output_tokens_per_s", "value": 28366, "unit": "tokens/s", "must": 27000},
    {"name": "first token, ms", "machine": "h200", "commit": "abc1234", "command": "bench latency --shape tiny",
     "path": "ttft_ms.p50", "value": 6.0, "unit": "ms", "tolerance": 0.05},
    {"name": "start, s", "machine": "h200", "commit": "abc1234", "command": "bench latency --shape tiny",
     "path": "startup_s", "value": 0.60, "unit": "s", "tolerance": 0.3},
    {"name": "one stream, tokens/s", "machine": "pair", "commit": "def5678", "command": "bench latency --shape tiny",
     "path": "decode_tokens_per_s", "value": 27.0, "unit": "tokens/s"}
  ]
}
"""

PAGE = """# Performance

## A card

At commit abc1234.

| work | Quire | must | command |
|---|---|---|---|
| many, tokens/s | 28,366 (one more: 28,400) | 27,000 | `bench throughput --shape tiny` |
| first token, ms | 6.0 | | `bench latency --shape tiny` |
| start, s | 0.60 | | the same |

## A pair

| work | Quire | commit | command |
|---|---|---|---|
| one stream, tokens/s | 27.0 (23 to 28) | def5678 | `bench latency --shape tiny` |

| kernel | figure | command |
|---|---|---|
| a kernel | 93 % | `kernel_bench` |
"""


class CheckFigures(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.quire = self.folder / "quire"
        self.quire.write_text(QUIRE.format(python=sys.executable))
        self.quire.chmod(self.quire.stat().st_mode | stat.S_IXUSR)
        self.write(FIGURES, PAGE)
        self.gpu = {"doctor": [DOCTOR],
                    f"{THROUGHPUT} --device cuda": [{"output_tokens_per_s": 28000.0}],
                    f"{LATENCY} --device cuda": [{"ttft_ms": {"p50": 6.1}, "startup_s": {"a": 0.3, "b": 0.35}}]}

    def write(self, figures, page=PAGE):
        (self.folder / "figures.json").write_text(figures)
        (self.folder / "page.md").write_text(page)

    def main(self, *arguments, answers=None):
        """The exit code, and what was printed, errors last."""
        (self.folder / "answers.json").write_text(json.dumps(answers or self.gpu))
        (self.folder / "calls").write_text("")
        argv = ["check_figures.py", "--figures", str(self.folder / "figures.json"),
                "--page", str(self.folder / "page.md"), *arguments]
        out, err = io.StringIO(), io.StringIO()
        with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), \
                mock.patch.object(check_figures, "cpu_model", return_value="A CPU"):
            code = check_figures.main()
        return code, out.getvalue() + err.getvalue()

    def on_gpu(self, **answers):
        return self.main("--device", "cuda", str(self.quire), answers={**self.gpu, **answers})

    def row(self, printed, name):
        rows = [line for line in printed.splitlines() if line.startswith(name)]
        self.assertEqual(len(rows), 1, printed)
        return rows[0]

    def test_what_is_within_the_tolerance_holds(self):
        code, printed = self.on_gpu()
        self.assertEqual(code, 0, printed)
        row = self.row(printed, "many")
        for part in ("28,366", "28,000", "-1.3 %", "2 %", "27,000", "holds"):
            self.assertIn(part, row)
        self.assertIn("0 of 3 figures fell", printed)

    def test_tokens_that_are_fewer_fell(self):
        code, printed = self.on_gpu(**{f"{THROUGHPUT} --device cuda": [{"output_tokens_per_s": 27700.0}]})
        self.assertEqual(code, 1)
        self.assertIn("FELL", self.row(printed, "many"))

    def test_more_tokens_are_better(self):
        code, printed = self.on_gpu(**{f"{THROUGHPUT} --device cuda": [{"output_tokens_per_s": 30000.0}]})
        self.assertEqual(code, 0)
        self.assertIn("better", self.row(printed, "many"))

    def test_a_time_fell_where_it_is_longer_by_more_than_its_own_tolerance(self):
        latency = f"{LATENCY} --device cuda"
        code, printed = self.on_gpu(**{latency: [{"ttft_ms": {"p50": 6.4}, "startup_s": {"a": 0.3, "b": 0.1}}]})
        self.assertEqual(code, 1)
        self.assertIn("FELL", self.row(printed, "first token"))
        self.assertIn("better", self.row(printed, "start"))

    def test_phases_of_the_start_are_added_up(self):
        self.assertIn("0.65", self.row(self.on_gpu()[1], "start"))

    def test_a_command_of_two_figures_runs_once_on_the_device_asked_for(self):
        self.on_gpu()
        self.assertEqual((self.folder / "calls").read_text().splitlines(),
                         ["doctor", f"{THROUGHPUT} --device cuda", f"{LATENCY} --device cuda"])

    def test_on_another_card_figures_are_printed_and_not_judged(self):
        code, printed = self.on_gpu(doctor=[{**DOCTOR, "gpus": [{"name": "NVIDIA H100 80GB HBM3"}]}],
                                    **{f"{THROUGHPUT} --device cuda": [{"output_tokens_per_s": 9000.0}]})
        self.assertEqual(code, 0)
        row = self.row(printed, "many")
        self.assertIn("9,000", row)
        self.assertIn("not judged", row)
        self.assertIn("NVIDIA H100 80GB HBM3, beside the figures of another machine: NVIDIA H200", printed)

    def test_the_median_of_the_runs_counts(self):
        runs = [{"decode_tokens_per_s": speed} for speed in (10.0, 26.0, 30.0)]
        answers = {"doctor": [DOCTOR], f"{LATENCY} --device cpu": runs}
        code, printed = self.main("--device", "cpu", str(self.quire), answers=answers)
        self.assertEqual(code, 0, printed)
        self.assertIn("26.0", self.row(printed, "one stream"))
        code, printed = self.main("--device", "cpu", "--runs", "1", str(self.quire), answers=answers)
        self.assertEqual(code, 1)
        self.assertIn("10.0", self.row(printed, "one stream"))

    def test_a_cpu_with_another_number_of_cores_or_instruction_set_is_another_machine(self):
        for doctor in ({**DOCTOR, "cores": 4}, {**DOCTOR, "cpu_isas": ["reference", "avx2", "avx512"]}):
            answers = {"doctor": [doctor], f"{LATENCY} --device cpu": [{"decode_tokens_per_s": 1.0}]}
            code, printed = self.main("--device", "cpu", str(self.quire), answers=answers)
            self.assertEqual(code, 0)
            self.assertIn("not judged", self.row(printed, "one stream"))

    def test_a_command_that_fails_counts_as_a_fall_where_figures_are_judged(self):
        del self.gpu[f"{THROUGHPUT} --device cuda"]
        code, printed = self.on_gpu()
        self.assertEqual(code, 1)
        self.assertIn("not measured", self.row(printed, "many"))
        self.assertIn(f"quire: no {THROUGHPUT} --device cuda", printed)
        self.assertIn("holds", self.row(printed, "first token"))
        code, _ = self.on_gpu(doctor=[{**DOCTOR, "gpus": [{"name": "another"}]}])
        self.assertEqual(code, 0)

    def test_null_is_not_measured(self):
        code, printed = self.on_gpu(**{f"{THROUGHPUT} --device cuda": [{"output_tokens_per_s": None}]})
        self.assertEqual(code, 1)
        self.assertIn("not measured", self.row(printed, "many"))

    def test_without_a_gpu_or_a_program_nothing_is_compared(self):
        code, printed = self.on_gpu(doctor=[{**DOCTOR, "gpus": [], "gpu_problem": "no driver"}])
        self.assertEqual((code, printed), (2, "check_figures.py: no GPU: no driver\n"))
        code, printed = self.main("--device", "cuda", str(self.folder / "missing"))
        self.assertEqual(code, 2)
        self.assertIn("No such file", printed)

    def check_docs(self, figures=FIGURES, page=PAGE):
        self.write(figures, page)
        code, printed = self.main("--check-docs")
        self.assertEqual(code, 0 if "0 problems" in printed else 1)
        return printed

    def test_a_page_that_agrees_with_the_file_passes(self):
        self.assertEqual(self.check_docs(), "4 figures, 0 problems\n")

    def test_the_page_of_the_project_agrees_with_its_file(self):
        with mock.patch.object(sys, "argv", ["check_figures.py", "--check-docs"]), \
                contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(check_figures.main(), 0, out.getvalue())

    def test_what_differs_between_page_and_file_is_said(self):
        for old, new, problem in (
                ("| 28,366 (", "| 28,367 (", "many, tokens/s: the file has 28,366, the page 28,367 (one more: 28,400)"),
                ("| 6.0 |", "| 6.05 |", "first token, ms: the file has 6.0, the page 6.05"),
                ("| 0.60 |", "| 0.6 |", "start, s: the file has 0.60, the page 0.6"),
                ("| 27,000 |", "| 26,000 |", "many, tokens/s: must is 27,000 in the file, 26,000 on the page"),
                ("`bench throughput --shape tiny`", "`bench throughput`",
                 "many, tokens/s: the file has the command bench throughput --shape tiny, the page `bench throughput`"),
                ("At commit abc1234", "At a commit", "start, s: the commit abc1234 does not stand beside it"),
                ("| def5678 |", "| abc1234 |", "one stream, tokens/s: the commit def5678 does not stand beside it"),
                ("| start, s |", "| begin, s |", "start, s: has 0 rows with a command under 'A card'"),
                ("| start, s |", "| begin, s |", "begin, s: is a row of the page and not in the file"),
                ("At commit", "As 28,366 says, at commit", "28,366 stands 2 times on the page")):
            with self.subTest(problem):
                self.assertIn(old, PAGE)
                self.assertIn(f": {problem}\n", self.check_docs(page=PAGE.replace(old, new)))

    def test_a_figure_stands_once_in_the_file(self):
        twice = FIGURES.replace('"name": "start, s"', '"name": "first token, ms"')
        self.assertIn("first token, ms: stands twice in the file", self.check_docs(twice))

    def test_a_file_with_unknown_keys_machines_or_units_is_refused(self):
        for old, new in (('"unit": "s"', '"unit": "h"'), ('"machine": "pair"', '"machine": "pear"'),
                         ('"must"', '"most"'), ('"commit": "def5678", ', "")):
            with self.subTest(new):
                self.assertIn(old, FIGURES)
                self.write(FIGURES.replace(old, new))
                self.assertEqual(self.main("--check-docs")[0], 2)


if __name__ == "__main__":
    unittest.main()
