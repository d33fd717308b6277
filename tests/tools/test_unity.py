"""Batches of sources (cmake/unity.cmake) in a project of small ones: what an edit compiles, and what the linter sees."""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import lint  # pylint: disable=wrong-import-position

PROJECT = f"""cmake_minimum_required(VERSION 3.25)
project(toy CXX)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
include({ROOT}/cmake/unity.cmake)
file(STRINGS sources.txt sources)
add_library(toy STATIC ${{sources}})
edgewise_unity(toy)
"""


class UnityTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        self.names = [f"s{i}.cc" for i in range(8)]
        (self.root / "CMakeLists.txt").write_text(PROJECT)
        for name in self.names:
            self.write(name, 0)
        self.assertEqual(self.build(), {"unity_0_cxx.cxx", "unity_1_cxx.cxx"})

    def write(self, name, value):
        (self.root / name).write_text(f"int {pathlib.Path(name).stem}() {{ return {value}; }}\n")

    def build(self):
        """Configures and builds as ./dev does. The sources that were compiled."""
        (self.root / "sources.txt").write_text("\n".join(self.names) + "\n")
        for command in (["cmake", "-G", "Ninja", "-DEDGEWISE_UNITY=ON", "-S", ".", "-B", "build"],
                        ["cmake", "--build", "build"]):
            done = subprocess.run(command, cwd=self.root, text=True, capture_output=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return set(re.findall(r"Building CXX object \S*/(\S+)\.o", done.stdout))

    def test_an_edited_source_leaves_its_batch_for_good(self):
        self.write("s2.cc", 1)
        self.assertEqual(self.build(), {"s2.cc", "unity_0_cxx.cxx"}, "the rest of the batch without it")
        self.write("s2.cc", 2)
        self.assertEqual(self.build(), {"s2.cc"})
        self.assertEqual(self.build(), set())

    def test_new_and_old_sources_move_no_other(self):
        self.names.insert(0, "added.cc")
        self.write("added.cc", 0)
        self.assertEqual(self.build(), {"added.cc"})
        self.names.remove("s1.cc")
        self.assertEqual(self.build(), {"unity_0_cxx.cxx"})

    def test_the_linter_sees_every_source(self):
        self.write("s2.cc", 1)
        self.build()
        with unittest.mock.patch.object(lint, "ROOT", self.root):
            known = lint.commands(self.root / "build")
        self.assertLessEqual(set(self.names), set(known))
        for name in self.names:
            self.assertEqual(known[name][-1], str(self.root / name))


if __name__ == "__main__":
    unittest.main()
