"""tools/run_tests.py on programs with faults: python3 -m unittest discover -s tests/tools"""

import sys
import tempfile
import unittest
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import run_tests  # noqa: E402


def program(output, code=0):
    """A command that is taken for a program of two tests."""
    script = f"import sys; print({output!r}); sys.exit({code})"
    return [sys.executable, "-c", script, "--gtest_filter=Suite.One:Suite.Two"]


def lines(one, two):
    return "\n".join(f"[ RUN      ] Suite.{name}\n[{state}] Suite.{name} (0 ms)"
                     for name, state in (("One", one), ("Two", two)) if state)


OK, SKIPPED, FAILED = "       OK ", "  SKIPPED ", "  FAILED  "


class RunTestsTest(unittest.TestCase):
    def test_what_passes_or_is_skipped_is_counted(self):
        fault, _, ended = run_tests.run(program(lines(OK, SKIPPED)))
        self.assertEqual((fault, ended), (None, [("OK", "Suite.One", "0"), ("SKIPPED", "Suite.Two", "0")]))

    def test_the_report_says_of_each_how_it_ended(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tests.xml"
            run_tests.write_report(path, [("OK", "A/Suite.One/1.5", "1500"), ("SKIPPED", "Suite.Two", "0"),
                                          ("FAILED", "Suite.Three", "0"), ("OK", "fuzz_x", "0")])
            cases = [(case.get("classname"), case.get("name"), case.get("time"), [child.tag for child in case])
                     for case in ElementTree.parse(path).iter("testcase")]
        self.assertEqual(cases, [("A/Suite", "One/1.5", "1.5", []), ("Suite", "Two", "0.0", ["skipped"]),
                                 ("Suite", "Three", "0.0", ["failure"]), ("", "fuzz_x", "0.0", [])])

    def test_what_fails_is_named(self):
        fault, output, _ = run_tests.run(program(lines(OK, FAILED), code=1))
        self.assertEqual(fault, "code 1: Suite.Two")
        self.assertIn("[  FAILED  ] Suite.Two", output)

    def test_the_test_that_ends_the_process_is_named(self):
        fault, _, _ = run_tests.run(program(lines(OK, None) + "\n[ RUN      ] Suite.Two", code=-6))
        self.assertEqual(fault, "code 250: Suite.Two")

    def test_a_report_behind_the_tests_fails(self):
        self.assertEqual(run_tests.run(program(lines(OK, OK), code=23))[0], "code 23: at its end")

    def test_a_test_that_did_not_run_fails(self):
        self.assertEqual(run_tests.run(program(lines(OK, None)))[0], "1 of its tests did not run")

    def test_tests_of_a_program_share_processes(self):
        commands = [["a_tests", f"--gtest_filter=Suite.{i}"] for i in range(5)]
        commands += [["mpirun", "a_tests", "--gtest_filter=Suite.*"], ["b_tests", "--gtest_filter=Suite.0"]]
        self.assertEqual(run_tests.batches_of(commands, at_once=3), [
            ["a_tests", "--gtest_filter=Suite.0:Suite.1:Suite.2"], ["a_tests", "--gtest_filter=Suite.3:Suite.4"],
            ["b_tests", "--gtest_filter=Suite.0"], ["mpirun", "a_tests", "--gtest_filter=Suite.*"]])

    def test_of_each_kind_of_test_one_in_so_many_is_chosen_by_the_seed(self):
        of_one_kind = [["a_tests", f"--gtest_filter=A/Suite.Test/{i}", "--gtest_color=no"] for i in range(10)]
        others = [["a_tests", "--gtest_filter=Suite.Test"], ["b_tests", "--gtest_filter=B/Suite.Test/0"],
                  ["mpirun", "a_tests"], ["mpirun", "b_tests"]]
        samples = [run_tests.sample_of(of_one_kind + others, 3, str(seed)) for seed in range(50)]
        for sample in samples:
            self.assertTrue(all(command in sample for command in others))
            self.assertIn(len(sample) - len(others), (3, 4))
        self.assertEqual(sorted(set(map(tuple, sum(samples, [])))), sorted(map(tuple, of_one_kind + others)))
        self.assertEqual(samples[0], run_tests.sample_of(of_one_kind + others, 3, "0"))
        self.assertEqual(run_tests.sample_of(of_one_kind + others, 1, ""), of_one_kind + others)

    def test_times_are_added_up_over_parameters(self):
        times = [(1.0, "A/S.One/x"), (3.0, "S.Two"), (2.5, "A/S.One/y")]
        self.assertEqual(run_tests.sums(times), [(3.5, "A/S.One"), (3.0, "S.Two")])


if __name__ == "__main__":
    unittest.main()
