"""The context of the image has every folder that CMake asks for, and every source that comes from another."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class ContainerContextTest(unittest.TestCase):
    def test_every_folder_of_the_build_is_in_the_context(self):
        taken = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
        folders = re.findall(r"^add_subdirectory\((\w+)\)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)
        self.assertGreater(len(folders), 4)
        self.assertLessEqual(set(folders), taken)
        for folder in folders:
            for path in (ROOT / folder).rglob("CMakeLists.txt"):
                for source in re.findall(r"\$\{PROJECT_SOURCE_DIR\}/([\w/]+\.(?:cc|cu|cmake))", path.read_text()):
                    self.assertTrue(source in taken or source.split("/")[0] in taken, f"{path}: {source}")


if __name__ == "__main__":
    unittest.main()
