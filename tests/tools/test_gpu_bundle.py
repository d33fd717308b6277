"""The bundle for machines with a GPU: what packs it, and what unpacks and runs it there. The programs in it are made up."""

import fnmatch
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

GPU_TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools" / "gpu"
NO_GPU = "edgewise-selfcheck: no GPU: there is no NVIDIA driver"


def has_ended(process: str) -> bool:
    """Also where nobody reaps what has ended, as in a container without an init process."""
    try:
        stat = pathlib.Path("/proc", process, "stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


class GpuBundleTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.contents, self.bundle, self.out = self.root / "contents", self.root / "bundle", self.root / "out"
        self.temporary = self.root / "tmp"
        self.temporary.mkdir()
        (self.contents / "bin").mkdir(parents=True)
        (self.contents / "MANIFEST").write_text("date 2026-01-01\n")
        for name in ("steps.sh", "suites.txt"):
            shutil.copy(GPU_TOOLS / name, self.contents)
        self.tools = self.root / "tools"  # before all others on the path
        self.tools.mkdir()
        self.write_program(self.tools / "nvidia-smi", "exit 9")
        self.write_program(self.contents / "bin" / "edgewise-selfcheck", f"echo '{NO_GPU}'; exit 4")

    def write_program(self, path, commands):
        path.write_text(f"#!{shutil.which('sh')}\n{commands}\n")
        path.chmod(0o755)

    def write_suites(self, commands):
        """A GPU that can be used, and suites that are these commands."""
        self.write_program(self.contents / "bin" / "edgewise-selfcheck", "exit 0")
        for line in (GPU_TOOLS / "suites.txt").read_text().splitlines():
            self.write_program(self.contents / "bin" / f"{line.split()[0]}_test", commands)

    def pack(self, limit_mb=60):
        command = [GPU_TOOLS / "pack.sh", self.contents, self.bundle, str(limit_mb)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def environment(self, **variables):
        path = f"{self.tools}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "TMPDIR": str(self.temporary), "OUT": str(self.out), **variables}

    def run_bundle(self, *steps, **variables):
        command = [shutil.which("bash"), self.bundle / "run.sh", *steps]
        environment = self.environment(**variables)
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)

    def unpacked(self):
        return sorted(path for path in self.temporary.iterdir() if path.name.startswith("edgewise-gpu-"))

    def restrict_path(self, *without):
        """A path that has all that run.sh calls but some."""
        for name in ("awk", "bash", "cat", "cut", "date", "df", "dirname", "env", "find", "gzip", "head", "mkdir", "mktemp", "mv", "python3",
                     "rm", "sed", "sh", "sha256sum", "tail", "tar", "timeout", "touch", "xz"):  # fmt: skip
            if name not in without:
                found = sys.executable if name == "python3" else shutil.which(name)
                self.write_program(self.tools / name, f'exec {found} "$@"')
        return str(self.tools)

    def test_a_bundle_is_three_files_and_runs_whatever_their_modes(self):
        self.assertEqual(self.pack().returncode, 0)
        self.assertEqual({path.name for path in self.bundle.iterdir()}, {"run.sh", "contents.tar.xz", "MANIFEST"})
        (self.bundle / "run.sh").chmod(0o600)
        run = self.run_bundle()
        self.assertEqual(run.returncode, 77, run.stderr)
        self.assertIn(f"GPU tests skipped: {NO_GPU}", run.stdout)
        self.assertEqual({path.name for path in self.bundle.iterdir()}, {"run.sh", "contents.tar.xz", "MANIFEST"})

    def test_too_large_a_bundle_is_refused(self):
        (self.contents / "large").write_bytes(os.urandom(1_500_000))
        self.assertEqual(self.pack(limit_mb=2).returncode, 0)
        packed = self.pack(limit_mb=1)
        self.assertEqual(packed.returncode, 1)
        self.assertIn("larger than the 1 MB", packed.stderr)

    def test_a_folder_that_is_no_bundle_is_not_replaced(self):
        self.bundle.mkdir()
        (self.bundle / "thesis.txt").write_text("mine")
        packed = self.pack()
        self.assertEqual(packed.returncode, 1)
        self.assertIn("is no bundle", packed.stderr)
        self.assertTrue((self.bundle / "thesis.txt").exists())

    def test_unpacks_once_for_each_archive(self):
        self.pack()
        self.assertIn("unpacked into", self.run_bundle().stdout)
        (first,) = self.unpacked()
        (first / "mark").touch()
        self.assertNotIn("unpacked into", self.run_bundle().stdout)
        self.assertTrue((first / "mark").exists())

        self.write_program(self.contents / "bin" / "edgewise-selfcheck", "echo newer; exit 4")
        self.pack()
        run = self.run_bundle()
        self.assertEqual(run.returncode, 77)
        self.assertIn("newer", run.stdout)
        self.assertEqual(len(self.unpacked()), 2)

        os.utime(first, (0, 0))
        self.write_program(self.contents / "bin" / "edgewise-selfcheck", "echo newest; exit 4")
        self.pack()
        self.run_bundle()
        self.assertNotIn(first, self.unpacked())
        self.assertEqual(len(self.unpacked()), 2)

    def test_an_archive_that_was_not_copied_whole_is_refused(self):
        self.pack()
        archive = self.bundle / "contents.tar.xz"
        archive.write_bytes(archive.read_bytes()[:-100])
        run = self.run_bundle()
        self.assertEqual(run.returncode, 3)
        self.assertIn("copy the whole folder again", run.stderr)
        self.assertEqual(self.unpacked(), [])

    def test_unpacks_without_xz_and_says_what_is_needed_without_either(self):
        self.pack()
        run = self.run_bundle(PATH=self.restrict_path("xz", "python3"))
        self.assertEqual(run.returncode, 3)
        self.assertIn("needs xz, or a python3", run.stderr)
        self.assertEqual(self.unpacked(), [])
        run = self.run_bundle(PATH=self.restrict_path("xz"))
        self.assertEqual(run.returncode, 77, run.stderr)

    def test_says_when_there_is_no_room(self):
        self.pack()
        self.write_program(self.tools / "df", "printf 'head\\n/dev/x 100 99 1 99%% /\\n'")
        run = self.run_bundle()
        self.assertEqual(run.returncode, 3)
        self.assertRegex(run.stderr, "has 1 MB left, .* TMPDIR names another folder")
        self.assertEqual(self.unpacked(), [])

    def test_an_archive_that_does_not_unpack_leaves_nothing(self):
        self.pack()
        self.write_program(self.tools / "tar", 'while [ "$1" != -C ]; do shift; done; echo part >"$2/part"; exit 2')
        run = self.run_bundle()
        self.assertEqual(run.returncode, 3)
        self.assertIn("cannot be unpacked", run.stderr)
        self.assertEqual(self.unpacked(), [])

    def summary(self):
        return (self.out / "summary.txt").read_text()

    def test_steps_end_in_one_table(self):
        self.write_suites('case $0 in *backend_caps_test) echo broken; exit 1 ;; esac; test -n "$EDGEWISE_TESTDATA"')
        self.pack()
        run = self.run_bundle("tests")
        self.assertEqual(run.returncode, 1)
        self.assertTrue(run.stdout.endswith(self.summary()))
        self.assertRegex(self.summary(), r"tests backend_caps +FAILED: status 1 ")
        suites = [line.split() for line in (GPU_TOOLS / "suites.txt").read_text().splitlines()]
        self.assertEqual(self.summary().count(" passed "), sum(len(precisions) for _, *precisions in suites) - 1)
        self.assertRegex(self.summary(), r"tests budget bf16 +passed ")
        with tarfile.open(self.out / "logs.tar.gz") as logs:
            self.assertEqual(logs.extractfile("./tests_backend_caps.log").read(), b"broken\n")

    def test_steps_run_tests_that_are_there(self):
        sources = [path.read_text() for path in (GPU_TOOLS.parents[1] / "tests" / "kernels").glob("*_test.cc")]
        tests = [".".join(name) for source in sources for name in re.findall(r"^TEST_P\((\w+), (\w+)\)", source, re.M)]
        filters = re.findall(r"gtest_filter='([^']+)'", (GPU_TOOLS / "steps.sh").read_text())
        self.assertEqual(len(filters), 2)
        for pattern in ":".join(filters).split(":"):
            self.assertTrue(fnmatch.filter(tests, pattern), f"no test is named {pattern}")

    def test_steps_end_within_400_seconds_and_the_first_of_them_together(self):
        script = (GPU_TOOLS / "steps.sh").read_text()
        seconds = {step: int(limit) for step, limit in re.findall(r"\[(\w+)\]=(\d+)", script)}
        self.assertEqual(set(seconds) - {"device"}, set(re.findall(r"^run_(\w+)\(\)", script, re.MULTILINE)))
        to_kill = 5
        self.assertLessEqual(max(seconds.values()) + to_kill, 400)
        first = ("device", "selfcheck", "products", "tests", "models")
        self.assertLessEqual(sum(seconds[step] + to_kill for step in first), 400)

    def write_clock(self):
        """A file with the seconds that `date` tells."""
        clock = self.root / "clock"
        clock.write_text("1000")
        self.write_program(self.tools / "date", f"cat {clock}")
        return clock

    def test_parts_of_a_step_share_its_seconds_and_the_next_step_has_its_own(self):
        clock = self.write_clock()
        # Each suite takes 50 of the 180 seconds.
        self.write_suites(f'case "$*" in *RowsInAnyNumber*) exit 0 ;; esac; echo $(($(cat {clock}) + 50)) >{clock}')
        self.pack()
        run = self.run_bundle("tests", "products")
        self.assertEqual(run.returncode, 1)
        lines = [line for line in self.summary().splitlines() if line.startswith("tests ")]
        self.assertEqual([line.split("  ")[0] for line in lines if " passed " in line],
                         [f"tests {line.split()[0]}" for line in (GPU_TOOLS / "suites.txt").read_text().splitlines()[:4]])
        self.assertRegex(lines[4], "not run: out of time")
        self.assertRegex(self.summary(), r"products +passed ")

    def write_models(self, commands):
        """The benchmark of models is these commands, and nothing else is wrong."""
        self.write_suites("exit 0")
        (self.contents / "bench/gpu").mkdir(parents=True)
        (self.contents / "bench/gpu/models_gpu.py").write_text(commands)

    def test_models_are_timed_with_what_is_in_the_bundle(self):
        self.write_models("import sys; print(*sys.argv[1:]); open(sys.argv[sys.argv.index('--json') + 1], 'w')")
        self.pack()
        run = self.run_bundle("models", EDGEWISE_GPU_SECONDS="100", EDGEWISE_GPU_DEVICE="cuda:1")
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertRegex(self.summary(), r"models +passed ")
        (unpacked,) = self.unpacked()
        self.assertIn(f"--bin {unpacked}/bin --library_path {unpacked}/lib:", run.stdout)
        self.assertIn(f"--models {unpacked}/models --device cuda:1", run.stdout)
        self.assertTrue((self.out / "models_gpu.json").exists())
        within = int(re.search(r"--seconds (\d+)", run.stdout)[1])
        self.assertLessEqual(within, 75)  # 20 are for closing, and 5 for what it has to say
        self.assertGreater(within, 30)

    def test_figures_are_of_layers_and_then_of_models(self):
        self.write_models("import sys; print('models of', *sys.argv[1:])")
        (self.contents / "bench/gpu/attention_gpu.py").write_text("import sys; print('layers of', *sys.argv[1:])")
        self.pack()
        run = self.run_bundle("figures", EDGEWISE_GPU_SECONDS="100")
        self.assertEqual(run.returncode, 0, run.stdout)
        (unpacked,) = self.unpacked()
        self.assertIn(f"layers of --layers --ours {unpacked}/bin/libedgewise_gpu_bench.so", run.stdout)
        self.assertIn(f"models of --figures --bin {unpacked}/bin", run.stdout)
        self.assertRegex(self.summary(), r"figures layers +passed .*\nfigures models +passed ")

    def test_models_that_fail_are_told(self):
        self.write_models("import sys; sys.exit(1)")
        self.pack()
        self.assertEqual(self.run_bundle("models").returncode, 1)
        self.assertRegex(self.summary(), r"models +FAILED: status 1 ")

    def write_timeout(self, suite, commands):
        """A `timeout` before the real one, which does these commands for a suite."""
        self.write_program(
            self.tools / "timeout",
            f'case "$*" in *{suite}_test*) {commands} ;; esac\nexec {shutil.which("timeout")} "$@"',
        )

    def wait_for(self, condition):
        deadline = time.monotonic() + 60  # a test that fails ends
        while not condition():
            self.assertLess(time.monotonic(), deadline, "what is waited for does not come")
            time.sleep(0.01)

    def test_a_step_that_hangs_is_ended(self):
        self.write_suites(f"case $0 in *backend_caps_test) exec {shutil.which('sleep')} 500 ;; esac")
        self.pack()
        run = self.run_bundle("tests", EDGEWISE_GPU_TIME_SCALE="0.02")  # 2 seconds for each suite, 4 for all
        self.assertEqual(run.returncode, 1)
        self.assertRegex(self.summary(), r"tests backend_caps +FAILED: over [12] s ")
        self.assertRegex(self.summary(), r"tests generation bf16 ")

    def test_a_step_that_hangs_leaves_time_for_the_table(self):
        self.write_suites("exit 0")
        clock = self.write_clock()
        self.write_timeout("backend_caps", f"echo $((1000 + $2)) >{clock}; exit 124")  # its limit has passed
        self.pack()
        run = self.run_bundle("tests", "server", EDGEWISE_GPU_SECONDS="50")  # of which 20 are for closing
        self.assertEqual(run.returncode, 1)
        self.assertRegex(self.summary(), r"tests backend_attention +passed ")
        self.assertRegex(self.summary(), r"tests backend_caps +FAILED: over 30 s ")
        self.assertRegex(self.summary(), r"tests golden +not run: out of time ")
        self.assertRegex(self.summary(), r"server starts +not run: out of time ")

    def test_a_step_that_cannot_be_killed_leaves_the_table(self):
        self.write_suites("exit 0")
        stuck, asleep = self.root / "stuck", self.root / "asleep"
        # As timeout, whose program is stuck in the driver.
        self.write_timeout("golden", f"trap '' TERM; echo $$ >{stuck}; exec {shutil.which('sleep')} 500")
        # The alarm's time has passed as soon as the step is stuck.
        self.write_program(
            self.tools / "sleep", f"echo $1 >{asleep}; until [ -s {stuck} ]; do {shutil.which('sleep')} 0.01; done"
        )
        self.pack()
        run = self.run_bundle("tests", EDGEWISE_GPU_SECONDS="570")
        os.kill(int(stuck.read_text()), signal.SIGKILL)
        self.assertEqual(run.returncode, 130)
        self.assertEqual(asleep.read_text(), "558\n")
        self.assertRegex(self.summary(), r"tests backend_caps +passed ")
        self.assertRegex(self.summary(), r"tests golden +FAILED: cut off ")
        self.assertTrue((self.out / "logs.tar.gz").exists())

    def test_what_is_cut_off_leaves_its_table_and_logs(self):
        begun = self.root / "begun"
        self.write_suites(f"case $0 in *backend_caps_test) touch {begun}; exec {shutil.which('sleep')} 500 ;; esac")
        self.pack()
        command = [shutil.which("bash"), self.bundle / "run.sh", "tests"]
        run = subprocess.Popen(command, env=self.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(run.wait)
        self.addCleanup(run.kill)
        self.wait_for(begun.exists)
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(timeout=60), 130)
        self.assertRegex(self.summary(), r"tests backend_attention +passed ")
        self.assertRegex(self.summary(), r"tests backend_caps +FAILED: cut off ")
        with tarfile.open(self.out / "logs.tar.gz") as logs:
            self.assertIn("./tests_backend_caps.log", logs.getnames())

    def test_the_alarm_of_a_run_that_ends_in_time_does_not_stay(self):
        asleep = self.root / "asleep"
        self.write_program(self.tools / "sleep", f"echo $$ >{asleep}; exec {shutil.which('sleep')} 500")
        self.write_program(self.tools / "timeout", f"until [ -s {asleep} ]; do {shutil.which('sleep')} 0.01; done; exit 0")
        self.pack()
        self.run_bundle("selfcheck", EDGEWISE_GPU_SECONDS="570")
        self.wait_for(lambda: has_ended(asleep.read_text().strip()))

    def test_an_unknown_step_is_named(self):
        self.pack()
        run = self.run_bundle("tests", "benhc")
        self.assertEqual(run.returncode, 2)
        self.assertIn("found: benhc", run.stderr)


if __name__ == "__main__":
    unittest.main()
