"""Promise 4 (docs/promises.md) from outside: the same bytes after a restart, with other threads and under load."""

import subprocess
import threading
import unittest

from edgewise_process import TESTDATA, Server

REQUESTS = [
    ("--model", "sbm", "--token_ids", "5,9,3,0,7,11,2,30,4", "--seed", "7", "--samples", "5"),
    ("--model", "sbm", "--token_ids", "5,9,3,0,7,11,2,30,4", "--seed", "8", "--max_density", "0.3"),
    ("--model", "sbm-pair", "--token_ids", "5,9,3", "--second_token_ids", "8,1,2,3", "--seed", "7", "--each_sample"),
    ("--model", "sbm-tokens", "--token_ids", "5,9,3,14,2,6,1", "--seed", "3", "--samples", "2", "--logits"),
    ("--model", "dense", "--token_ids", "5,9,3,14,2,6,1", "--seed", "3"),
]


class ReproducibleTest(unittest.TestCase):
    def answers(self, server: Server) -> list:
        return [server.predict(*request)["predictions"] for request in REQUESTS]

    def test_restarts_and_threads_change_no_byte(self):
        first = None
        for threads in (1, 2, 4, 1):
            with Server(TESTDATA, f"--threads={threads}") as server:
                answers = self.answers(server)
            first = first or answers
            self.assertEqual(answers, first, f"{threads} threads")

    def test_load_changes_no_byte(self):
        with Server(TESTDATA) as server:
            alone = self.answers(server)
            load = subprocess.Popen([*self.bench_command(server)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                results = []
                threads = [threading.Thread(target=lambda: results.append(self.answers(server))) for _ in range(3)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            finally:
                load.wait(timeout=60)
        self.assertEqual(results, [alone] * 3)

    def bench_command(self, server: Server) -> list:
        import os

        from edgewise_process import BIN
        return [os.path.join(BIN, "edgewise"), "bench", "--server", server.address, "--model", "sbm", "--token_ids",
                ",".join(str(1 + i % 30) for i in range(40)), "--concurrency", "4", "--duration", "3s"]

    def test_the_server_draws_a_seed_and_returns_it(self):
        with Server(TESTDATA) as server:
            request = ("--model", "sbm", "--token_ids", "5,9,3,14,2,6,1,8,8,8,4", "--samples", "3")
            drawn = server.predict(*request)
            again = server.predict(*request, "--seed", drawn["seed"])
            other = server.predict(*request)
        self.assertEqual(drawn["predictions"], again["predictions"])
        self.assertNotEqual(drawn["seed"], other["seed"])


if __name__ == "__main__":
    unittest.main()
