"""A server of our own, and answers through the command line: the real path, gRPC included."""
import dataclasses
import json
import pathlib
import subprocess
import sys
import time

import numpy as np

PLOT = pathlib.Path(__file__).resolve().parents[2] / "client" / "python" / "src" / "edgewise" / "plot.py"
START_SECONDS = 60
CALL_SECONDS = 600
EVALUATE_SECONDS = 3600


@dataclasses.dataclass
class Answer:
    """The edges of one input's answer."""
    sample_edges: np.ndarray   # [samples]; empty unless each_sample was asked for
    edges: float               # mean per sample
    pairs: int
    expected: float            # 0 unless layer_stats was asked for


def parse(line):
    """One line of `edgewise predict --input FILE --json` -> Answer. Protobuf's JSON writes 64-bit integers as text."""
    response = json.loads(line)
    if "error" in response:
        raise RuntimeError(f"input {response['input']}: {response['error']['code']}: {response['error']['message']}")
    prediction, = response["predictions"]
    edges = prediction["edges"]
    return Answer(sample_edges=np.array([float(output["edges"]) for output in prediction["sample_outputs"]]),
                  edges=float(edges["edges"]), pairs=int(edges["pairs"]), expected=float(edges["expected_edges"]))


class Server:
    """edgewise-server on free ports of the loopback; as a context manager. Its log goes to a file in `folder`."""

    def __init__(self, binaries, repository, folder, flags=()):
        self.binaries = pathlib.Path(binaries)
        self.log = pathlib.Path(folder) / "server.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [self.binaries / "edgewise-server", f"--model_repository={repository}", "--listen=127.0.0.1:0",
                 "--metrics_listen=", *flags], stdout=log, stderr=log)
        self.address = ""

    def __enter__(self):
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _wait(self):
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            self.address = self.address or self._announced()
            if self.address and self._run(["health"], START_SECONDS).returncode == 0:
                return
            time.sleep(0.05)
        raise RuntimeError(f"the server did not start:\n{self.log.read_text()}")

    def _announced(self):
        for line in self.log.read_text().splitlines():
            if '"event":"serving"' in line:
                return f"127.0.0.1:{json.loads(line)['port']}"
        return ""

    def _run(self, arguments, seconds):
        return subprocess.run([self.binaries / "edgewise", *arguments, f"--server={self.address}"],
                              capture_output=True, text=True, timeout=seconds)

    def models(self):
        """{name: ModelInfo as a dict} of the models that serve"""
        done = self._run(["models", "--json"], 30)
        if done.returncode != 0:
            raise RuntimeError(f"edgewise models: {done.stderr}")
        return {m["name"]: m for m in json.loads(done.stdout)["models"] if m["state"] == "READY"}

    def predict(self, model, path, *flags):
        """One Answer per line of the file at `path`."""
        done = self._run(["predict", f"--model={model}", f"--input={path}", "--truncate=tail", "--json",
                          "--timeout=120s", *flags], CALL_SECONDS)
        lines = done.stdout.splitlines()
        if done.returncode != 0 and not any('"error"' in line[:40] for line in lines):
            raise RuntimeError(f"edgewise predict {' '.join(flags)}: {done.stderr}")
        return [parse(line) for line in lines]

    def evaluate(self, model, path, caps, *flags):
        """The answer of `edgewise evaluate --json`; its settings are dense attention, no cap and `caps`, densities."""
        done = self._run(["evaluate", f"--model={model}", f"--data={path}", "--json", "--timeout=900s",
                          f"--caps={','.join(map(repr, caps))}", *flags], EVALUATE_SECONDS)
        if done.returncode != 0:
            raise RuntimeError(f"edgewise evaluate {' '.join(flags)}: {done.stderr}")
        return json.loads(done.stdout)

    def plot(self, model, text, samples, folder, picture):
        """The edges of one text, drawn by edgewise.plot of client/python."""
        files = [pathlib.Path(folder) / name for name in ("answer.json", "graph.json")]
        ways = ((f"--samples={samples}", "--key_degrees", "--each_sample"), ("--samples=1", "--graph"))
        for path, way in zip(files, ways):
            done = self._run(["predict", f"--model={model}", f"--text={text}", "--seed=1", "--json", *way], 60)
            if done.returncode != 0:
                raise RuntimeError(f"edgewise predict {' '.join(way)}: {done.stderr}")
            path.write_text(done.stdout)
        subprocess.run([sys.executable, PLOT, files[0], "--graph", files[1], "--tokens", text, "-o", picture], check=True)
