"""tools/plant_faults.py: which faults it chooses, that it leaves no trace, and what it says of faults in a small project."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from faults import choose, run  # noqa: E402

SOURCE = """\
#include <vector>
// A comment: a < b, i + 1, count = 0;
template <typename T>
int Count(const std::vector<T>& list, int limit) {
  static_assert(sizeof(T) > 1);
  const char* text = "a < b; i + 1";
  int sums[4] = {}, count = 0;
  list.reserve(limit + 1);
  for (int i = 0; i < limit; ++i) {
    if (list[i] == limit) ++count;
    sums[i % 4] = count - 1;
    Log(text,
        limit);
  }
  const int less = count < limit ? count : limit;
  return less;
}
"""
PROJECT = {
    "CMakeLists.txt": """\
cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES CXX)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
enable_testing()
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_library(client STATIC client/twice.cc)
add_executable(client_test client_test.cc)
target_link_libraries(client_test client)
add_executable(other_test other_test.cc)
target_link_libraries(other_test client)
add_executable(apart_test apart_test.cc)
add_test(NAME broken COMMAND sh -c "exit 1" ${CMAKE_BINARY_DIR})
add_test(NAME apart COMMAND apart_test)
add_test(NAME client COMMAND client_test)
add_test(NAME long COMMAND other_test)
set_tests_properties(long PROPERTIES LABELS check)
""",
    "client/twice.cc": """\
int Twice(int a) {
  if (a < 0) return 0;
  if (sizeof(a) < 4) return 1;
  return a + a;
}
int Half(int a) {
  if (a > 10) return 5;
  return a / 2;
}
""",
    "client_test.cc": "int Twice(int); int main() { return Twice(3) == 6 ? 0 : 1; }\n",
    "apart_test.cc": "int main() { return 1; }\n",
    "other_test.cc": "int Half(int); int main() { return Half(12) == 5 ? 0 : 1; }\n",
}


def fault(path: str, text: str, line: int, after: str, stratum: str = "client") -> choose.Fault:
    return choose.Fault(stratum, choose.COMPARISON, path, line, text.split("\n")[line - 1], after)


class ChooserTest(unittest.TestCase):
    def chosen(self, kind: str) -> list:
        return [(found.line, found.after.strip()) for found in choose.candidates("client", kind, "a.cc", SOURCE)]

    def test_comparisons_are_those_of_the_code(self):
        self.assertEqual(self.chosen(choose.COMPARISON), [
            (9, "for (int i = 0; i <= limit; ++i) {"),
            (10, "if (list[i] != limit) ++count;"),
        ])

    def test_off_by_one_takes_steps_bounds_starts_and_indices(self):
        self.assertEqual(sorted(self.chosen(choose.OFF_BY_ONE)), [
            (9, "for (int i = 0; i < 1 + limit; ++i) {"),
            (9, "for (int i = 1; i < limit; ++i) {"),
            (10, "if (list[i + 1] == limit) ++count;"),
            (11, "sums[i % 4] = count - 0;"),
        ])

    def test_dropped_lines_are_whole_statements(self):
        self.assertEqual([line for line, _ in self.chosen(choose.DROPPED_LINE)], [10, 11])

    def test_the_same_seed_chooses_the_same_and_another_seed_others(self):
        def first(seed: int) -> list:
            chooser = choose.Chooser(ROOT, seed)
            return [chooser.next(*turn).key() for turn in choose.deal(18)]

        self.assertEqual(first(1), first(1))
        self.assertLess(len(set(first(1)) & set(first(2))), 4)

    def test_thirty_faults_are_of_every_stratum_and_kind(self):
        dealt = choose.deal(30)
        for stratum in choose.STRATA:
            self.assertGreater(len(choose.files(ROOT, stratum)), 1, stratum)
            self.assertEqual({kind for other, kind in dealt if other == stratum}, set(choose.KINDS), stratum)

    def test_a_fault_changes_one_line_and_no_bracket(self):
        brackets = str.maketrans("", "", "()[]{};")
        chooser = choose.Chooser(ROOT, 1)
        for turn in choose.deal(180):
            found = chooser.next(*turn)
            text = (ROOT / found.path).read_text(encoding="utf-8")
            planted = found.planted(text)
            self.assertNotEqual(planted, text)
            if found.after:
                for bracket in "()[]{};":
                    self.assertEqual(found.after.count(bracket), found.before.count(bracket), found)
                self.assertNotEqual(found.after.translate(brackets), found.before.translate(brackets))
            if not found.stratum.startswith("simd/"):
                self.assertEqual(sum(a != b for a, b in zip(planted.split("\n"), text.split("\n"))), 1)

    def test_an_instruction_set_alone_has_its_fault(self):
        planted = fault("a.inl", "a\nb\nc", 2, "B", "simd/avx2").planted("a\nb\nc")
        self.assertEqual(planted.split("\n"), ["a", "#if defined(__AVX2__) && !defined(__AVX512VBMI2__)", "B", "#else",
                                               "b", "#endif", "c"])

    def test_a_source_that_has_changed_since_is_refused(self):
        with self.assertRaises(ValueError):
            fault("a.cc", "a\nb", 2, "B").planted("a\nother")


class SearchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name).resolve()
        cls.build = cls.root / "build"
        for name, text in PROJECT.items():
            (cls.root / name).parent.mkdir(exist_ok=True)
            (cls.root / name).write_text(text)
        subprocess.run(["cmake", "-S", cls.root, "-B", cls.build, "-G", "Ninja"], check=True, capture_output=True)
        subprocess.run(["cmake", "--build", cls.build], check=True, capture_output=True)

    def planted(self, line: int, after: str, unsound: dict | None = None) -> dict:
        path = "client/twice.cc"
        search = run.Search(run.Tree(self.root, self.build, 1), dict(unsound or {}), lambda text: None)
        outcome = search.plant(fault(path, PROJECT[path], line, after))
        if outcome.get("test"):
            search.check({outcome["test"]})
        self.assertEqual((self.root / path).read_text(), PROJECT[path])
        self.unsound = search.unsound
        return outcome

    def seen(self, line: int, after: str, unsound: dict | None = None) -> tuple:
        outcome = self.planted(line, after, unsound)
        return outcome["seen"], outcome["command"]

    def test_a_fault_is_seen_by_the_test_and_the_command_that_fail(self):
        self.assertEqual(self.seen(2, "  if (a > 0) return 0;"), ("client", run.TEST))
        self.assertEqual(self.seen(7, "  if (a > 20) return 5;", unsound={"broken": ""}), ("long", run.CHECK))

    def test_a_test_that_fails_without_the_fault_does_not_count(self):
        self.assertEqual(self.seen(8, "  return a / 3;"), ("broken", run.TEST))
        self.assertEqual(list(self.unsound), ["broken"])
        self.assertEqual(self.seen(8, "  return a / 3;", unsound={"broken": ""}), (None, None))

    def test_what_does_not_compile_or_changes_no_code_is_not_planted(self):
        self.assertEqual(self.planted(4, "  return a + ;"), {"skipped": run.NOT_BUILT})
        self.assertEqual(self.planted(3, "  if (sizeof(a) <= 3) return 1;"), {"skipped": run.SAME_CODE})

    def test_a_killed_run_is_cleaned_up_by_the_next(self):
        path = "client/twice.cc"
        (self.build / "planted.json").write_text(json.dumps({"path": path, "text": PROJECT[path]}))
        (self.root / path).write_text("int Twice(int a) { return 0; }\n")
        run.Tree(self.root, self.build, 1)
        self.assertEqual((self.root / path).read_text(), PROJECT[path])
        self.assertFalse((self.build / "planted.json").exists())


if __name__ == "__main__":
    unittest.main()
