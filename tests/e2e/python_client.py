"""client/python as its tests use it, on Debian's packages without pip: the package is put together as pip would do it.

EDGEWISE_PYTHON_INSTALLED in the environment: tests the `edgewise` that is installed instead.
"""

import json
import os
import pathlib
import sys
import tempfile
import unittest

from edgewise_process import EXAMPLES, ROOT, Server

sys.path.insert(0, os.path.join(ROOT, "client", "python"))
import compile_protos  # noqa: E402

STAGED = tempfile.TemporaryDirectory()
if "EDGEWISE_PYTHON_INSTALLED" not in os.environ:
    compile_protos.stage(pathlib.Path(STAGED.name))
    sys.path.insert(0, STAGED.name)
import edgewise  # noqa: E402
from edgewise import requests  # noqa: E402
from edgewise.v1 import inference_pb2 as pb  # noqa: E402

FILM = "a warm , funny and moving film"


def example(name: str) -> dict:
    with open(os.path.join(ROOT, "examples", "data", f"{name}.jsonl")) as file:
        return json.loads(file.readline())


class ClientTest(unittest.TestCase):
    """A server of the bundled models and a client."""

    SERVER = (EXAMPLES,)

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enter(Server(*cls.SERVER))
        cls.client = cls.enter(edgewise.Client(cls.server.address, timeout=60))

    @classmethod
    def enter(cls, context):
        """As enterClassContext of Python 3.11 does."""
        entered = context.__enter__()
        cls.addClassCleanup(context.__exit__, None, None, None)
        return entered

    def error_of(self, call) -> edgewise.Error:
        with self.assertRaises(edgewise.Error) as caught:
            call()
        return caught.exception
