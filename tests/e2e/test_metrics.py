"""Metrics are valid from the first scrape, and a real Prometheus counts exactly the requests that were made."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import unittest
import urllib.parse
import urllib.request

from edgewise_process import HANG, TESTDATA, Server, series, total, wait_until
from rpc import Rpc, pb

PROMTOOL = shutil.which("promtool")
PROMETHEUS = shutil.which("prometheus")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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

    def check_seconds(self, text: str, series: str, microseconds: list, **labels: str) -> None:
        """That a histogram holds exactly these times, which answers round down to whole microseconds."""
        self.assertEqual(total(text, series + "_count", **labels), len(microseconds))
        rounded_off = total(text, series + "_sum", **labels) * 1e6 - sum(microseconds)
        self.assertGreater(rounded_off, -0.01, series)
        self.assertLess(rounded_off, len(microseconds) + 0.01, series)

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
        queue, forward = "edgewise_queue_duration_seconds", "edgewise_stage_duration_seconds"
        for priority, of_priority in (("1", timings[:1]), ("2", timings[1:2]), ("3", timings[2:])):
            self.check_seconds(metrics, queue, [timing.queue_us for timing in of_priority], model="sbm",
                               priority=priority)
        self.check_seconds(metrics, forward, [timing.compute_us for timing in timings], model="sbm", stage="forward")
        self.assertGreater(timings[0].compute_us, 100)
        self.check_seconds(metrics, queue, [timing.queue_us for timing in generated], model="lm-dense", priority="2")
        self.check_seconds(metrics, forward, [timing.compute_us for timing in generated], model="lm-dense",
                           stage="forward")
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
            port = free_port()
            config = os.path.join(folder, "prometheus.yml")
            with open(config, "w") as file:
                file.write("global: {scrape_interval: 5s, scrape_timeout: 5s}\n"
                           "scrape_configs:\n"
                           "- job_name: edgewise\n"
                           f"  static_configs: [{{targets: ['{server.metrics_address}']}}]\n")
            prometheus = subprocess.Popen(
                [PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                def query(expression: str) -> float:
                    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
                    try:
                        with urllib.request.urlopen(url, timeout=HANG) as response:
                            result = json.load(response)["data"]["result"]
                    except OSError:
                        return -1.0
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
            finally:
                prometheus.terminate()
                prometheus.wait(timeout=HANG)


if __name__ == "__main__":
    unittest.main()
