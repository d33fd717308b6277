"""Metrics are valid from the first scrape, and a real Prometheus counts exactly the requests that were made."""

import contextlib
import gzip
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import unittest
import urllib.parse
import urllib.request

from edgewise_process import EXAMPLES, HANG, ROOT, TESTDATA, Server, series, total, wait_until
from rpc import Rpc, pb

PROMTOOL = shutil.which("promtool")
PROMETHEUS = shutil.which("prometheus")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def read(path: str) -> str:
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def documented_queries() -> list:
    """Every query of docs/metrics.md and docs/deploy.md."""
    blocks = re.findall(r"```promql\n(.*?)```", read("docs/metrics.md"), re.DOTALL)
    queries = [line for block in blocks for line in block.splitlines() if line and not line.startswith("#")]
    return queries + re.findall(r"^\| [^|]*\| `([^`]*edgewise_[^`]*\[[^`]*)` \|$", read("docs/deploy.md"), re.MULTILINE)


def documented_labels() -> dict:
    """{metric: its labels} of the table of docs/metrics.md; those of a model are left out."""
    labels = {}
    for names, further in re.findall(r"^\| (`edgewise_[^|]*)\|[^|]*\|([^|]*)\|", read("docs/metrics.md"), re.MULTILINE):
        # As "code", "device, kind: weights" or "kind: tokens, certificates; result: ok, error".
        found = {name.strip() for part in further.split(";") for name in part.split(":")[0].split(",")} - {""}
        labels.update({name: found for name in re.findall(r"`(\w+)`", names)})
    return labels


def model_with_shadow(folder: str) -> None:
    """<folder>/shadowed/1: the model `sbm` with a shadow of every request."""
    version = os.path.join(folder, "shadowed", "1")
    shutil.copytree(os.path.join(TESTDATA, "sbm", "1"), version)
    path = os.path.join(version, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config["shadow"] = {"profile": "none", "share": 1.0}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)


@contextlib.contextmanager
def prometheus_of(server: Server, folder: str):
    """A Prometheus that scrapes the server; gives a function that asks it: the result of an expression, or None."""
    port = free_port()
    config = os.path.join(folder, "prometheus.yml")
    with open(config, "w", encoding="utf-8") as file:
        file.write("global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
                   "scrape_configs:\n"
                   "- job_name: edgewise\n"
                   f"  static_configs: [{{targets: ['{server.metrics_address}']}}]\n")
    process = subprocess.Popen(
        [PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
         f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ask(expression: str):
        url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(url, timeout=HANG) as response:
                return json.load(response)["data"]["result"]
        except OSError:
            return None

    try:
        yield ask
    finally:
        process.terminate()
        process.wait(timeout=HANG)


class MetricsTest(unittest.TestCase):
    @unittest.skipUnless(PROMTOOL, "promtool (package prometheus) is missing")
    def test_promtool_accepts_the_first_scrape_and_a_later_one(self):
        with Server(TESTDATA) as server:
            for _ in range(2):
                check = subprocess.run([PROMTOOL, "check", "metrics"], input=server.metrics(), capture_output=True,
                                       text=True, timeout=60, check=False)
                self.assertEqual((check.returncode, check.stdout + check.stderr), (0, ""))
                server.predict("--model", "sbm", "--token_ids", "1,2,3")

    def test_every_series_of_a_model_exists_before_its_first_request(self):
        with Server(TESTDATA) as server:
            before = server.metrics()
            server.predict("--model", "sbm", "--token_ids", "1,2,3", "--samples", "4", "--max_density", "0.5")
            server.cli("predict", "--model", "sbm", "--token_ids", "999999")
            after = server.metrics()
        names = {line.split("{")[0].split(" ")[0] for line in after.splitlines() if not line.startswith("#")}
        for name in sorted(names):
            if name.startswith("edgewise_"):
                self.assertEqual(set(series(before, name)), set(series(after, name)), name)

    def test_counters_move_by_exactly_the_requests_made(self):
        with Server(TESTDATA) as server:
            self.make_requests(server)
            self.check(server.metrics())

    def check_seconds(self, seconds: float, microseconds: list) -> None:
        """That a sum is that of these times, which answers round down to whole microseconds."""
        rounded_off = seconds * 1e6 - sum(microseconds)
        self.assertGreater(rounded_off, -0.01)
        self.assertLess(rounded_off, len(microseconds) + 0.01)

    def test_seconds_of_the_histograms_are_those_of_the_answers(self):
        with Server(TESTDATA) as server:
            rpc = Rpc(server)
            text = pb.Sequence(token_ids=pb.TokenIds(values=[1, 2, 3, 4]))
            request = pb.PredictRequest(model="sbm", inputs=[pb.Input(sequence=text)] * 50,
                                        ensemble=pb.Ensemble(samples=20))
            timings = []
            for priority in (1, 2, 3, 3, 3):
                request.priority = priority
                timings.append(rpc.predict(request).timing)
            generated = [rpc.generate(pb.GenerateRequest(model="lm-dense", prompt=text, max_new_tokens=5))[-1].timing
                         for _ in range(4)]
            rpc.close()
            metrics = server.metrics()
        self.assertGreater(timings[0].compute_us, 100)
        for model, of_model in (("sbm", timings), ("lm-dense", generated)):
            queue = "edgewise_queue_duration_seconds"
            self.assertEqual(total(metrics, queue + "_count", model=model), len(of_model))
            self.check_seconds(total(metrics, queue + "_sum", model=model), [timing.queue_us for timing in of_model])
            self.check_seconds(total(metrics, "edgewise_stage_seconds_total", model=model, stage="forward"),
                               [timing.compute_us for timing in of_model])
        # Time after the answer's last look at the clock counts in the metric alone.
        for series, model, totals in (("request", "sbm", timings), ("generation", "lm-dense", generated)):
            name = f"edgewise_{series}_duration_seconds"
            self.assertEqual(total(metrics, name + "_count", model=model), len(totals))
            self.assertGreaterEqual(total(metrics, name + "_sum", model=model) * 1e6 + 0.01,
                                    sum(timing.total_us for timing in totals))

    def make_requests(self, server: Server) -> None:
        """7 good requests on `sbm`, 3 on `sbm-pair`, 4 bad ones on `sbm`, 2 on a model that does not exist."""
        self.edges = self.pairs = 0.0
        for _ in range(7):
            edges = server.predict("--model", "sbm", "--token_ids", "1,2,3,4")["predictions"][0]["edges"]
            self.edges += float(edges["edges"])
            self.pairs += float(edges["pairs"])
        for _ in range(3):
            server.predict("--model", "sbm-pair", "--token_ids", "1,2", "--second_token_ids", "3")
        for _ in range(4):
            self.assertEqual(server.cli("predict", "--model", "sbm", "--token_ids", "999999").returncode, 1)
        for _ in range(2):
            self.assertEqual(server.cli("predict", "--model", "nobody", "--token_ids", "1").returncode, 1)

    def check(self, text: str) -> None:
        self.assertEqual(total(text, "edgewise_requests_total", model="sbm", code="OK"), 7)
        self.assertEqual(total(text, "edgewise_requests_total", model="sbm", code="INVALID_ARGUMENT"), 4)
        self.assertEqual(total(text, "edgewise_requests_total", model="sbm-pair", code="OK"), 3)
        self.assertEqual(total(text, "edgewise_requests_total", model="_other", code="NOT_FOUND"), 2)
        self.assertEqual(total(text, "edgewise_requests_total"), 16)
        self.assertEqual(total(text, "edgewise_attention_edges_total", model="sbm"), self.edges)
        self.assertEqual(total(text, "edgewise_attention_pairs_total", model="sbm"), self.pairs)
        self.assertEqual(total(text, "edgewise_input_density_ratio_count", model="sbm"), 7)

    @unittest.skipUnless(PROMETHEUS, "prometheus is missing")
    def test_a_real_prometheus_sees_the_same_numbers(self):
        with Server(TESTDATA) as server, tempfile.TemporaryDirectory() as folder:
            self.make_requests(server)
            with prometheus_of(server, folder) as ask:
                def query(expression: str) -> float:
                    result = ask(expression)
                    return float(result[0]["value"][1]) if result else -1.0

                wait_until("Prometheus to scrape the server",
                           lambda: query("up") == 1.0 and query("sum(edgewise_requests_total)") >= 0)
                self.assertEqual(query("sum(edgewise_requests_total)"), 16)
                self.assertEqual(query('sum(edgewise_requests_total{model="sbm",code="OK"})'), 7)
                self.assertEqual(query('sum(edgewise_requests_total{code="INVALID_ARGUMENT"})'), 4)
                self.assertEqual(query('sum(edgewise_attention_edges_total{model="sbm"})'), self.edges)
                density = query('sum(edgewise_attention_edges_total{model="sbm"})'
                                ' / sum(edgewise_attention_pairs_total{model="sbm"})')
                self.assertAlmostEqual(density, self.edges / self.pairs)

    def test_a_model_has_at_most_120_series(self):
        for repository in (TESTDATA, EXAMPLES):
            with Server(repository) as server:
                page = server.metrics()
            counts = {}
            for line in page.splitlines():
                model = re.search(r'[{,]model="([^"]*)"', line)
                if model:
                    counts[model[1]] = counts.get(model[1], 0) + 1
            self.assertGreater(len(counts), 9)
            for model, count in counts.items():
                self.assertLessEqual(count, 120, model)
            for name in {line.split("_bucket{")[0] for line in page.splitlines() if "_bucket{" in line}:
                boundaries = {pair for labels in series(page, name + "_bucket") for pair in labels if pair[0] == "le"}
                self.assertLessEqual(len(boundaries), 10, name)

    def test_a_client_that_takes_gzip_gets_it(self):
        with Server(TESTDATA) as server:
            request = urllib.request.Request(f"http://{server.metrics_address}/metrics",
                                             headers={"Accept-Encoding": "gzip;q=1.0,*;q=0.1"})
            with urllib.request.urlopen(request, timeout=HANG) as response:
                packed = response.read()
                self.assertEqual(response.headers["Content-Encoding"], "gzip")
            plain = server.metrics().encode()
        page = gzip.decompress(packed)
        self.assertEqual(page.count(b"\n"), plain.count(b"\n"))
        self.assertLess(5 * len(packed), len(page))

    def test_what_the_documents_name_is_on_a_page_with_its_labels(self):
        with tempfile.TemporaryDirectory() as folder:
            model_with_shadow(folder)
            shutil.copytree(os.path.join(TESTDATA, "lm-dense"), os.path.join(folder, "lm-dense"))
            with Server(folder, "--http_listen=127.0.0.1:0") as server:
                page = server.metrics()
        families = {}  # {name without _sum and the like: its labels}
        for name, labels in re.findall(r"^(edgewise_\w+?)(?:_bucket|_sum|_count)?(?:\{(.*)\})? ", page, re.MULTILINE):
            families.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
        documented = documented_labels()
        self.assertEqual(set(documented), set(families))
        for name, labels in documented.items():
            of_model = {"model", "version"} if "model" in families[name] else set()
            self.assertEqual(families[name] - {"le"} - of_model, labels, name)
        queries = documented_queries()
        self.assertGreater(len(queries), 15)
        for query in queries:
            names = set(re.findall(r"edgewise_\w+", query))
            self.assertTrue(names, query)
            used = set()
            for name in names:
                self.assertRegex(page, rf"(?m)^{name}[{{ ]", query)
                used |= families[re.sub("_(bucket|sum|count)$", "", name)]
            asked = set(re.findall(r"(\w+)(?:!=|=~|=)", query))
            for group in re.findall(r"(?:by|on) ?\(([^)]*)\)", query):
                asked |= {label.strip() for label in group.split(",")}
            self.assertLessEqual(asked, used, query)

    @unittest.skipUnless(PROMETHEUS, "prometheus is missing")
    def test_every_documented_query_answers(self):
        with tempfile.TemporaryDirectory() as folder:
            repository = os.path.join(folder, "models")
            model_with_shadow(repository)
            shutil.copytree(os.path.join(TESTDATA, "lm-dense"), os.path.join(repository, "lm-dense"))
            with Server(repository) as server, prometheus_of(server, folder) as ask:
                def answered() -> bool:
                    server.predict("--model", "shadowed", "--token_ids", "1,2,3,4", "--max_edges", "20")
                    server.cli("generate", "--model", "lm-dense", "--token_ids", "1,2,3", "--max_new_tokens", "4")
                    return all(ask(query) for query in documented_queries())

                wait_until("an answer to every query: " + repr(documented_queries()), answered)


if __name__ == "__main__":
    unittest.main()
