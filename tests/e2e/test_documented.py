"""The commands of README and the documentation, run as they stand against the built server: every line of their `sh`
blocks, but those that NOT_RUN names. A line that starts a server starts one on a free port, which the lines behind ask."""

import glob
import json
import os
import re
import shlex
import subprocess
import tempfile
import unittest

import made_checkpoints
from edgewise_process import BIN, ROOT, Server

# By how they begin, and why they are not run here.
NOT_RUN = {
    "./dev demo": "builds; the test e2e_demo runs what it runs then",
    "./dev test": "runs this test",
    "./dev build": "builds; this test needs what it builds",
    "./dev bench": "takes minutes",
    "./dev evaluate": "takes minutes",
    "cmake --install": "the test client.find_package runs it",
    "sudo apt-get install": "changes the machine",
    "pip install": "changes the machine; the tests of the Python client install it",
    "python3 -c 'import json, lra_config": "needs the code of the SBM-Transformer authors",
    "python3 data/shakespeare_char/prepare.py": "needs nanoGPT",
    "python3 train.py": "needs nanoGPT and PyTorch",
    "python tools/train/": "takes minutes, needs PyTorch",
}
# What whole documents describe: the container (./dev container-test) and machines with a GPU (./dev gpu-test).
NOT_HERE = {"docs/deploy.md", "docs/gpu.md"}
DOCUMENTS = ["README.md", "examples/README.md", *(
    path for path in sorted(glob.glob("docs/*.md", root_dir=ROOT)) if path not in NOT_HERE)]


def commands(text: str) -> list:
    """The commands of a Markdown text's `sh` blocks; continued lines are one."""
    found = []
    for block in re.findall(r"^```(?:sh|bash|shell|console)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        lines = block.replace("\\\n", " ").splitlines()
        found += [line.strip() for line in lines if shlex.split(line, comments=True)]
    return found


def server_repository(command: str):
    """The model repository of a command that starts a server, else None."""
    words = shlex.split(command, comments=True)
    if words[:2] == ["./dev", "serve"]:
        return "examples/models"
    if os.path.basename(words[0]) != "edgewise-server":
        return None
    assert len(words) == 2 and words[1].startswith("--model_repository="), f"flags that are not passed on: {command}"
    return words[1].partition("=")[2]


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

    def serve(self, repository: str) -> None:
        self.stop()
        self.server = Server(os.path.join(self.path, repository)).__enter__()

    def run(self, command: str) -> subprocess.CompletedProcess:
        environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
        environment["EDGEWISE_SERVER"] = self.server.address if self.server else "127.0.0.1:1"
        return subprocess.run(["bash", "-c", command], cwd=self.path, env=environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=120, check=False)

    def stop(self) -> None:
        if self.server:
            self.server.stop()
            self.server = None


class DocumentedTest(unittest.TestCase):
    def run_all(self, document: str) -> int:
        """Runs a document's commands in order, and gives how many; a server of the examples runs from the start."""
        with open(os.path.join(ROOT, document), encoding="utf-8") as file:
            lines = commands(file.read())
        count = 0
        with tempfile.TemporaryDirectory() as folder:
            checkout = Checkout(folder)
            self.addCleanup(checkout.stop)
            checkout.serve("examples/models")
            for command in lines:
                if command.startswith(tuple(NOT_RUN)):
                    continue
                count += 1
                with self.subTest(document=document, command=command):
                    repository = server_repository(command)
                    if repository:
                        checkout.serve(repository)
                        self.check_models(checkout)
                    else:
                        self.check_command(checkout, command)
            checkout.stop()
        return count

    def check_command(self, checkout: Checkout, command: str) -> None:
        run = checkout.run(command)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertNotEqual(run.stdout, "")
        for picture in re.findall(r"--plot[ =](\S+)", command):
            self.assertGreater(os.path.getsize(os.path.join(checkout.path, picture)), 0)

    def check_models(self, checkout: Checkout) -> None:
        """Every version in the repository is ready."""
        models = json.loads(checkout.run("edgewise models --json").stdout)["models"]
        self.assertTrue(models)
        for model in models:
            self.assertEqual(model["state"], "READY", model)

    def test_the_readme(self):
        self.assertGreater(self.run_all("README.md"), 10)

    def test_the_other_documents(self):
        ran = {document: self.run_all(document) for document in DOCUMENTS if document != "README.md"}
        self.assertGreater(ran["docs/convert.md"], 5, ran)

    def test_commands_are_found(self):
        text = "```sh\na b   # why\n# a remark\n\nc \\\n  'd#e'\n```\n```\nno command\n```\n"
        self.assertEqual(commands(text), ["a b   # why", "c    'd#e'"])


if __name__ == "__main__":
    unittest.main()
