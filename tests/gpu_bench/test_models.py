"""The benchmark of whole models on a GPU, on the emulated one, without its peers."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = os.environ.get("EDGEWISE_BIN")


class ModelsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_models(self, *flags):
        """(exit code, the line about the run, the rows by their case)"""
        rows = self.folder / "rows.json"
        command = [sys.executable, ROOT / "bench/gpu/models_gpu.py", "--dry-run", f"--bin={BIN}", "--precisions=fp32",
                   f"--models={self.folder / 'models'}", f"--json={rows}", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=250)
        about, *lines = [json.loads(line) for line in rows.read_text().splitlines()]
        return done.returncode, about, {line["case"]: line for line in lines}

    @unittest.skipUnless(BIN, "needs EDGEWISE_BIN and EDGEWISE_CUDA_MODULE")
    def test_every_model_has_its_rows(self):
        for name in ("sentiment", "shakespeare-llama"):
            shutil.copytree(ROOT / "examples/models" / name, self.folder / "models" / name)
        code, about, rows = self.run_models()
        self.assertEqual(code, 0, rows)
        self.assertEqual(about["benchmark"], "models_gpu")
        sbm = rows["sbm 10.00%, 16 tokens"]
        self.assertGreater(min(sbm[f"{way}_ms"] for way in ("own", "dense", "cap_of_a_tenth")), 0)
        self.assertLess(sbm["density"], 0.3)
        self.assertGreater(rows["bert, 16 tokens x 2"]["inputs_per_second"], 0)
        for case in ("gpt2, 3 tokens after 8 x 2", "llama, 3 tokens after 8 x 2"):
            self.assertGreater(rows[case]["tokens_per_second"], 0)
        for case in ("sentiment x 32", "shakespeare-llama --new_tokens=64 x 1"):
            self.assertGreater(rows[case]["answered"], 0)

    @unittest.skipUnless(BIN, "needs EDGEWISE_BIN and EDGEWISE_CUDA_MODULE")
    def test_figures_are_of_few_models(self):
        shutil.copytree(ROOT / "examples/models/sentiment", self.folder / "models/sentiment")
        code, _, rows = self.run_models("--figures")
        self.assertEqual(code, 0, rows)
        self.assertEqual(set(rows), {"server of written", "sbm 10.00%, 16 tokens"})  # `long` is not there
        self.assertGreater(rows["sbm 10.00%, 16 tokens"]["cap_over_own"], 0)

    @unittest.skipUnless(BIN, "needs EDGEWISE_BIN and EDGEWISE_CUDA_MODULE")
    def test_what_there_is_no_time_for_is_not_run_and_not_passed_over(self):
        shutil.copytree(ROOT / "examples/models/sentiment", self.folder / "models/sentiment")
        code, _, rows = self.run_models("--seconds=0")
        self.assertEqual(code, 1)
        for case in ("server of written", "server of bundled", "peers"):
            self.assertEqual(rows[case]["not_run"], "out of time")


if __name__ == "__main__":
    unittest.main()
