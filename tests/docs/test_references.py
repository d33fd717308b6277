"""Documents and comments name no file, no heading, no test and no promise that is not there."""

import functools
import os
import re
import unittest

import words

# Names of files that are not in the repository.
ELSEWHERE = {
    "train.py", "prepare.py", "config/train_shakespeare_char.py", "data/shakespeare_char/prepare.py",  # of nanoGPT
    "lra_config.py",  # of SBM-Transformer
    "tinyshakespeare.txt",  # a download
    "tokenizer.json", "tokenizer_config.json", "vocab.txt", "config_sentence_transformers.json",  # of a Hugging Face folder
    "consolidated.*", "params.json", "openvino_model.*",  # of models in other formats
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "F.json", "M.json", "text.json", "budget.png", "budget.json", "answer.json", "graph.json",
    "attention.svg", "adapter_config.json",  # of a user
    "attention_gpu.json", "models_gpu.json", "figures_layers.json", "figures_models.json", "summary.txt",
    "gpu-bundle/run.sh",  # made by ./dev
    "examples/models/NAME/1",  # a pattern
}
PROMISES, BAD_INPUTS = "docs/promises.md", "tests/server/bad_inputs.md"

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)
_CPP_TEST = re.compile(r"^ *(?:TYPED_)?TEST(?:_[FP])?\((\w+), *(\w+)\)", re.MULTILINE)
_CPP_NAME = re.compile(r"`([A-Z]\w+)\.([A-Z]\w+)`")
_PYTHON_NAME = re.compile(r"`(test_\w+)\.(test_\w+)`")
_CASE_NAME = re.compile(r"`([A-Z]\w+)/(\w+)`")
_PROMISE = re.compile(r"\b[Pp]romises? ((?:\d+(?:, | and )?)+)")


def anchors(path: str) -> set:
    """The anchors that GitHub gives to the headings of a document."""
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(words.read(path))}


@functools.cache
def cpp_tests() -> dict:
    """The files of each suite, and the names of its tests: {suite: ({path}, {name})}."""
    suites = {}
    for path in words.files():
        if path.startswith("tests/") and path.endswith((".cc", ".h")):
            for suite, name in _CPP_TEST.findall(words.read(path)):
                paths, names = suites.setdefault(suite, (set(), set()))
                paths.add(path)
                names.add(name)
    return suites


def missing_tests(text: str) -> list:
    """Names of tests and cases in a document that no source of tests defines."""
    missing = []
    for suite, name in _CPP_NAME.findall(text):
        if name not in cpp_tests().get(suite, ((), ()))[1]:
            missing.append(f"{suite}.{name}")
    for suite, case in _CASE_NAME.findall(text):
        if not any(f'{{"{case}"' in words.read(path) for path in cpp_tests().get(suite, ((), ()))[0]):
            missing.append(f"{suite}/{case}")
    for module, name in _PYTHON_NAME.findall(text):
        paths = [path for path in words.files() if path.startswith("tests/") and path.endswith(f"/{module}.py")]
        if not any(re.search(rf"^ +def {name}\(", words.read(path), re.MULTILINE) for path in paths):
            missing.append(f"{module}.{name}")
    return missing


class FilesTest(unittest.TestCase):
    def test_documents_and_comments_name_files_that_are_there(self):
        for path in sorted(words.files()):
            with self.subTest(path):
                self.assertEqual(words.missing(words.prose(path), path) - ELSEWHERE, set(), "not in the repository")

    def test_links_lead_to_files_and_headings(self):
        for path in sorted(path for path in words.files() if path.endswith(".md")):
            for link in _LINK.findall(words.read(path)):
                if re.match(r"\w+:", link):
                    continue
                with self.subTest(path, link=link):
                    file, _, anchor = link.partition("#")
                    target = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
                    self.assertTrue(os.path.exists(os.path.join(words.ROOT, target)), "no such file")
                    if anchor:
                        self.assertIn(anchor, anchors(target))

    def test_no_exception_is_left_over(self):
        named = set().union(*(words.names_of_files(words.prose(path)) for path in words.files()))
        self.assertEqual(ELSEWHERE - named, set(), "nothing names these any more")


class TestsTest(unittest.TestCase):
    def test_tests_that_documents_name_are_there(self):
        for path in (PROMISES, BAD_INPUTS):
            with self.subTest(path):
                self.assertEqual(missing_tests(words.read(path)), [])

    def test_every_promise_names_a_test(self):
        kept = words.read(PROMISES).split("## Not yet kept")[0]
        for promise in re.split(r"^### ", kept, flags=re.MULTILINE)[1:]:
            with self.subTest(promise.splitlines()[0]):
                self.assertRegex(promise, rf"{_CPP_NAME.pattern}|{_PYTHON_NAME.pattern}")

    def test_promises_that_comments_name_are_there(self):
        numbers = set(re.findall(r"^### (\d+)\. ", words.read(PROMISES), re.MULTILINE))
        for path in sorted(words.files()):
            for named in _PROMISE.findall(words.prose(path)):
                with self.subTest(path, named=named):
                    self.assertLessEqual(set(re.findall(r"\d+", named)), numbers)

    def test_identifiers_of_tests_are_rows_of_the_catalogue(self):
        rows = set(re.findall(r"^\| R(\d+) \|", words.read(BAD_INPUTS), re.MULTILINE))
        used = set()
        for suite, (paths, names) in cpp_tests().items():
            if any(path.startswith("tests/server/") for path in paths):
                cases = [case for path in paths for case in re.findall(r'\{"(R\d+_\w+)"', words.read(path))]
                for name in (*names, *cases):
                    if re.match(r"R\d", name):
                        used |= set(re.findall(r"R(\d+)", name))
        self.assertGreater(len(used), 20)
        self.assertEqual(used - rows, set())


class BrokenNamesTest(unittest.TestCase):
    """The checks above see names that are wrong."""

    def test_files(self):
        text = "kernels/draw/draw.h, kernels/drawn.h, reference.*, nothing_like_it.*, kernels/gpu. PLAN section 3"
        wrong = {"kernels/drawn.h", "nothing_like_it.*", "kernels/gpu", "PLAN.md"}
        self.assertEqual(words.missing(text, "README.md"), wrong)
        self.assertEqual(words.missing("https://example.com/a.md, $OUT/b.txt, <name>/config.json", "README.md"), set())

    def test_comments(self):
        path = "tests/kernels/philox_test.cc"
        self.assertTrue(words.prose(path))
        self.assertNotIn("#include", words.prose(path))

    def test_tests(self):
        good = "`BudgetTest.NeverExceededByOneEdge` `RefusedTest/R7_empty` `test_kinds.test_buckets_reach_the_model`"
        self.assertEqual(missing_tests(good), [])
        bad = "`BudgetTest.Nothing` `NoSuite.Name` `RefusedTest/R7_none` `test_kinds.test_nothing`"
        self.assertEqual(missing_tests(bad),
                         ["BudgetTest.Nothing", "NoSuite.Name", "RefusedTest/R7_none", "test_kinds.test_nothing"])


if __name__ == "__main__":
    unittest.main()
