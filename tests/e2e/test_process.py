"""The process: flags, ports, signals, reloads, and bad requests that leave it standing."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import unittest
import urllib.request

from edgewise_process import BIN, EXAMPLES, HANG, ROOT, TESTDATA, Server, total, wait_until


def run_server(*flags: str) -> subprocess.CompletedProcess:
    return subprocess.run([os.path.join(BIN, "edgewise-server"), *flags], capture_output=True, text=True, timeout=HANG,
                          check=False)


class ProcessTest(unittest.TestCase):
    def test_bad_flags_are_told_in_one_line(self):
        for flags, words in [
            ((), "model_repository"),
            ((f"--model_repository={TESTDATA}", "--listen=nonsense"), "listen"),
            ((f"--model_repository={TESTDATA}", "--device=tpu"), "device"),
            ((f"--model_repository={TESTDATA}", "--listen=0.0.0.0:0"), "insecure_bind"),
            ((f"--model_repository={TESTDATA}", "--no_such_flag=1"), "no_such_flag"),
            (("--model=sbm",), "NAME=DIR is expected"),
            ((f"--model={TESTDATA}/sbm/1",), "NAME=DIR is expected"),
            (("--model", "sbm=no/such/folder"), "--model=sbm=no/such/folder: No such file or directory"),
            ((f"--model=Sbm={TESTDATA}/sbm/1",), f"such as --model=sbm={TESTDATA}/sbm/1"),
            ((f"--model=m={TESTDATA}/sbm/1", f"--model=m={TESTDATA}/dense/1"), "another --model has that name"),
            ((f"--model_repository={TESTDATA}", f"--model=sbm={TESTDATA}/dense/1"), "has a model of that name too"),
        ]:
            result = run_server(*flags, *(() if any("listen" in f for f in flags) else ("--listen=127.0.0.1:0",)),
                                "--metrics_listen=127.0.0.1:0")
            self.assertIn(result.returncode, (1, 2, 4), flags)
            self.assertIn(words, result.stderr, flags)

    def test_cuda_without_a_device_is_a_clear_error(self):
        result = run_server(f"--model_repository={TESTDATA}", "--device=cuda:0", "--listen=127.0.0.1:0",
                            "--metrics_listen=127.0.0.1:0")
        self.assertEqual(result.returncode, 4)
        self.assertIn("cuda", result.stderr)

    def test_a_port_in_use_is_exit_code_3(self):
        with Server(TESTDATA) as server:
            result = run_server(f"--model_repository={TESTDATA}", f"--listen={server.address}",
                                "--metrics_listen=127.0.0.1:0")
        self.assertEqual(result.returncode, 3, result.stderr)

    def test_sigterm_drains_and_exits_0(self):
        with Server(TESTDATA) as server:
            load = subprocess.Popen([os.path.join(BIN, "edgewise"), "bench", "--server", server.address, "--model", "sbm",
                                     "--token_ids", "1,2,3,4,5,6,7,8", "--concurrency", "4", "--duration", "3s"],
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wait_until("answers to the load", lambda: total(server.metrics(), "edgewise_requests_total", code="OK") > 0)
            self.assertEqual(server.stop(), 0)
            load.wait(timeout=HANG)

    def test_bad_requests_name_field_value_and_limit_and_the_next_one_works(self):
        cases = [
            (("--model", "../etc", "--token_ids", "1"), "model"),
            (("--model", "nobody", "--token_ids", "1"), "nobody"),
            (("--model", "sbm", "--version", "7", "--token_ids", "1"), "7"),
            (("--model", "sbm", "--token_ids", "1,999999"), "inputs[0].sequence.token_ids[1] is 999999; the vocabulary"),
            (("--model", "sbm", "--token_ids", ",".join(["1"] * 100)), "100 tokens"),
            (("--model", "sbm", "--text", "hello"), "no tokenizer"),
            (("--model", "sbm", "--token_ids", "0,0"), "pads"),
            (("--model", "sbm", "--token_ids", "1", "--samples", "100000"), "100000"),
            (("--model", "sbm", "--token_ids", "1,2", "--dense", "--max_edges", "3"), "least"),
            (("--model", "sbm", "--token_ids", "1", "--second_token_ids", "1"), "second"),
            (("--model", "sbm-pair", "--token_ids", "1"), "second"),
            (("--model", "sbm", "--token_ids", "1", "--graph", "--samples", "2"), "graph"),
        ]
        with Server(TESTDATA) as server:
            for arguments, words in cases:
                result = server.cli("predict", *arguments)
                self.assertEqual(result.returncode, 1, arguments)
                self.assertIn(words, result.stderr, arguments)
                server.predict("--model", "sbm", "--token_ids", "1,2,3")

    def test_a_reload_takes_new_versions_and_keeps_the_old_when_they_are_broken(self):
        with tempfile.TemporaryDirectory() as repository:
            shutil.copytree(os.path.join(TESTDATA, "sbm", "1"), os.path.join(repository, "m", "1"))
            with Server(repository) as server:
                shutil.copytree(os.path.join(TESTDATA, "sbm", "1"), os.path.join(repository, "m", "2"))
                self.reload_until(server, "2")
                os.makedirs(os.path.join(repository, "m", "3"))
                with open(os.path.join(repository, "m", "3", "config.json"), "w") as file:
                    file.write("{}")
                server.process.send_signal(signal.SIGHUP)
                wait_until("version 3 to fail", lambda: '"FAILED"' in server.cli("models", "--json").stdout)
                self.assertEqual(server.predict("--model", "m", "--token_ids", "1,2")["version"], "2")

    def test_models_are_served_where_they_lie_and_load_again_when_they_change(self):
        """A flat mount, a snapshot of the hub's cache and a ConfigMap, as they are; the last in a repository."""
        def describe(path: str, description: str) -> None:
            with open(os.path.join(TESTDATA, "sbm", "1", "config.json"), encoding="utf-8") as file:
                config = {**json.load(file), "description": description}
            with open(f"{path}.new", "w", encoding="utf-8") as file:
                json.dump(config, file)
            os.replace(f"{path}.new", path)

        def config_map(folder: str, time: str) -> None:
            shutil.copytree(os.path.join(TESTDATA, "sbm", "1"), os.path.join(folder, f"..{time}"))
            describe(os.path.join(folder, f"..{time}", "config.json"), time)
            os.symlink(f"..{time}", os.path.join(folder, "..data_tmp"))
            os.replace(os.path.join(folder, "..data_tmp"), os.path.join(folder, "..data"))

        with tempfile.TemporaryDirectory() as folder:
            flat, cache, mounted = (os.path.join(folder, *path) for path in (
                ("mnt", "models"), ("hub", "models--org--Tiny"), ("models", "mounted", "1")))
            shutil.copytree(os.path.join(TESTDATA, "sbm", "1"), flat)
            shutil.copytree(os.path.join(TESTDATA, "sbm", "1"), os.path.join(cache, "blobs"))
            snapshot = os.path.join(cache, "snapshots", "ab12")
            os.makedirs(snapshot)
            config_map(mounted, "2026")
            for name in ("config.json", "model.safetensors"):
                os.symlink(f"../../blobs/{name}", os.path.join(snapshot, name))
                os.symlink(f"..data/{name}", os.path.join(mounted, name))
            with Server(os.path.join(folder, "models"), "--model", f"flat={flat}", f"--model=tiny={snapshot}",
                        "--repository_mode=poll", "--repository_poll_seconds=1") as server:
                def described() -> dict:
                    models = json.loads(server.cli("models", "--json").stdout)["models"]
                    return {model["name"]: model.get("description") for model in models}

                for name in ("flat", "tiny", "mounted"):
                    self.assertEqual(server.predict("--model", name, "--token_ids", "1,2")["version"], "1")
                self.assertEqual(described()["mounted"], "2026")
                describe(os.path.join(flat, "config.json"), "changed flat")
                describe(os.path.join(cache, "blobs", "config.json"), "changed blob")
                config_map(mounted, "2027")
                wait_until("the changes", lambda: described() == {
                    "flat": "changed flat", "tiny": "changed blob", "mounted": "2027"})

    def reload_until(self, server: Server, version: str) -> None:
        server.process.send_signal(signal.SIGHUP)
        wait_until(f"version {version}",
                   lambda: server.predict("--model", "m", "--token_ids", "1,2")["version"] == version)

    def test_healthz_answers(self):
        with Server(TESTDATA) as server:
            with urllib.request.urlopen(f"http://{server.metrics_address}/healthz", timeout=HANG) as response:
                self.assertEqual(response.status, 200)

    def test_the_demo_runs(self):
        result = subprocess.run([os.path.join(ROOT, "tools", "demo.sh"), BIN], capture_output=True, text=True,
                                timeout=280, check=False, cwd=ROOT)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("edgewise_", result.stdout)

    def test_the_demo_fails_where_an_answer_is_above_its_cap(self):
        """By one edge, as `edgewise evaluate` would tell it: the demo reads the table itself."""
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(os.path.join(BIN, "edgewise-server"), os.path.join(folder, "edgewise-server"))
            client = os.path.join(folder, "edgewise")
            with open(client, "w", encoding="utf-8") as file:
                file.write(f"#!/bin/bash\n[[ $1 == evaluate ]] || exec '{BIN}/edgewise' \"$@\"\n"
                           f"'{BIN}/edgewise' \"$@\" | sed -E 's/^( +3  cap 1 %.*)  167,772 /\\1  167,773 /'\n")
            os.chmod(client, 0o755)
            result = subprocess.run([os.path.join(ROOT, "tools", "demo.sh"), folder], capture_output=True, text=True,
                                    timeout=280, check=False, cwd=ROOT)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertIn("demo: above the cap of 167772 edges: most edges used 167,773, 0 of 24 answers above\n",
                      result.stderr)


if __name__ == "__main__":
    unittest.main()
