"""No folder grows unless a commit says so: lines.json holds the lines of code of each (./dev lines)."""

import json
import unittest

import lines


class LinesTest(unittest.TestCase):
    def test_folders_have_the_lines_that_the_file_says(self):
        allowed, found = json.loads(lines.FILE.read_text()), lines.count()
        for group in ("product", "tests"):
            for folder in sorted({*allowed[group], *found[group]}):
                number, most = found[group].get(folder, 0), allowed[group].get(folder, 0)
                with self.subTest(folder):
                    self.assertLessEqual(
                        number, most, "The folder has grown. Make it smaller, or run `./dev lines --write` and give the "
                        "reason in the body of the commit.")
                    self.assertGreaterEqual(number, most, "The folder is smaller now: run `./dev lines --write`.")

    def test_comments_and_blank_lines_do_not_count(self):
        text = '// a\n\nint a;  // b\n/* c\n   d */\nconst char* e = "// f";\n\t\nconst char* g = R"(\n// h\n)";\n'
        self.assertEqual(lines.lines_of(text), 5)


if __name__ == "__main__":
    unittest.main()
