"""`edgewise selfcheck`, on the CPU and on the emulated device (tests/cuda)."""

import os
import subprocess
import tempfile
import unittest

from edgewise_process import BIN, EXAMPLES, TESTDATA

MODEL = os.path.join(EXAMPLES, "sentiment", "1")
MISSING = "/nonexistent/module.so"
QUICK = ("--tokens=96", "--repeats=1")
ATTENTION = ("all pairs", "causal", "4 windows", "blocks of 64", "drawn 1 %", "drawn 2.5 %", "drawn 10 %", "drawn 25 %",
             "drawn 100 %", "drawn 10 %, capped 5 %", "drawn 10 %, top 5 %", "poisson 10 %")
OVER = ("all pairs", "its own edges", "the CPU's edges")
NAME = 22  # columns of a row's name


def selfcheck(*flags: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run([os.path.join(BIN, "edgewise"), "selfcheck", *flags], capture_output=True, text=True,
                          timeout=60, check=False, env=os.environ | environment)


def rows(output: str, table: str) -> dict:
    """The rows of a table: {name: the other cells}. A table ends at an empty line."""
    lines = output.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(table))
    found = {}
    for line in lines[start + 1:]:
        if not line:
            break
        found[line[:NAME].strip()] = line[NAME:].split()
    return found


class SelfcheckTest(unittest.TestCase):
    def ends(self, run: subprocess.CompletedProcess, code: int, *messages: str) -> None:
        self.assertEqual(run.returncode, code, run.stdout + run.stderr)
        for message in messages:
            self.assertIn(message, run.stderr)
        if code == 4:
            self.assertNotIn("agrees", run.stdout)
            self.assertNotIn("DIFFERS", run.stdout)

    def agrees(self, run: subprocess.CompletedProcess, model_tolerance: str = "") -> None:
        self.ends(run, 0)
        self.assertEqual(run.stderr, "")
        attention = rows(run.stdout, "attention")
        self.assertEqual(tuple(attention), ATTENTION)
        self.assertEqual([cells[1] for cells in attention.values()], ["same"] * len(ATTENTION))
        if model_tolerance:
            model = rows(run.stdout, "model over")
            self.assertEqual(tuple(model), OVER)
            self.assertEqual([cells[1] for cells in model.values()], [model_tolerance, "-", model_tolerance])
        self.assertTrue(run.stdout.splitlines()[-1].startswith("agrees; allowed: "))

    def test_the_cpu_is_compared_with_itself(self):
        run = selfcheck("--device=cpu", *QUICK, "--model", MODEL)
        self.agrees(run, "1e-03")
        self.assertEqual(run.stdout.splitlines()[0], "the CPU is compared with itself")

    def test_weights_are_compared_with_float32(self):
        for weights, allowed in (("bfloat16", "5e-02"), ("int8", "2e-01")):
            run = selfcheck(*QUICK, "--model", MODEL, "--weights", weights)
            self.agrees(run, allowed)
            self.assertRegex(run.stdout, f"\ncpu/[^/ ]+/{weights} against cpu/[^/ ]+/fp32, ")
            model = rows(run.stdout, "model over")
            self.assertGreater(float(model["all pairs"][0]), 1e-6, "they are rounded")
        self.ends(selfcheck("--weights=int8", *QUICK), 2, "--weights=int8 needs --model: attention has no weights")

    def test_a_model_of_images_gets_its_patches(self):
        self.agrees(selfcheck("--device=cpu", *QUICK, "--model", os.path.join(TESTDATA + "_images", "vit_classes", "1")),
                    "1e-03")

    def test_auto_without_a_gpu_says_so(self):
        for module, reason in ((MISSING, MISSING), ("", "this build has no CUDA backend")):
            run = selfcheck(*QUICK, EDGEWISE_CUDA_MODULE=module)
            self.agrees(run)
            self.assertRegex(run.stdout.splitlines()[0], f"^no GPU: .*{reason}.*; the CPU is compared with itself$")
            run = selfcheck(*QUICK, "--precision=bf16", EDGEWISE_CUDA_MODULE=module)
            self.ends(run, 4, "bf16 needs a GPU", reason)

    def test_the_device_agrees(self):
        for precision, outputs, logits in (("fp32", "1e-04", "1e-03"), ("bf16", "2e-02", "5e-02")):
            run = selfcheck("--device=cuda:0", "--precision", precision, "--tokens", "96", "--repeats", "1", "--model",
                            MODEL)
            self.agrees(run, logits)
            self.assertRegex(run.stdout.splitlines()[0], f"^cuda/sm_[0-9]+/{precision} against cpu/")
            self.assertIn(f"outputs {outputs} of the largest, a model's logits {logits}", run.stdout.splitlines()[-1])

    def test_a_device_that_is_not_there_ends_with_4(self):
        self.ends(selfcheck("--device=cuda:9", *QUICK), 4, "9")

    @unittest.skipUnless("EDGEWISE_CUDA_MODULE" in os.environ, "only the emulator fails when it is told to")
    def test_a_device_that_fails_ends_with_4(self):
        run = selfcheck("--device=cuda:0", *QUICK, EDGEWISE_EMULATED_FAIL_AFTER="40")
        self.ends(run, 4, "the device was lost: cuda/")
        self.assertIn("same", run.stdout)  # it had begun
        run = selfcheck("--device=cuda:0", *QUICK, "--model", MODEL, EDGEWISE_EMULATED_FAIL_AFTER="40")
        self.ends(run, 4, "the device was lost: ")
        run = selfcheck("--device=cuda:0", *QUICK, "--model", MODEL, EDGEWISE_EMULATED_FAIL_AFTER="1")  # one opens it
        self.ends(run, 4, "the device was lost: ", "the CPU takes the model")

    def test_a_model_is_read_before_anything_runs(self):
        with tempfile.TemporaryDirectory() as empty:
            for device in ("--device=cpu", "--device=cuda:0"):
                run = selfcheck(device, *QUICK, f"--model={empty}")
                self.ends(run, 2, f"--model={empty}: config.json: no such file")
                self.assertNotIn("attention", run.stdout)
            with open(os.path.join(empty, "config.json"), "w", encoding="utf-8") as file:
                file.write("{}")
            self.ends(selfcheck("--device=cpu", *QUICK, f"--model={empty}"), 2, "config.json: ")
        self.ends(selfcheck("--device=cpu", *QUICK, "--model=/nonexistent"), 2, "--model=/nonexistent: ")

    def test_help(self):
        run = selfcheck("--help")
        self.ends(run, 0)
        for words in ("--device DEVICE", "(default auto)", "(default fp32)", "(default float32)", "--model FOLDER",
                      "(default 1024)", "(default 5)", "Exit codes: 0", "1 it differs", "2 a flag", "4 the device"):
            self.assertIn(words, run.stdout)
        self.assertEqual(selfcheck("--device=cpu", "-h").stdout, run.stdout)
        help_of = subprocess.run([os.path.join(BIN, "edgewise"), "help", "selfcheck"], capture_output=True, text=True,
                                 timeout=60, check=True)
        self.assertEqual(help_of.stdout, run.stdout)

    def test_wrong_flags_end_with_2(self):
        for flags, message in ((("--token=3",), "unknown flag --token; did you mean --tokens?"),
                               (("--helpfull",), "unknown flag --helpfull"),
                               (("extra",), 'unexpected argument "extra"; flags start with --'),
                               (("--tokens",), "--tokens needs a value: N"),
                               (("--tokens=0",), '--tokens is "0"; expected a whole number from 1 to 8192'),
                               (("--repeats=many",), '--repeats is "many"; expected a whole number from 1 to 1000'),
                               (("--device=tpu",), "allowed: auto, cpu, cuda, cuda:N"),
                               (("--device=cuda:one",), "cuda:one"),
                               (("--device=cpu", "--precision=bf16"), "precision"),
                               (("--device=cpu", "--weights=int4", "--model=" + MODEL), "weights"),
                               (("--device=cuda:0", "--precision=fp16"), "precision")):
            run = selfcheck(*flags)
            self.ends(run, 2, "edgewise selfcheck: ", message)
            self.assertEqual(run.stdout, "")


if __name__ == "__main__":
    unittest.main()
