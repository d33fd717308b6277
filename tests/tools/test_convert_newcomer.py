"""convert.py as somebody meets it first: help on a bare Python, and files of Hugging Face where others are wanted."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from checkpoints import ROOT, convert  # noqa: E402
from test_convert_state_dict import safetensors  # noqa: E402

SCRIPT = os.path.join(ROOT, "tools", "convert.py")
POINTER = "`convert.py state-dict` reads its tensors, with a mapping file (docs/convert.md#hugging-face)\n"


class HuggingFaceTest(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.folder = pathlib.Path(self._folder.name)
        self.model = self.folder / "bert"
        self.model.mkdir()
        (self.model / "config.json").write_text(json.dumps({"architectures": ["BertModel"], "model_type": "bert"}))
        (self.model / "model.safetensors").write_bytes(safetensors({"pooler": np.zeros(2, np.float32)}))

    def refused(self, *arguments: str) -> str:
        run = convert(*arguments, "--output", str(self.folder / "out" / "1"))
        self.assertEqual((run.returncode, run.stdout), (2, ""))
        self.assertTrue(run.stderr.endswith(POINTER), run.stderr)
        self.assertEqual(run.stderr.count("\n"), 1)
        return run.stderr

    def test_its_weights_are_named_where_a_torch_file_is_wanted(self):
        weights = str(self.model / "model.safetensors")
        for source in (["nanogpt"], ["sbm-transformer", "--config", "x.json"]):
            self.assertIn(
                f"{weights}: a safetensors file of a Hugging Face model (model_type 'bert'), which {source[0]} does not",
                self.refused(*source, "--checkpoint", weights))

    def test_any_safetensors_file_is_named_where_a_torch_file_is_wanted(self):
        (self.model / "config.json").unlink()
        weights = str(self.model / "model.safetensors")
        self.assertIn(f"{weights}: a safetensors file, which nanogpt", self.refused("nanogpt", "--checkpoint", weights))

    def test_its_folder_is_named(self):
        for source in (["nanogpt"], ["state-dict", "--mapping", "x.json"]):
            self.assertIn(f"{self.model}: the folder of a Hugging Face model (model_type 'bert')",
                          self.refused(*source, "--checkpoint", str(self.model)))

    def test_its_config_is_named_where_ours_is_wanted(self):
        config = str(self.model / "config.json")
        weights = str(self.model / "model.safetensors")
        self.assertIn(f"{config}: the config of a Hugging Face model (model_type 'bert'), not what --mapping wants",
                      self.refused("state-dict", "--checkpoint", weights, "--mapping", config))
        self.assertIn("not what --config wants", self.refused("sbm-transformer", "--checkpoint", "x", "--config", config))

    def test_a_kind_that_is_no_name_is_shown_in_a_bounded_line(self):
        (self.model / "config.json").write_text('{"model_type": %s}' % ("[" * 900 + "]" * 900))
        line = self.refused("state-dict", "--mapping", "x.json", "--checkpoint", str(self.model))
        self.assertIn("(model_type [[[[", line)
        self.assertLess(len(line), 400)

    def test_what_is_none_of_it_is_left_to_the_source_format(self):
        text = self.folder / "text"
        text.write_bytes(b"\x10\0\0\0\0\0\0\0no object here, but long enough")
        run = convert("nanogpt", "--checkpoint", str(text), "--output", str(self.folder / "out" / "1"))
        self.assertIn("not a zip file as torch.save writes it", run.stderr)


class BarePythonTest(unittest.TestCase):
    """A Python without NumPy, made by a module of that name that cannot be found."""

    def run_bare(self, *arguments: str) -> subprocess.CompletedProcess:
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "numpy.py").write_text("raise ModuleNotFoundError(name='numpy')\n")
            return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=60,
                                  check=False, env={**os.environ, "PYTHONPATH": folder})

    def test_help_needs_no_numpy(self):
        for arguments in (["--help"], ["nanogpt", "--help"], ["sbm-transformer", "--help"], ["state-dict", "--help"]):
            run = self.run_bare(*arguments)
            self.assertEqual((run.returncode, run.stderr), (0, ""))
            self.assertIn("usage: convert.py", run.stdout)

    def test_a_missing_numpy_is_told_with_the_interpreter_and_the_remedy(self):
        run = self.run_bare("nanogpt", "--checkpoint", "x", "--output", "y/1")
        self.assertEqual((run.returncode, run.stdout), (2, ""))
        self.assertRegex(run.stderr, rf"^convert.py: {sys.executable} lacks NumPy: apt install python3-numpy.*\n$")

    def test_the_script_runs_with_the_python_that_debian_serves(self):
        with open(SCRIPT, encoding="utf-8") as file:
            self.assertEqual(file.readline(), "#!/usr/bin/python3\n")


if __name__ == "__main__":
    unittest.main()
