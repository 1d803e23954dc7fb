"""tools/mutate.py: what it makes of a line."""

import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import mutate  # noqa: E402


class MutantsTest(unittest.TestCase):
    def test_one_place_differs(self):
        self.assertEqual(mutate.mutants_of("  if (a < 2 && !b) return;"),
                         ["  if (a <= 2 && !b) return;", "  if (a < 2 || !b) return;", "  if (a < 3 && !b) return;"])

    def test_statements_are_left_out_and_declarations_stay(self):
        self.assertEqual(mutate.mutants_of("  queue_.push(x);"), [""])
        self.assertEqual(mutate.mutants_of("  total += x;"), ["  total -= x;", ""])
        self.assertEqual(mutate.mutants_of("  const int x = f();"), [])
        self.assertEqual(mutate.mutants_of("  return f();"), [])

    def test_texts_comments_and_templates_stay(self):
        for line in ('  f("a < 2", x) || g();  // 1 + 1', "  std::vector<int> values;", "template <int N = 4>"):
            self.assertFalse([one for one in mutate.mutants_of(line) if "<=" in one or "1 - 1" in one], line)

    def test_what_a_right_program_can_do_without_stays(self):
        for line in ("  QUIRE_CHECK(a < 2);", "  values.reserve(2 + n);", '  log_info("{}", a + 1);'):
            self.assertEqual(mutate.mutants_of(line), [])
