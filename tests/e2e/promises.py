"""Models of tests/testdata, one for each task, form of input and kind of attention, and dense ones under an override,
with inputs: what the tests of promises run over. They show that the promises hold over the wire; the C++ suites hold every
kind to them. Nothing here or in those tests names a kind but for the overrides."""

import copy
import json
import os
import re
import unittest

from edgewise_process import TESTDATA, Server, series
from rpc import Refused, Rpc, pb

SEED = 0x5EED0000000B
OVERRIDES = {
    "dense": {"kind": "block", "pattern": "local", "block_size": 4}, "dense-tokens": {"keep": 4},
    "dense-pair": {"windows": 3, "sigma": [0.3, 0.1]}, "lm-dense": {"windows": 4, "sigma": [0.3], "last_layers": 1},
}


class Kind:
    """A model, perhaps with an override, and inputs for it."""

    def __init__(self, model: str, override: dict | None = None):
        self.model, self.override = model, override
        self.name = model + (f" under {override}" if override else "")
        with open(os.path.join(TESTDATA, model, "1", "config.json"), encoding="utf-8") as file:
            self.config = json.load(file)
        with open(os.path.join(TESTDATA, model, "golden.json"), encoding="utf-8") as file:
            self.golden = json.load(file)
        self.inputs = [make_input(entry) for entry in self.golden]
        self.language = self.config["task"] == "causal-lm"
        self.layers = self.config["num_hidden_layers"]
        self.causal = self.config.get("causal", self.language)
        if self.language:  # a text beyond the context
            long = pb.TokenIds(values=[1 + i * 7 % 22 for i in range(110)])
            self.inputs.append(pb.Input(sequence=pb.Sequence(token_ids=long)))

    def request(self, *inputs, samples: int = 1, seed: int = SEED, **fields):
        request = pb.PredictRequest(model=self.model, inputs=inputs, **fields)
        request.ensemble.seed, request.ensemble.samples = seed, samples
        if self.override:
            request.override.CopyFrom(pb.AttentionOverride(**{"kind": "ssa", **self.override}))
        return request

    def generation(self, prompt, count: int = 8, samples: int = 1, seed: int = SEED, **fields):
        request = pb.GenerateRequest(model=self.model, prompt=prompt, max_new_tokens=count, **fields)
        request.prompt.truncate = pb.HEAD
        request.ensemble.seed, request.ensemble.samples = seed, samples
        if self.override:
            request.override.CopyFrom(pb.AttentionOverride(**{"kind": "ssa", **self.override}))
        return request

    def outputs(self, **more):
        """Everything that the task gives."""
        return pb.OutputOptions(logits=self.config["task"] != "regression", layer_stats=True, key_degrees=True, **more)


def make_input(entry: dict):
    """An entry of golden.json as a request has it, without its graph."""
    made = pb.Input()
    for field, values in (("sequence", entry.get("token_ids")), ("second", entry.get("second"))):
        if values is not None:
            getattr(made, field).token_ids.values.extend(values)
    if "features" in entry:
        rows = made.sequence.features
        rows.rows, rows.columns = len(entry["features"]), len(entry["features"][0])
        rows.values.extend(value for row in entry["features"] for value in row)
    made.sequence.bias.buckets = bytes(entry.get("bias_buckets", []))
    made.sequence.bias.values.extend(entry.get("bias_values", []))
    if not made.sequence.bias.buckets and not made.sequence.bias.values:
        made.sequence.ClearField("bias")
    return made


def first_of_each(models: list) -> list:
    """Those of which no earlier one has the same task, fields of inputs and kind of attention."""
    found = {}
    for kind in map(Kind, models):
        fields = {field.name for one in kind.inputs for message in (one, one.sequence) for field, _ in message.ListFields()}
        attention = kind.config["attention"]    # a list: of each layer its own
        attention = "layers" if isinstance(attention, list) else attention["kind"]
        found.setdefault((kind.config["task"], attention, *sorted(fields)), kind)
    return list(found.values())


KINDS = first_of_each(sorted(name for name in os.listdir(TESTDATA) if os.path.isdir(os.path.join(TESTDATA, name))))
KINDS += [Kind(model, override) for model, override in OVERRIDES.items()]
LANGUAGE = [kind for kind in KINDS if kind.language]


def of_bytes(message) -> bytes:
    return message.SerializeToString(deterministic=True)


def without_budget(prediction) -> bytes:
    """The bytes of a prediction but for the cap it was asked under."""
    changed = copy.deepcopy(prediction)
    changed.edges.ClearField("budget")
    return of_bytes(changed)


def without_timing(messages: list) -> list:
    """The bytes of a generation but for what the clock said."""
    return [of_bytes(message) for message in map(copy.deepcopy, messages) if message.ClearField("timing") is None]


def least_of(refused: Refused) -> int:
    return int(re.search(r"needs (?:at least|up to) (\d+) edges", str(refused)).group(1))


class PromisesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server(TESTDATA, "--allow_graphs"))
        cls.rpc = Rpc(cls.server)
        cls.addClassCleanup(cls.rpc.close)

    def cases(self, kinds: list = KINDS, inputs: slice = slice(None)):
        """Runs the loop's body for the inputs of every kind: `for check, kind, input in ...: with check:`."""
        for kind in kinds:
            for number, one in list(enumerate(kind.inputs))[inputs]:
                yield self.subTest(kind=kind.name, input=number), kind, one

    def ask(self, request):
        """The only prediction."""
        return self.rpc.predict(request).predictions[0]

    def least_edges(self, capped) -> int:
        """The least cap that `capped(edges)` takes, as the refusal of 1 says it, and that it is the least."""
        try:
            capped(1)
            return 1
        except Refused as refused:
            least = least_of(refused)
        with self.assertRaises(Refused) as below:
            capped(least - 1)
        self.assertEqual(least_of(below.exception), least)
        return least


class Counters:
    """All samples of a scrape."""

    def __init__(self, text: str):
        self.text, self.read = text, {}

    def of(self, name: str, **labels: str) -> float:
        if name not in self.read:
            self.read[name] = series(self.text, name)
        wanted = {(key, f'"{value}"') for key, value in labels.items()}
        return sum(value for pairs, value in self.read[name].items() if wanted <= pairs)
