"""The scenarios of load (./dev bench overload, ...), shortened: they run, and what they count adds up."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from edgewise_process import BIN, ROOT

sys.path.insert(0, os.path.join(ROOT, "bench"))
import mixed  # noqa: E402
import overload  # noqa: E402
import serving  # noqa: E402
import soak  # noqa: E402


def calls(ends_and_codes, unsent=0):
    """One call each 10 ms; (seconds that it took, its code)."""
    return serving.Calls([{"due": 0.01 * i, "begun": 0.01 * i, "end": 0.01 * i + took, "code": code, "outputs": 1,
                           "queue_us": 0, "compute_us": 800, "batch_inputs": 4, "samples": 1, "edges": 5}
                          for i, (took, code) in enumerate(ends_and_codes)], unsent)


class ScenarioTest(unittest.TestCase):
    def run_scenario(self, name, *flags, counted=True, script=None):
        """{case: row} of a run; `counted`: each row says what became of the calls."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows")
            done = subprocess.run([sys.executable, os.path.join(ROOT, "bench", f"{script or name}.py"), "--bin", BIN, "--json", path,
                                   *flags], capture_output=True, text=True, timeout=900, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(path, encoding="utf-8") as file:
                head, *rows = [json.loads(line) for line in file]
        self.assertEqual(head["scenario"], name)
        self.assertRegex(head["command"], rf"^\./dev bench {name} '?--(seconds|only)=")
        for row in rows:
            figures = row["figures"]
            if counted:
                self.assertGreater(figures["sent"], 0, row)
                self.assertEqual(figures["sent"], figures["answered"] + sum(figures["others"].values()), row)
            for one in row["goals"].values():
                self.assertIn("goal", one, row)
        return {row["case"]: row for row in rows}

    def test_overload_counts_every_call_and_prices_a_refusal(self):
        rows = self.run_scenario("overload", "--seconds=0.5", "--only=long 5x,shared 2x")
        self.assertEqual(set(rows), {"long 5x", "sentiment shared 2x"})
        shared = rows["sentiment shared 2x"]
        self.assertAlmostEqual(shared["figures"]["offered"] / shared["figures"]["peak_before"], 2, places=3)
        self.assertEqual(shared["goals"]["goodput_over_peak"]["goal"], "at least 0.5")
        row = rows["long 5x"]
        figures = row["figures"]
        self.assertAlmostEqual(figures["offered"] / figures["peak_before"], 5, places=3)
        self.assertGreaterEqual(figures["deadline_ms"], 200)
        self.assertGreater(figures["echo_us"], 0)
        self.assertGreaterEqual(figures["call_us"], 0)
        self.assertEqual(row["goals"]["goodput_over_peak"]["goal"], "at least 0.93")

    def test_batching_compares_with_the_echo_and_an_empty_forward_pass(self):
        rows = self.run_scenario("batching", "--seconds=0.3", "--only=sentiment,empty,echo 1")
        self.assertEqual(set(rows), {"sentiment 1", "sentiment 8", "sentiment 32", "empty 32", "echo 1",
                                     "sentiment 32 alone"})
        for name, row in rows.items():
            self.assertEqual(row["figures"]["answered"], row["figures"]["sent"], name)
            self.assertEqual(row["figures"]["forward_us"] > 0, not name.startswith("echo"), name)
        self.assertEqual(rows["sentiment 32 alone"]["figures"]["batch"], 1)
        self.assertGreater(rows["sentiment 32"]["figures"]["batch"], 1)
        self.assertEqual(set(rows["sentiment 1"]["goals"]), {"outside_over_echo"})
        self.assertEqual(set(rows["sentiment 32"]["goals"]), {"forward_over_alone", "requests_over_empty_forward"})

    def test_mixed_keeps_both_kinds_of_requests(self):
        rows = self.run_scenario("mixed", "--seconds=1", "--samples=4", "--inputs=8", "--shape=2,64,2,128,65")
        self.assertEqual(set(rows), {"sentiment alone", "long alone", "sentiment priority 1", "long beside priority 1",
                                     "sentiment default", "long beside default", "lengths", "lengths dense",
                                     "gpt2 alone", "sentiment beside gpt2", "gpt2 beside sentiment"})
        generated = rows["gpt2 beside sentiment"]["figures"]
        self.assertEqual(generated["answered"], generated["sent"])
        self.assertEqual(rows["lengths"]["figures"]["sent"], 16 * rows["lengths"]["figures"]["rounds"])

    def test_fairness_counts_the_polite_and_the_greedy(self):
        rows = self.run_scenario("fairness", "--seconds=0.6")
        self.assertEqual(set(rows), {"polite alone", "polite beside greedy", "greedy"})
        self.assertGreater(rows["greedy"]["figures"]["sent"], rows["polite beside greedy"]["figures"]["sent"])

    def test_a_soak_loses_nothing_and_mixes_nothing_up(self):
        rows = self.run_scenario("soak", "--seconds=6")
        self.assertEqual(set(rows), {"mixed", "planted leak"})
        self.assertTrue(rows["mixed"]["goals"]["troubles"]["met"], rows["mixed"])
        self.assertTrue(rows["mixed"]["goals"]["reloads"]["met"], rows["mixed"])

    def test_a_killed_replica_loses_nothing(self):
        row = self.run_scenario("chaos", "--seconds=5", "--every=2", "--only=client")["client"]
        self.assertTrue(row["goals"]["troubles"]["met"], row)
        self.assertTrue(row["goals"]["kills"]["met"], row)

    def test_a_rollout_loses_nothing(self):
        rows = self.run_scenario("rollout", "--calls=1200", "--rate=300", "--only=python,cpp,http client")
        for name in ("python", "cpp", "http client"):
            for goal in ("share_at_least", "share_at_most", "lost", "calls"):
                self.assertTrue(rows[name]["goals"][goal]["met"], rows[name])

    def test_degraded_serves_more_by_consent(self):
        rows = self.run_scenario("degraded", "--seconds=0.6", "--samples=8")
        self.assertEqual(set(rows), {"all or nothing", "by consent", "edges: all or nothing", "edges: by consent"})
        in_time = {case: row["figures"]["samples"] for case, row in rows.items()
                   if row["figures"]["good_over_peak"] > 0}  # on a busy machine no answer may be
        self.assertEqual(in_time.get("all or nothing", 8), 8)
        self.assertLessEqual(in_time.get("by consent", 8), 8)
        self.assertEqual(in_time.get("edges: by consent", 1), 1)

    def test_fit_deadline_chooses_samples(self):
        for case in ("4x", "edges 2x"):
            figures = self.run_scenario("fit_deadline", "--seconds=0.6", f"--only={case}")[case]["figures"]
            if figures["met"] > 0:  # on a busy machine no call may be in time
                self.assertGreaterEqual(figures["chosen"], 1)

    def test_hostile_clients_leave_memory_and_port(self):
        cases = "slow senders,unread streams,empty parts,resets,connections,all at once"
        rows = self.run_scenario("hostile", "--seconds=1", f"--only={cases}", counted=False)
        self.assertEqual(set(rows), {"slow senders", "unread streams", "empty parts", "resets", "connections",
                                     "all at once"})
        for name in ("slow senders", "unread streams", "empty parts", "connections"):
            goals = rows[name]["goals"]
            self.assertTrue(goals["resident_over_idle_mib"]["met"], f"{name}: {goals}")
            self.assertIsNotNone(goals["recovery_s"]["found"], f"{name}: the port does not serve again")

    def test_hostile_texts_and_files_leave_memory_and_others(self):
        cases = "silent,texts Unigram,files Replace doubling,files (a+)+b"
        rows = self.run_scenario("hostile", "--seconds=1", f"--only={cases}", counted=False)
        self.assertEqual(set(rows), {"beside a busy process", "silent", "texts Unigram", "files Replace doubling",
                                     "files (a+)+b"})
        for name, row in rows.items():
            if name == "beside a busy process":
                continue
            self.assertTrue(row["figures"]["alive"], row)
            self.assertEqual(row["figures"]["others_failed"], 0, row)
            self.assertTrue(row["goals"]["resident_over_idle_mib"]["met"], row)
            if name.startswith("files"):
                self.assertTrue(row["goals"]["clear_errors"]["met"], row)

    def test_hostile_clients_of_http_leave_memory_and_others(self):
        rows = self.run_scenario("hostile", "--seconds=1", "--only=http ", counted=False)
        self.assertEqual(set(rows), {"beside a busy process", "http slow bodies", "http large bodies", "http half requests",
                                     "http sockets", "http unread answers"})
        for name, row in rows.items():
            if name == "beside a busy process":
                continue
            self.assertTrue(row["figures"]["alive"], row)
            self.assertEqual(row["figures"]["others_failed"], 0, row)
            self.assertTrue(row["goals"]["resident_over_idle_mib"]["met"], row)
            for recovers in ("recovery_s", "memory_free_s"):
                self.assertIsNotNone(row["goals"][recovers]["found"], row)

    def test_strangers_connections_leave_those_of_others(self):
        rows = self.run_scenario("hostile", "--seconds=1", "--only=strangers ", counted=False)
        self.assertEqual(set(rows), {"strangers idle few", "strangers idle many", "strangers leaving"})
        for name, row in rows.items():
            for ask in ("livez", "predict_http", "health", "predict"):
                self.assertGreater(row["figures"][f"{ask}_calls"], 0, name)
                self.assertTrue(row["goals"][f"{ask}_unanswered"]["met"], f"{name}: {row}")

    def test_http_and_grpc_both_answer(self):
        rows = self.run_scenario("http", "--seconds=0.1", counted=False, script="front")
        self.assertEqual(set(rows), {"embeddings", "embeddings in base64", "chat", "chat whole"})
        for row in rows.values():
            self.assertGreater(row["figures"]["http_per_second"], 0)
            self.assertGreater(row["goals"]["http_over_grpc"]["found"], 0)

    def test_generations_all_end(self):
        rows = self.run_scenario("generations", "--seconds=0.1", "--only=shakespeare")
        self.assertEqual(set(rows), {f"shakespeare-ssa {at_once}" for at_once in (1, 4, 16)})
        for row in rows.values():
            self.assertEqual(row["figures"]["answered"], row["figures"]["sent"])
            self.assertGreater(row["figures"]["tokens_per_second"], 0)


class FigureTest(unittest.TestCase):
    def test_an_answer_after_its_deadline_is_not_good(self):
        some = calls([(0.1, "OK"), (0.3, "OK"), (0.1, "RESOURCE_EXHAUSTED")], unsent=2)
        self.assertEqual(some.good(0.2).tolist(), [True, False, False])
        self.assertEqual(some.counts(), {"sent": 3, "answered": 2, "others": {"RESOURCE_EXHAUSTED": 1}, "unsent": 2})
        self.assertAlmostEqual(some.quantile(1.0), 0.3)

    def test_inputs_computed_together_share_the_forward_pass(self):
        self.assertAlmostEqual(calls([(0.1, "OK"), (0.1, "OK"), (0.1, "CANCELLED")]).forward(), 200e-6)

    def test_loads_join_as_one(self):
        one, other = calls([(0.1, "OK")], unsent=1), calls([(0.2, "OK"), (0.1, "UNAVAILABLE")], unsent=2)
        self.assertEqual(serving.Calls.joined([one, other]).counts(),
                         {"sent": 3, "answered": 2, "others": {"UNAVAILABLE": 1}, "unsent": 3})

    def test_recovery_ends_with_the_last_bin_that_is_not_in_time(self):
        def after(bad):
            return overload.recovery(calls([(0.3 if i in bad else 0.1, "OK") for i in range(200)]), 0.2, 2.0)

        self.assertEqual(after(()), 0.0)
        self.assertEqual(after(range(60)), 0.75)
        self.assertEqual(after((110,)), 0.0)  # one of 25
        self.assertEqual(after((110, 111)), 1.25)
        self.assertIsNone(after(range(190, 200)))

    def test_growth_is_that_of_the_least_memory_of_the_second_half(self):
        def samples(a_minute, peak=0.0):
            return [(t, 80 + max(0, 60 - t) + a_minute * t / 60 + (peak if t % 12 < 3 else 0)) for t in range(240)]

        self.assertAlmostEqual(soak.growth(samples(0)), 0, places=6)
        self.assertAlmostEqual(soak.growth(samples(2)), 2, delta=0.1)
        self.assertAlmostEqual(soak.growth(samples(0.5, peak=30)), 0.5, delta=0.1)
        self.assertEqual(soak.later(samples(0, peak=30), 0.1)[1].max(), 80 + 60 - 24 + 30)

    def test_a_goal_is_met_at_its_bound_and_missed_by_nothing(self):
        self.assertTrue(serving.goal(0.9, "at least", 0.9)["met"])
        self.assertFalse(serving.goal(0.89, "at least", 0.9)["met"])
        self.assertFalse(serving.goal(3, "at most", 2)["met"])
        self.assertFalse(serving.goal(None, "at most", 2)["met"])

    def test_padded_texts_are_as_long_as_the_longest_of_their_group(self):
        own, padded = mixed.lengths_of(64)
        self.assertTrue(((own >= mixed.SHORTEST) & (own <= mixed.LONGEST)).all())
        for group in range(0, 64, mixed.GROUP):
            self.assertEqual(set(padded[group:group + mixed.GROUP]), {max(own[group:group + mixed.GROUP])})


if __name__ == "__main__":
    unittest.main()
