"""Models of random weights in the model format (docs/model-format.md), for benchmarks."""

import json
import pathlib
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from edgewise_tools.safetensors_io import write_safetensors  # noqa: E402


class Weights:
    """Tensors by name, of one width and one standard deviation; equal for equal calls in the same order."""

    def __init__(self, width, scale=0.02):
        self.random = np.random.default_rng(1)
        self.width, self.scale = width, scale

    def normal(self, *shape, scale=None):
        return ((scale or self.scale) * self.random.standard_normal(shape)).astype(np.float32)

    def linear(self, name, out, inner):
        return {f"{name}.weight": self.normal(out, inner), f"{name}.bias": self.normal(out)}

    def norm(self, name):
        return {f"{name}.weight": np.ones(self.width, np.float32), f"{name}.bias": np.zeros(self.width, np.float32)}

    def attention(self, layer, columns):
        """The norm and the four projections; `columns` of all heads together."""
        name = f"layers.{layer}.attention"
        tensors = self.norm(f"{name}_norm")
        for part in ("query", "key", "value"):
            tensors |= self.linear(f"{name}.{part}", columns, self.width)
        return tensors | self.linear(f"{name}.output", self.width, columns)

    def feed_forward(self, layer, inner):
        name = f"layers.{layer}.mlp"
        return (self.norm(f"{name}_norm") | self.linear(f"{name}.up", inner, self.width)
                | self.linear(f"{name}.down", self.width, inner))


def write_model(folder, config, tensors):
    """Version 1 of the model in `folder`."""
    folder = pathlib.Path(folder) / "1"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(str(folder / "model.safetensors"), tensors)
