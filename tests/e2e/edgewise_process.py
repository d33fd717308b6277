"""Starts the real server on free loopback ports and talks to it through the real command line."""

import json
import os
import queue
import signal
import subprocess
import threading
import time
import urllib.request

ROOT = os.environ.get("EDGEWISE_ROOT", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
BIN = os.environ.get("EDGEWISE_BIN", os.path.join(ROOT, "build", "bin"))
TESTDATA = os.path.join(ROOT, "tests", "testdata")
EXAMPLES = os.path.join(ROOT, "examples", "models")
HANG = 180.0  # seconds that nothing takes, on a busy machine either
FLAGS = os.environ.get("EDGEWISE_TEST_SERVER_FLAGS", "").split()  # of every server, to run a suite on another device


def wait_until(what: str, done) -> None:
    """Asks done() until it is true; fails when that takes so long that it hangs."""
    end = time.monotonic() + HANG
    while not done():
        if time.monotonic() > end:
            raise AssertionError(f"waited {HANG} s for {what}")
        time.sleep(0.02)


class Server:
    """A running edgewise-server; ends with the `with` block."""

    def __init__(self, repository: str, *flags: str):
        command = [os.path.join(BIN, "edgewise-server"), f"--model_repository={repository}", "--listen=127.0.0.1:0",
                   "--metrics_listen=127.0.0.1:0", *FLAGS, *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        self.log = []
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        serving = self.wait_for_event("serving")
        self.address = f"127.0.0.1:{serving['port']}"
        self.metrics_address = f"127.0.0.1:{serving['metrics_port']}"
        self.http_address = f"127.0.0.1:{serving['http_port']}"

    def _read(self) -> None:
        for line in self.process.stderr:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def wait_for_event(self, event: str, seconds: float = HANG) -> dict:
        """Reads the log until an event; fails when the server ends first or nothing comes."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                line = self._lines.get(timeout=0.1)
            except queue.Empty:
                continue
            if line is None:
                raise AssertionError(f"the server ended with {self.process.wait()}: {self.log}")
            self.log.append(line)
            if line["event"] == event:
                return line
        raise AssertionError(f"no event {event!r} within {seconds} s: {self.log}")

    def wait_until_ready(self) -> None:
        wait_until(f"the server to serve: {self.log}", lambda: self.cli("health").returncode == 0)

    def cli(self, *arguments: str) -> subprocess.CompletedProcess:
        command = [os.path.join(BIN, "edgewise"), arguments[0], "--server", self.address, *arguments[1:]]
        return subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)

    def predict(self, *arguments: str) -> dict:
        """The response as JSON; fails when the call does."""
        result = self.cli("predict", *arguments, "--json")
        if result.returncode != 0:
            raise AssertionError(f"predict {arguments}: {result.stderr}")
        return json.loads(result.stdout)

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=HANG) as response:
            return response.read().decode()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=HANG)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._reader.join(timeout=HANG)
        self.process.stderr.close()
        return code

    def __enter__(self):
        try:
            self.wait_until_ready()
        except AssertionError:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        if self.process.stderr.closed:
            return
        self.stop()


def series(text: str, name: str) -> dict:
    """Samples of a metric: {frozenset of label pairs: value}."""
    values = {}
    for line in text.splitlines():
        if not line.startswith(name + "{") and not line.startswith(name + " "):
            continue
        head, value = line.rsplit(" ", 1)
        labels = head[len(name):].strip("{}")
        pairs = frozenset(tuple(pair.split("=", 1)) for pair in labels.split(",") if pair)
        values[pairs] = float(value)
    return values


def total(text: str, name: str, **labels: str) -> float:
    """Sum over the samples whose labels include the given ones."""
    wanted = {(key, f'"{value}"') for key, value in labels.items()}
    return sum(value for pairs, value in series(text, name).items() if wanted <= pairs)
