"""Comments begin with a subject, and name things by the field's words: old openings and phrases do not come back."""

import re
import unittest

import words

_OPENING = re.compile(r"(?:^|(?<=[.:;] ))(?:What|Of)\b(?! course)")
_PHRASE = re.compile(r"\bso many\b|\bof late\b|\bhardly\b")
_LEADER = re.compile(r"^\s*(?://+|#)\s?", re.MULTILINE)

# The most that a folder may have. A folder that is not named has none; where one gets better, lower its number.
MOST = {"client": 1, "model": 1, "tests": 75}
_SUFFIXES = (".cc", ".h", ".cu", ".cuh", ".inl", ".py", ".md", ".proto", ".cmake", ".sh")


def found(path: str) -> int:
    """How often the comments of a source, or a document, open or speak so."""
    blocks = re.split(r"\n\s*\n", _LEADER.sub("", words.prose(path)))
    return sum(len(_OPENING.findall(line)) for block in blocks for line in [" ".join(block.split())]) + sum(
        len(_PHRASE.findall(block)) for block in blocks)


class LanguageTest(unittest.TestCase):
    def test_old_openings_do_not_grow_back(self):
        counts, where = {}, {}
        for path in sorted(path for path in words.files() if path.endswith(_SUFFIXES)):
            if number := found(path):
                folder = path.split("/")[0] if "/" in path else "."
                counts[folder] = counts.get(folder, 0) + number
                where.setdefault(folder, []).append(f"{path}: {number}")
        for folder, number in counts.items():
            with self.subTest(folder):
                self.assertLessEqual(number, MOST.get(folder, 0), where[folder])

    def test_they_are_found(self):
        self.assertEqual(len(_OPENING.findall("What it takes. Of a row: the edges; of course. Of course not.")), 2)
        self.assertEqual(len(_PHRASE.findall("hardly any, so many rows, of late")), 3)


if __name__ == "__main__":
    unittest.main()
