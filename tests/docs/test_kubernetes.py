"""What deploy/kubernetes.yaml gives a replica to stop in is more than the server takes, and deploy/kubernetes-gpu.yaml
changes that Deployment."""

import re
import unittest

import words


class KubernetesTest(unittest.TestCase):
    def test_the_grace_period_is_longer_than_delay_and_drain_together(self):
        manifest = words.read("deploy/kubernetes.yaml")
        grace = int(re.search(r"terminationGracePeriodSeconds: (\d+)", manifest)[1])
        delay = int(re.search(r'args: \[.*"--drain_delay=(\d+)s"', manifest)[1])
        drain = int(re.search(r"drain_timeout\{(\d+)\}", words.read("server/base/options.h"))[1]) / 1000
        self.assertGreaterEqual(grace, delay + drain + 10)  # the server stops its work and flushes after the drain
        self.assertNotIn("preStop", re.sub(r"#.*", "", manifest))  # the delay is the one mechanism

    def test_the_patch_for_gpus_fits_the_deployment(self):
        manifest, patch = words.read("deploy/kubernetes.yaml"), words.read("deploy/kubernetes-gpu.yaml")
        deployment = manifest.partition("\n---")[0]
        for line in ("        - name: server", "    rollingUpdate:", "          resources:"):
            self.assertIn(f"\n{line}", deployment)
            self.assertIn(f"\n{line}", patch)
        image, args = (re.search(rf'{key}: (.*)', deployment)[1] for key in ("image", "args"))
        self.assertIn(f"image: {image}-cuda\n", patch)
        self.assertIn(args.rstrip("]"), patch)  # a patch replaces lists


if __name__ == "__main__":
    unittest.main()
