"""tools/check_reliability.py on pages with faults: python3 -m unittest discover -s tests/tools"""

import sys
import unittest
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import check_reliability  # noqa: E402


class CheckReliabilityTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.page = check_reliability.PAGE.read_text()
        cls.tests = check_reliability.existing_tests(ROOT)

    def check(self, page):
        return check_reliability.check(page, self.tests)

    def row(self, name):
        return next(line for line in self.page.splitlines() if line.startswith(f"| {name} |"))

    def test_the_page_is_right(self):
        self.assertEqual(self.check(self.page), [])

    def test_a_test_that_is_gone_is_named(self):
        page = self.page.replace("`fuzz_safetensors`", "`fuzz_nothing`")
        self.assertEqual(self.check(page), ["F1: there is no test fuzz_nothing"])
        page = self.page.replace(self.row("I8"), "| I8 | x | `BlockPoolTest.DoesNotExist` |")
        self.assertEqual(self.check(page), ["I8: there is no test BlockPoolTest.DoesNotExist"])

    def test_a_row_that_is_gone_is_named(self):
        self.assertEqual(self.check(self.page.replace(self.row("T48"), "")), ["T48: there is no row"])

    def test_a_row_that_stands_twice_is_named(self):
        self.assertEqual(len(self.check(self.page + self.row("fault 3") + "\n")), 2)

    def test_a_test_that_has_not_run_is_named(self):
        cases = [("A/Suite", "One/1.5", ""), ("Suite", "Two", "<skipped/>"), ("Suite", "Three", "<failure/>"),
                 ("", "fuzz_x", ""), ("tests.clients.test_a", "test_b[c]", ""), ("Suite", "One", "<skipped/>")]
        text = "".join(f'<testcase classname="{whose}" name="{name}">{state}</testcase>' for whose, name, state in cases)
        report = ElementTree.fromstring(f"<testsuites><testsuite>{text}</testsuite></testsuites>")
        page = "| T1 | x | `Suite.One`, `Suite.Two`, `Suite.Three`, `fuzz_x`, `test_a.py::test_b`, `soak.py` |"
        self.assertEqual(check_reliability.check_ran(page, [report]), (["T1: Suite.Three did not run"], ["Suite.Two"]))

    def test_a_row_without_a_test_says_why(self):
        page = self.page.replace(self.row("I8"), "| I8 | x | not yet |")
        self.assertEqual(self.check(page), ["I8: it names no test, and does not say why"])
        self.assertEqual(self.check(self.page.replace(self.row("I8"), "| I8 | x | open: y |")), [])


if __name__ == "__main__":
    unittest.main()
