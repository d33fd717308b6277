"""Plants faults in a copy of the repository, builds what they change and runs tests until one fails.

One build and one program of tests at a time. A test counts only if it fails with the fault and, run again, passes without.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import resource
import shlex
import signal
import subprocess
import time

from .choose import Fault

TEST, CHECK = COMMANDS = ("./dev test", "./dev check")
NOT_BUILT, SAME_CODE = "does not compile", "compiles to the same code"
# The bounds of a process of a test: a fault may allocate or compute without end, or wait for what never comes.
_MOST_MEMORY, _MOST_CPU, _STANDS_STILL = 8 << 30, 300, 150  # bytes, seconds, seconds
# Words that tests have which are near to a stratum, beside those of its files' names.
_NEAR = {"kernels/cuda": "emulated", "model/forward": "golden generation", "client": "client", "server/schedule":
         "scheduler unit", "server/wire": "unit rpc", "server/guard": "unit rpc"}
# Tests that read the sources, or only compile them: a change of a line is no fault to them.
_OF_SOURCES = re.compile(r"format|locks|layers.*|python_docs|without_cuda/build")
_FAILED = re.compile(r"^\[  FAILED  \] ([\w/.]+)|^(?:FAIL|ERROR): (\w+ \([\w.]+\))", re.MULTILINE)


def command_of(properties: dict) -> str:
    """Which command runs a test of ctest."""
    return CHECK if "check" in properties.get("LABELS", []) else TEST


class Entry:
    """A test of ctest: in one layout of the tests a TEST, in another a program or a part of it."""

    def __init__(self, described: dict, build: pathlib.Path, costs: dict):
        properties = {item["name"]: item["value"] for item in described.get("properties", [])}
        self.name, self.words = described["name"], described["command"]
        self.command = command_of(properties)
        self.folder = properties.get("WORKING_DIRECTORY", str(build))
        self.environment = dict(pair.split("=", 1) for pair in properties.get("ENVIRONMENT", []))
        self.cost = costs.get(self.name, 1.0)
        self.limit = properties.get("TIMEOUT", 600)
        self.passes, self.skips = (properties.get(name, []) for name in
                                   ("PASS_REGULAR_EXPRESSION", "SKIP_REGULAR_EXPRESSION"))
        self.skip_code = properties.get("SKIP_RETURN_CODE")
        self.program = os.path.relpath(self.words[0], build)
        self.told = words_of(f"{self.name} {self.program} {os.path.relpath(self.folder, build)}")

    def run(self) -> str | None:
        """None where the test passes or is skipped, else what failed."""

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
            resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU, _MOST_CPU))

        started = subprocess.Popen(
            self.words, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, **self.environment, "GTEST_FAIL_FAST": "1"}, start_new_session=True, errors="replace",
            text=True, preexec_fn=limit)
        late = False
        try:
            output = self._wait(started)
            late = output is None
        finally:
            with contextlib.suppress(ProcessLookupError):  # what the test has started, too
                os.killpg(started.pid, signal.SIGKILL)
        if late:
            output = started.communicate()[0]
        if late or started.returncode == -signal.SIGXCPU:
            return f"{self._failed(output, last=True)} (timeout)"
        if started.returncode == self.skip_code or any(re.search(skip, output) for skip in self.skips):
            return None
        if self.passes:
            return None if any(re.search(text, output, re.DOTALL) for text in self.passes) else self.name
        return self._failed(output) if started.returncode != 0 else None

    def _wait(self, started: subprocess.Popen) -> str | None:
        """The output of a test; None where it takes too long: longer the busier the machine, but not while it stands still."""
        begin = moved = time.monotonic()
        used = 0.0
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return started.communicate(timeout=10)[0]
            now, cpu = time.monotonic(), cpu_seconds(started.pid)
            if cpu > used + 0.5:
                moved, used = now, cpu
            busy = max(1.0, os.getloadavg()[0] / os.cpu_count())
            if now - begin > self.limit * busy or now - moved > _STANDS_STILL:
                return None

    def _failed(self, output: str, last: bool = False) -> str:
        """The name of the first TEST that failed; `last`: or else of the one that was running."""
        found = _FAILED.search(output)
        running = re.findall(r"^\[ RUN      \] ([\w/.]+)", output, re.MULTILINE)
        name = next(filter(None, found.groups())) if found else running[-1] if running else ""
        return f"{self.name}: {name}" if name and name not in self.name else self.name


def cpu_seconds(session: int) -> float:
    """The CPU time of the processes of a session, as far as it is known."""
    ticks = 0
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:13])) if fields[3] == str(session) else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def words_of(text: str) -> set[str]:
    """The words of a path or of the name of a test."""
    return {word.lower().removesuffix("s") for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", text)} - {"test", "cc", "h"}


class Tree:
    """A copy of the repository that is configured and built, with its tests."""

    def __init__(self, root: pathlib.Path, build: pathlib.Path, jobs: int):
        self.root, self.build, self._jobs = root, build, jobs
        self._inputs = {}  # of each target that was asked for
        self._without_fault = {}  # hashes of objects
        self._backup = build / "planted.json"
        if self._backup.exists():  # a run was killed
            kept = json.loads(self._backup.read_text())
            (root / kept["path"]).write_text(kept["text"], encoding="utf-8")
            self._backup.unlink()
        # Objects of the product, and of the emulated GPU's kernels; nvcc's are of no test that runs without a GPU.
        self._objects = {os.path.relpath(os.path.join(entry["directory"], self._output(entry)), build)
                         for entry in json.loads((build / "compile_commands.json").read_text())
                         if "nvcc" not in entry["command"].split(" ", 1)[0]}

    @staticmethod
    def _output(entry: dict) -> str:
        words = shlex.split(entry["command"])
        return entry.get("output") or words[words.index("-o") + 1]

    def ninja(self, targets: list[str], *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(["ninja", "-C", self.build, "-j", str(self._jobs), *arguments, *targets], text=True,
                              capture_output=True, check=False, errors="replace")

    def outputs(self) -> set[str]:
        """All files that the build makes."""
        listed = self.ninja([], "-t", "targets", "all").stdout
        return {line.rpartition(": ")[0] for line in listed.splitlines() if not line.startswith("ninja:")}

    def tests(self) -> list[Entry]:
        """The tests of ctest."""
        costs = {}
        with contextlib.suppress(FileNotFoundError):
            for line in (self.build / "Testing/Temporary/CTestCostData.txt").read_text().splitlines():
                if line == "---":
                    break
                name, _, cost = line.rsplit(" ", 2)
                costs[name] = float(cost)
        shown = subprocess.run(["ctest", "--test-dir", self.build, "--show-only=json-v1"], text=True, capture_output=True,
                               check=True)
        return [Entry(described, self.build, costs) for described in json.loads(shown.stdout)["tests"]
                if "command" in described and not _OF_SOURCES.fullmatch(described["name"])]

    def objects_of(self, path: str) -> list[str]:
        """The objects that are made of a source or header: the emulator's, which alone have tests where there is no GPU, or
        else those of the product, or else of tests."""
        found, target = set(), ""
        for line in self.ninja([], "-t", "deps").stdout.splitlines():
            if not line.startswith(" "):
                target = line.split(": #deps")[0]
            elif target in self._objects and os.path.normpath(self.build / line.strip()) == str(self.root / path):
                found.add(target)
        emulated = {target for target in found if target.startswith("tests/cuda/")}
        return sorted(emulated or {target for target in found if not target.startswith("tests/")} or found)

    def reach(self, targets: list[str], objects: list[str]) -> bool:
        """Whether one of the objects goes into one of the targets."""
        for target in targets:
            if target not in self._inputs:
                self._inputs[target] = set(self.ninja([target], "-t", "inputs").stdout.splitlines())
        return any(not self._inputs[target].isdisjoint(objects) for target in targets)

    def hashes(self, objects: list[str]) -> list[str]:
        return [hashlib.sha256((self.build / target).read_bytes()).hexdigest() for target in objects]

    def hashes_without_fault(self, objects: list[str]) -> list[str]:
        """Built once: later they are remembered."""
        unknown = [target for target in objects if target not in self._without_fault]
        if unknown:
            made = self.ninja(unknown)
            if made.returncode != 0:
                raise SystemExit(f"{self.root} does not compile without a fault:\n{made.stdout[-2000:]}")
            self._without_fault.update(zip(unknown, self.hashes(unknown)))
        return [self._without_fault[target] for target in objects]

    @contextlib.contextmanager
    def planted(self, fault: Fault):
        """The file has the fault inside the block, and its own text afterwards, whatever happens."""
        file = self.root / fault.path
        text = file.read_text(encoding="utf-8")
        changed = fault.planted(text)
        self._backup.write_text(json.dumps({"path": fault.path, "text": text}))
        try:
            file.write_text(changed, encoding="utf-8")
            yield
        finally:
            file.write_text(text, encoding="utf-8")
            self._backup.unlink()


class Search:
    """Looks for the first test that sees a fault: those whose names are nearest to the file's first, quick ones first."""

    def __init__(self, tree: Tree, unsound: dict, say):
        self._tree, self._say = tree, say
        self._outputs, self._entries = tree.outputs(), tree.tests()
        # The programs that scripts run. Benchmarks are no part of the tests.
        self._programs = sorted(path for path in self._outputs
                                if path.startswith("bin/") and not path.endswith((".so", "_bench")))
        self.unsound = unsound  # tests that failed without a fault: their first failure
        self._seen_by = {}  # how often a test saw a fault of a stratum
        missing = [entry.name for entry in self._entries
                   if entry.program not in self._outputs and not os.path.exists(entry.words[0])]
        if missing:
            raise SystemExit(f"{tree.build}: not everything is built; missing for {', '.join(missing[:3])}")

    def plant(self, fault: Fault) -> dict:
        """The fate of a fault: {"skipped": why}, or what saw it ("seen", None where nothing did), the test of ctest and
        the command that it belongs to (no test: the build saw it), and the seconds that it took."""
        start = time.monotonic()
        objects = self._tree.objects_of(fault.path)
        if not objects:
            return {"skipped": "no object is made of it"}
        before = self._tree.hashes_without_fault(objects)
        with self._tree.planted(fault):
            if self._tree.ninja(objects).returncode != 0:
                return {"skipped": NOT_BUILT}
            if self._tree.hashes(objects) == before:
                return {"skipped": SAME_CODE}
            seen, entry = self._first_failure(fault, objects)
        if entry is not None:
            self._seen_by[fault.stratum, entry.name] = self._seen_by.get((fault.stratum, entry.name), 0) + 1
        return {"seen": seen, "test": entry and entry.name, "command": entry.command if entry else TEST if seen else None,
                "seconds": round(time.monotonic() - start)}

    def check(self, names: set[str]) -> None:
        """Runs tests that saw faults without one. Those that fail are `unsound` from now on."""
        for entry in self._entries:
            if entry.name in names:
                if self._tree.ninja(self._targets(entry)).returncode != 0:
                    raise SystemExit(f"{entry.name} cannot be built without a fault")
                failed = entry.run()
                if failed:
                    self.unsound[entry.name] = failed
                    self._say(f"not counted, it fails without a fault too: {failed}")

    def _first_failure(self, fault: Fault, objects: list[str]) -> tuple[str | None, Entry | None]:
        """The kind of check that saw the fault, and the test that did (none: the build)."""
        for targets, entries in self._batches(fault):
            if not self._tree.reach(targets, objects):
                continue
            built = self._tree.ninja(targets)
            if built.returncode != 0:  # such as a program that dies when it is asked for its tests
                return f"the build: {' '.join(targets)[:60]}", None
            for entry in entries:
                failed = entry.run()
                if failed and ("(timeout)" in failed or entry.run()):  # twice: the machine may have been busy
                    return failed, entry
        return None, None

    def _batches(self, fault: Fault):
        """The tests in the order in which they are run, by what is built for them: ([target], [test])."""
        near = words_of(f"{fault.stratum} {fault.path} {_NEAR.get(fault.stratum, '')}")
        stem = words_of(pathlib.PurePath(fault.path).stem)

        def rank(entry: Entry) -> tuple:
            hits = len(near & entry.told) + 2 * len(stem & entry.told)
            hits += self._seen_by.get((fault.stratum, entry.name), 0)
            return COMMANDS.index(entry.command), entry.program not in self._outputs, -hits, entry.cost

        batches = {}
        for entry in sorted((entry for entry in self._entries if entry.name not in self.unsound), key=rank):
            batches.setdefault((entry.command, tuple(self._targets(entry))), []).append(entry)
        return [(list(targets), entries) for (_, targets), entries in batches.items()]

    def _targets(self, entry: Entry) -> list[str]:
        """The targets to build before a test is run: its program, or all programs for a script that is told where they
        are, and the modules that it is told of."""
        texts = [*entry.environment.values(), *entry.words[1:]]
        made = [entry.program] if entry.program in self._outputs else []
        if not made and any(str(self._tree.build) in text for text in texts):
            made = self._programs
        told = [os.path.relpath(value, self._tree.build) for text in texts for value in text.split("=")
                if value.startswith("/")]
        return [*made, *(path for path in told if path in self._outputs and path not in made)]
