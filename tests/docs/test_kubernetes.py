"""What deploy/kubernetes.yaml gives a replica to stop in is more than the server takes."""

import re
import unittest

import words


class KubernetesTest(unittest.TestCase):
    def test_the_grace_period_is_longer_than_delay_and_drain_together(self):
        manifest = words.read("deploy/kubernetes.yaml")
        grace = int(re.search(r"terminationGracePeriodSeconds: (\d+)", manifest)[1])
        delay = int(re.search(r'args: \[.*"--drain_delay=(\d+)s"', manifest)[1])
        drain = int(re.search(r"drain_timeout\{(\d+)\}", words.read("server/options.h"))[1]) / 1000
        self.assertGreaterEqual(grace, delay + drain + 10)  # the server stops its work and flushes after the drain
        self.assertNotIn("preStop", re.sub(r"#.*", "", manifest))  # the delay is the one mechanism


if __name__ == "__main__":
    unittest.main()
