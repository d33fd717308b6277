"""The server on a CUDA device. Without a GPU the device is the emulated one (tests/cuda), through EDGEWISE_CUDA_MODULE."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest
import unittest.mock

from edgewise_process import BIN, EXAMPLES, HANG, Server, series, total

TEXT = ("--model", "sentiment", "--text", "a gorgeous, witty, seductive movie", "--seed", "4")
DEVICE = "--device=cuda:0"


class DeviceTest(unittest.TestCase):
    def test_it_answers_as_the_cpu_does(self):
        prompt = ("--model", "shakespeare-ssa", "--prompt", "First Citizen:", "--max_new_tokens", "12", "--seed", "2",
                  "--temperature", "0")
        answers, texts = {}, {}
        for device in ("--device=cpu", DEVICE):
            with Server(EXAMPLES, device) as server:
                answers[device] = [server.predict(*TEXT, *more)
                                   for more in ((), ("--samples", "3"), ("--max_density", "0.03"))]
                texts[device] = server.cli("generate", *prompt, "--json").stdout
                metrics = server.metrics()
        for cpu, cuda in zip(answers["--device=cpu"], answers[DEVICE]):
            self.assertRegex(cuda["device"], "^cuda/sm_[0-9]+/fp32$")
            one, other = cpu["predictions"][0], cuda["predictions"][0]
            self.assertEqual(one["label"], other["label"])
            self.assertEqual(one["edges"]["edges"], other["edges"]["edges"])
            for p, q in zip(one["probabilities"], other["probabilities"]):
                self.assertAlmostEqual(p, q, delta=1e-4)
        words = [[json.loads(line)["token_id"] for line in text.splitlines()] for text in texts.values()]
        self.assertEqual(len(words[0]), 12)
        self.assertEqual(words[0], words[1])
        self.assertGreater(total(metrics, "edgewise_attention_edges_total", model="sentiment"), 0)

    def test_a_device_that_is_not_there_ends_with_4(self):
        for device, words, code in (("cuda:9", "device cuda:9: CUDA device 9 is not there; this process sees", 4),
                                    ("cuda:one", "cuda:one", 2)):
            self.ends(device, code, words)

    def ends(self, device, code, words):
        run = subprocess.run([os.path.join(BIN, "edgewise-server"), f"--model_repository={EXAMPLES}",
                              f"--device={device}", "--listen=127.0.0.1:0", "--metrics_listen="],
                             capture_output=True, text=True, timeout=HANG, check=False)
        self.assertEqual(run.returncode, code, run.stderr)
        self.assertIn(words, run.stderr)

    @unittest.skipUnless("EDGEWISE_CUDA_MODULE" in os.environ, "only the emulator's memory can be chosen")
    def test_a_device_without_memory_ends_with_4_and_says_what_to_do(self):
        with unittest.mock.patch.dict(os.environ, EDGEWISE_EMULATED_MEMORY=str(16 << 10)):
            for device in ("cuda", "auto"):
                self.ends(device, 4, "device cuda: out of device memory: ")
                self.ends(device, 4, "16384 are free; end what holds it (`nvidia-smi`), name another GPU, or use --device=cpu")

    @unittest.skipUnless("EDGEWISE_CUDA_MODULE" in os.environ, "only the emulator's memory is known")
    def test_its_memory_is_shown_by_what_holds_it(self):
        with Server(EXAMPLES, DEVICE) as server:
            server.wait_until_ready()
            server.predict(*TEXT)
            samples = series(server.metrics(), "edgewise_device_memory_bytes")
        found = {dict(labels)["kind"].strip('"'): value for labels, value in samples.items()}
        self.assertEqual(set(found), {"weights", "cache", "scratch", "kept", "other", "free"})
        self.assertEqual(sum(found.values()), 16 << 30)
        self.assertGreater(found["weights"], 4 * 100000)
        self.assertGreater(found["kept"], found["weights"])

    @unittest.skipUnless("EDGEWISE_CUDA_MODULE" in os.environ, "only the emulator's memory can be chosen")
    def test_generations_without_room_fail_when_their_model_loads(self):
        prompt = ("generate", "--model", "shakespeare-ssa", "--prompt", "First", "--max_new_tokens", "3")
        with tempfile.TemporaryDirectory() as repository:
            for model in ("sentiment", "shakespeare-ssa"):
                shutil.copytree(os.path.join(EXAMPLES, model), os.path.join(repository, model))
            os.environ["EDGEWISE_EMULATED_MEMORY"] = str(1 << 30)
            try:
                with Server(repository, DEVICE) as server:
                    failed = server.wait_for_event("model failed to load")
                    self.assertEqual(failed["model"], "shakespeare-ssa")
                    self.assertRegex(failed["error"], r"--max_cache_bytes=2147483648\): out of device memory: [0-9]+ bytes.*"
                                     "; lower --max_cache_bytes or .*serve fewer models, .*--precision=bf16")
                    self.assertEqual(server.predict(*TEXT)["device"], "cuda/sm_90/fp32")
                with Server(repository, DEVICE, "--max_cache_bytes=20000000") as server:
                    self.assertEqual(server.cli(*prompt).returncode, 0)
            finally:
                del os.environ["EDGEWISE_EMULATED_MEMORY"]

    @unittest.skipUnless("EDGEWISE_CUDA_MODULE" in os.environ, "only the emulator fails when it is told to")
    def test_a_lost_device_ends_the_process_with_5(self):
        with tempfile.TemporaryDirectory() as repository:
            shutil.copytree(os.path.join(EXAMPLES, "sentiment"), os.path.join(repository, "sentiment"))
            # Launches: the model loads, with up to 850 of them on a fast machine, and answers some 40 times.
            os.environ["EDGEWISE_EMULATED_FAIL_AFTER"] = "2000"
            try:
                server = Server(repository, DEVICE)
            finally:
                del os.environ["EDGEWISE_EMULATED_FAIL_AFTER"]
            try:
                server.wait_until_ready()
                codes = []
                for _ in range(100):
                    codes.append(server.cli("predict", *TEXT, "--timeout=60s").returncode)
                    if codes[-1] != 0:
                        break
                self.assertEqual((codes[0], codes[-1]), (0, 1))
                server.wait_for_event("device lost")
                self.assertEqual(server.process.wait(timeout=HANG), 5)
            finally:
                server.stop()


if __name__ == "__main__":
    unittest.main()
