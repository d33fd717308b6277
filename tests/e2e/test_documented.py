"""The commands of README and the documentation, run as they stand against the built server: every line of their `sh`
blocks is run, or named in NOT_RUN; one that is neither fails. A line that starts a server starts one on a free port, which the lines behind ask.
The numbers of README, docs/performance.md and docs/overload.md are those that their files of results hold."""

import glob
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

import made_checkpoints
from edgewise_process import BIN, ROOT, Server

# Commands by how they begin; each may write to its folder only. What is not run has the reason beside it.
RUN = ("mkdir -p models/minilm/1 && cp -rLv all-MiniLM-L6-v2/. models/minilm/1/", "build/bin/edgewise ", "edgewise ", "tools/convert.py ", "build/bin/edgewise-server ", "./dev serve",
       "curl -s http://127.0.0.1:8000/", "python3 client/python/src/edgewise/plot.py ")
NOT_RUN = {
    "./dev demo": "builds; the test e2e_demo runs what it runs then",
    "./dev test": "runs this test",
    "./dev build": "builds; this test needs what it builds",
    "./dev bench": "takes minutes",
    "./dev evaluate": "takes minutes",
    "tools/evaluate_encoder.py": "takes minutes, needs a sentence encoder",
    "cmake --install": "the test client.find_package runs it",
    "sudo apt-get install": "changes the machine",
    "pip install": "changes the machine; the tests of the Python client install it",
    "python3 -c 'import json, lra_config": "needs the code of the SBM-Transformer authors",
    "python3 data/shakespeare_char/prepare.py": "needs nanoGPT",
    "python3 train.py": "needs nanoGPT and PyTorch",
    "python tools/train/": "takes minutes, needs PyTorch",
}
# Documents about other machines: the container (./dev container-test) and machines with a GPU (./dev gpu-test).
NOT_HERE = {"docs/deploy.md", "docs/gpu.md"}
DOCUMENTS = ["README.md", "client/python/README.md", "examples/README.md", *(
    path for path in sorted(glob.glob("docs/*.md", root_dir=ROOT)) if path not in NOT_HERE)]


def read(document: str) -> str:
    with open(os.path.join(ROOT, document), encoding="utf-8") as file:
        return file.read()


def commands(text: str) -> list:
    """The commands of a Markdown text's `sh` blocks; continued lines are one."""
    found = []
    for block in re.findall(r"^```(?:sh|bash|shell|console)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        lines = block.replace("\\\n", " ").splitlines()
        found += [line.strip() for line in lines if shlex.split(line, comments=True)]
    return found


def served(command: str):
    """Whose models a command that starts a server serves: (NAME or "" for a repository, folder); else None."""
    words = shlex.split(command, comments=True)
    if words[:2] == ["./dev", "serve"]:
        return "", "examples/models"
    if os.path.basename(words[0]) != "edgewise-server":
        return None
    flag, _, value = " ".join(words[1:]).partition(" " if words[1] == "--model" else "=")
    assert flag in ("--model", "--model_repository") and " " not in value, f"flags that are not passed on: {command}"
    return tuple(value.split("=")) if flag == "--model" else ("", value)


class Checkout:
    """A folder that looks like a checkout after the build, which commands may write to, with checkpoints to convert."""

    def __init__(self, folder: str):
        self.path = os.path.join(folder, "edgewise")
        os.makedirs(os.path.join(self.path, "build"))
        for name in os.listdir(ROOT):
            if name not in ("build", "models"):
                os.symlink(os.path.join(ROOT, name), os.path.join(self.path, name))
        os.symlink(BIN, os.path.join(self.path, "build", "bin"))
        made_checkpoints.write(self.path)
        self.server = None

    def serve(self, name: str, folder: str) -> None:
        self.stop()
        folder = os.path.join(self.path, folder)
        http = "--http_listen=127.0.0.1:0"
        self.server = (Server("", f"--model={name}={folder}", http) if name else Server(folder, http)).__enter__()

    def run(self, command: str) -> subprocess.CompletedProcess:
        environment = {**os.environ, "PATH": f"{BIN}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
        environment["EDGEWISE_SERVER"] = self.server.address if self.server else "127.0.0.1:1"
        if self.server:
            command = command.replace("127.0.0.1:8000", self.server.http_address)
        return subprocess.run(["bash", "-c", command], cwd=self.path, env=environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=200, check=False)

    def stop(self) -> None:
        if self.server:
            self.server.stop()
            self.server = None


class DocumentedTest(unittest.TestCase):
    def run_all(self, document: str) -> int:
        """Runs a document's commands in order, and gives how many; a server of the examples runs from the start."""
        lines = [command for command in commands(read(document)) if not command.startswith(tuple(NOT_RUN))]
        if not lines:
            return 0
        with tempfile.TemporaryDirectory() as folder:
            checkout = Checkout(folder)
            self.addCleanup(checkout.stop)
            checkout.serve("", "examples/models")
            for command in lines:
                with self.subTest(document=document, command=command):
                    self.assertTrue(command.startswith(RUN), "neither run nor named in NOT_RUN")
                    if "/plot.py" in command and importlib.util.find_spec("matplotlib") is None:
                        self.skipTest("no Matplotlib: apt-get install python3-matplotlib")
                    models = served(command)
                    if models:
                        checkout.serve(*models)
                        self.check_models(checkout)
                    else:
                        self.check_command(checkout, command)
            checkout.stop()
        return len(lines)

    def check_command(self, checkout: Checkout, command: str) -> None:
        run = checkout.run(command)
        self.assertEqual(run.returncode, 0, run.stdout[-1000:] + run.stderr)
        written = re.findall(r"(?:>|--?o) (\S+)$", command)    # JSON or a picture
        self.assertTrue(run.stdout or written)
        for file in written:
            self.assertGreater(os.path.getsize(os.path.join(checkout.path, file)), 0)
        if command.startswith("curl "):
            self.assertNotIn("error", json.loads(run.stdout))
            self.assertNotIn("code", json.loads(run.stdout))

    def check_models(self, checkout: Checkout) -> None:
        """Every version in the repository is ready."""
        models = json.loads(checkout.run("edgewise models --json").stdout)["models"]
        self.assertTrue(models)
        for model in models:
            self.assertEqual(model["state"], "READY", model)

    def test_the_readme(self):
        self.assertGreater(self.run_all("README.md"), 2)

    def test_the_other_documents(self):
        ran = {document: self.run_all(document) for document in DOCUMENTS if document != "README.md"}
        self.assertGreater(ran["docs/convert.md"], 5, ran)
        self.assertGreater(ran["docs/cli.md"], 8, ran)

    def test_commands_are_found(self):
        text = "```sh\na b   # why\n# a remark\n\nc \\\n  'd#e'\n```\n```\nno command\n```\n"
        self.assertEqual(commands(text), ["a b   # why", "c    'd#e'"])

    def test_the_first_prediction_prints_what_is_shown(self):
        shown = re.search(r"The first `predict` prints\n\n```\n(.*?)```", read("docs/cli.md"), re.DOTALL)[1].splitlines()
        command = next(command for command in commands(read("docs/cli.md")) if " predict " in command)
        with tempfile.TemporaryDirectory() as folder:
            checkout = Checkout(folder)
            self.addCleanup(checkout.stop)
            checkout.serve("", "examples/models")
            printed = checkout.run(command).stdout.splitlines()
            checkout.stop()

        def words(lines: list, *but: str) -> list:
            return [line for line in lines if line.split()[0] not in but]

        self.assertEqual([line.split()[0] for line in printed], [line.split()[0] for line in shown])
        device = words(shown, *(line.split()[0] for line in shown if not line.startswith("device")))
        if device[0] in printed:  # else the last digits may differ
            self.assertEqual(words(printed, "time"), words(shown, "time"))


class ResultsTest(unittest.TestCase):
    """The numbers of docs/performance.md and docs/overload.md against the files that are named there."""

    def setUp(self):
        self.text = read("docs/performance.md") + read("docs/overload.md")

    def test_the_readme_repeats_them(self):
        readme = " ".join(read("README.md").split())
        attention = dict(zip(self.row("density"), self.row("4,096 tokens")))
        for pattern, shown in (
                (r"counted: ([\d.]+) times as fast at 1 %", attention["1 %"]),
                (r"at 1 % density, ([\d.]+) times at 10 %", attention["10 %"]),
                (r"([\d.]+) times as fast on one text", self.row("BERT-base and MiniLM, one text of 16 to 512 tokens")[0].split()[0]),
                (r"([\d.]+) times on 16 calls at once", self.row("the same, 16 calls at once")[0].split()[0]),
                (r"writes ([\d.]+) times as fast", self.row("GPT-2 small, decode")[0]),
                (r"it answers ([\d.]+) of its peak", self.row("answered in time, over the peak")[-1])):
            with self.subTest(pattern):
                self.assertEqual(re.findall(pattern, readme), [shown])
        soak, = re.findall(r"bench/results/\S+-soak\.json", readme)
        figures = [json.loads(line) for line in read(soak).splitlines()[1:]][0]["figures"]
        self.assertEqual(re.findall(r"([\d,]+) answers under a mixed load", readme), [f"{figures['answered']:,}"])
        self.assertEqual(figures["wrong_answers"] + figures["crossed"], 0)

    def results(self, benchmark: str) -> dict:
        named = re.findall(rf"bench/results/\S+-{benchmark}\.json", self.text)
        self.assertEqual(len(named), 1, benchmark)
        return json.loads(read(named[0]))

    def check(self, shown: list, measured: list) -> None:
        """Each number is the measured one, rounded to the digits that are shown."""
        self.assertEqual(len(shown), len(measured))
        for text, value in zip(shown, measured):
            self.assertEqual(text, f"{value:.{len(text.partition('.')[2])}f}", (shown, measured))

    def row(self, label: str) -> list:
        return [cell.strip() for cell in re.search(rf"^\| {re.escape(label)} \|(.*)\|", self.text, re.MULTILINE)[1].split("|")]

    def test_attention(self):
        tables = {n: [row for row in self.results(f"attention{suffix}")["rows"]
                      if (row["n"], row["d"], row["rank"]) == (n, 64, 128)]
                  for n, suffix in ((1024, ""), (4096, "_4096"), (16384, "_16384"))}
        densities = [float(cell.rstrip(" %")) for cell in self.row("density")]
        for n, rows in tables.items():
            self.assertEqual(densities, [round(100 * row["target_density"], 2) for row in rows])
            self.check(self.row(f"{n:,} tokens"), [row["speedup_with_memberships"] for row in rows])
        self.check(self.row("4,096 tokens, without the memberships' computation"),
                   [row["speedup_over_dense"] for row in tables[4096]])
        peaks = [100 * row["dense_peak_share"] for rows in tables.values() for row in rows]
        low, high = re.search(r"ran at (\d+) to (\d+) % of", self.text).groups()
        self.check([low, high], [min(peaks), max(peaks)])

    def test_growth(self):
        rows = self.results("growth")["rows"]
        rows = rows[:len(rows) // 2]  # those of 64 edges a row
        times, memory = ([after[key] / before[key] for before, after in zip(rows, rows[1:]) if before["n"] >= 4096]
                         for key in ("milliseconds", "kilobytes"))
        longest = [row for row in rows if row["dense_milliseconds"] > 0][-1]
        self.assertEqual(longest["n"], 16384)
        low, high, most, dense = re.search(
            r"takes ([\d.]+) to ([\d.]+) times as long and at most ([\d.]+) times the memory; dense attention takes ([\d.]+)",
            " ".join(self.text.split())).groups()
        self.check([low, high, most, dense],
                   [min(times), max(times), max(memory), longest["dense_milliseconds"] / longest["milliseconds"]])

    def test_products(self):
        self.check(re.findall(r"`mm` takes ([\d.]+) times as long", self.text), [self.results("products")["geometric_mean"]])

    def test_peers(self):
        formats = [cell.strip("`") for cell in self.row("the others' best time / ours: geometric mean (least)")]
        results = [self.results(f"models_{weights}") for weights in formats]
        for label, task in (
                ("BERT-base and MiniLM, one text of 16 to 512 tokens", "dense encoder"),
                ("the same, 16 texts of 16 to 512 tokens, one after another", "mixed lengths, 1 at a time"),
                ("the same, 16 calls at once", "16 texts of mixed lengths"),
                ("GPT-2 small, prefill of 32 and 512 tokens", "prefill"),
                ("GPT-2 small, decode", "decode"),
                ("GPT-2 small, prefill of 32 and 128 tokens, 16 at once", "prefill, 16 at once"),
                ("GPT-2 small, 32 tokens after 32, 16 at once", "generate, 16 at once")):
            for cell, found in zip(self.row(label), results, strict=True):
                measured = next(value for name, value in found["figures"].items() if name.startswith(f"{task}, wall"))
                numbers = [measured["geometric_mean"], measured["least"]]
                self.check(re.findall(r"[\d.]+", cell), numbers[:min(2, measured["rows"])])
        shown = re.search(r"read its weights at (.*?) of the rate", self.text)[1]
        self.check(re.findall(r"[\d.]+", shown),
                   [next(row["bandwidth_share"] for row in found["rows"] if "bandwidth_share" in row) for found in results])

    def test_kinds(self):
        rows = {row["name"]: row for row in self.results("kinds")["rows"]}
        kinds = ("causal dense", "windows 4", "windows 8", "windows 16", *(f"causal windows {w}" for w in (4, 8, 16)))
        self.check(self.row("share of the time of dense (causal dense) attention"), [rows[kind]["ratio"] for kind in kinds])
        self.assertIn("Blocks cost at most in proportion to their number", self.text)
        for name, row in rows.items():
            if name.startswith("blocks"):
                self.assertLessEqual(row["ratio"], row["edges"] / rows[row["base"]]["edges"], name)

    def test_ensemble(self):
        results = self.results("ensemble")
        self.check(re.findall(r"(\d+) samples .*? take ([\d.]+) times", self.text)[0], [results["samples"], results["ratio"]])

    def test_generate(self):
        results = self.results("generate")
        self.check(re.findall(r"tokens (\d+) times as fast", self.text),
                   [results["tokens_per_second"] / results["peer_tokens_per_second"]])

    def scenario(self, benchmark: str) -> dict:
        """The figures of each case: JSON lines, the first about the run."""
        named = re.findall(rf"bench/results/\S+-{benchmark}\.json", self.text)
        self.assertEqual(len(named), 1, benchmark)
        rows = [json.loads(line) for line in read(named[0]).splitlines()[1:]]
        return {row["case"]: row for row in rows}

    def test_overload(self):
        rows = self.scenario("overload")
        self.check(self.row("answered in time, over the peak"),
                   [rows[f"long {factor}x"]["figures"]["goodput_over_peak"] for factor in (2, 5, 10)])
        rows = self.scenario("overload_sentiment")
        self.check(self.row("in time on a shared core, over the peak"),
                   [rows[f"sentiment shared {factor}x"]["figures"]["goodput_over_peak"] for factor in (1, 1.5, 2)])

    def test_generations(self):
        rows = self.scenario("generations")
        for label, name in (("10.8 M parameters", "nano"), ("the shape of GPT-2 small", "gpt2")):
            self.check(self.row(label), [rows[f"{name} {count}"]["figures"]["over_one"] for count in (4, 16)])

    def test_scenarios_of_one_figure(self):
        mixed = {case: row["figures"] for case, row in self.scenario("mixed").items()}
        fronts = {case: row["goals"]["http_over_grpc"]["found"] for case, row in self.scenario("http").items()}
        fit = [row for case, row in self.scenario("fit_deadline").items() if not case.startswith("edges")]
        for shown, figure in (
                (r"tokens together: ([\d.]+) times", mixed["lengths"]["inputs_over_padded"]),
                (r"is ([\d.]+) ms higher", mixed["sentiment priority 1"]["p99_above_unloaded_ms"]),
                (r"and ([\d.]+) ms higher", mixed["sentiment beside gpt2"]["p99_above_unloaded_ms"]),
                (r"with 200 ms, (\d+) %", 100 * self.scenario("fairness")["polite beside greedy"]["figures"]["in_time"]),
                (r"serves ([\d.]+) times",
                 self.scenario("degraded")["by consent"]["goals"]["served_over_all_or_nothing"]["found"]),
                (r"([\d.]+) % of deadlines", 100 * min(row["figures"]["met"] for row in fit)),
                (r"at least ([\d.]+) of the samples", min(row["goals"]["chosen_over_largest"]["found"] for row in fit)),
                (r"at most (\d+) MiB of 256", max(row["goals"]["resident_over_idle_mib"]["found"] for case, row in
                                                  self.scenario("hostile_http").items() if case.startswith("http"))),
                (r"over gRPC is at most ([\d.]+) ms above", max(row["goals"]["p99_more_ms"]["found"] for case, row in
                                                         self.scenario("hostile_http").items() if case.startswith("http"))),
                (r"and over gRPC: ([\d.]+) and", fronts["embeddings"]),
                (r"and over gRPC: [\d.]+ and ([\d.]+) times", fronts["chat"])):
            with self.subTest(shown=shown):
                self.check(re.findall(shown, self.text), [figure])


if __name__ == "__main__":
    unittest.main()
