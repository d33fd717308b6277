"""convert.py state-dict: torch and safetensors sources through a mapping file, and what it refuses."""

import json
import os
import pathlib
import struct
import sys
import tempfile
import unittest

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from checkpoints import ROOT, convert, read_model  # noqa: E402
from torch_file import TorchFile  # noqa: E402

CONFIG = {
    "task": "token-classification",
    "vocab_size": 10,
    "hidden_size": 4,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 6,
    "max_position_embeddings": 8,
    "num_labels": 3,
    "attention": {"kind": "dense"},
}
# A source like GPT-2: q, k and v in one [in, out] matrix, two rows before the positions, norms without biases.
MAPPING = {
    "embeddings.word.weight": "wte",
    "embeddings.position.weight": {"name": "wpe", "rows": [2, 10]},
    "layers.{l}.attention_norm.weight": "h.{l}.ln_1",
    "layers.{l}.attention_norm.bias": {"fill": 0},
    "layers.{l}.attention.query.weight": {"name": "h.{l}.qkv", "transpose": True, "rows": [0, 4]},
    "layers.{l}.attention.key.weight": {"name": "h.{l}.qkv", "transpose": True, "rows": [4, 8]},
    "layers.{l}.attention.value.weight": {"name": "h.{l}.qkv", "transpose": True, "rows": [8, 12]},
    "layers.{l}.attention.query.bias": {"name": "h.{l}.qkv_bias", "rows": [0, 4]},
    "layers.{l}.attention.key.bias": {"name": "h.{l}.qkv_bias", "rows": [4, 8]},
    "layers.{l}.attention.value.bias": {"name": "h.{l}.qkv_bias", "rows": [8, 12]},
    "layers.{l}.attention.output.weight": "h.{l}.out",
    "layers.{l}.attention.output.bias": {"fill": 0.5},
    "layers.{l}.mlp_norm.weight": "h.{l}.ln_2",
    "layers.{l}.mlp_norm.bias": {"fill": 0},
    "layers.{l}.mlp.up.weight": {"name": "h.{l}.up", "reshape": [6, 4]},
    "layers.{l}.mlp.up.bias": {"fill": 0},
    "layers.{l}.mlp.down.weight": "h.{l}.down",
    "layers.{l}.mlp.down.bias": {"fill": 0},
    "final_norm.weight": "ln_f",
    "final_norm.bias": {"fill": 0},
    "classifier.output.weight": "head",
    "classifier.output.bias": {"fill": -1},
}


def source() -> dict:
    rng = np.random.default_rng(5)
    shapes = {"wte": (10, 4), "wpe": (10, 4), "ln_f": (4,), "head": (3, 4)}
    for layer in range(2):
        own = {"ln_1": (4,), "qkv": (4, 12), "qkv_bias": (12,), "out": (4, 4)}
        own.update({"ln_2": (4,), "up": (24,), "down": (4, 6)})
        shapes.update({f"h.{layer}.{name}": shape for name, shape in own.items()})
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def safetensors(tensors: dict, **extra: object) -> bytes:
    """A safetensors file; BF16 for uint16 arrays."""
    kinds = {"f4": "F32", "f2": "F16", "u2": "BF16", "f8": "F64", "i8": "I64"}
    header, data = dict(extra), b""
    for name, values in tensors.items():
        end = len(data) + values.nbytes
        entry = {"dtype": kinds[values.dtype.str[1:]], "shape": list(values.shape), "data_offsets": [len(data), end]}
        header[name] = entry
        data += values.tobytes()
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class StateDictTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.checkpoint, self.mapping = (os.path.join(folder.name, name) for name in ("weights", "mapping.json"))
        self.output = os.path.join(folder.name, "model", "1")
        self.write_mapping()
        pathlib.Path(self.checkpoint).write_bytes(safetensors(source()))

    def write_mapping(self, config: dict = None, **changes: object) -> None:
        """The mapping with tensors replaced; None takes one out."""
        tensors = {**MAPPING, **{name.replace("__", "."): entry for name, entry in changes.items()}}
        tensors = {name: entry for name, entry in tensors.items() if entry is not None}
        value = {"config": {**CONFIG, **(config or {})}, "tensors": tensors}
        pathlib.Path(self.mapping).write_text(json.dumps(value), encoding="utf-8")

    def run_convert(self, *flags: str):
        files = ("--checkpoint", self.checkpoint, "--mapping", self.mapping, "--output", self.output)
        return convert("state-dict", *files, *flags)

    def converted(self) -> dict:
        result = self.run_convert()
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        config, tensors = read_model(self.output)
        self.assertEqual(config, CONFIG)
        return tensors

    def refused(self, *parts: str) -> None:
        result = self.run_convert()
        self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr + result.stdout)
        for part in parts:
            self.assertIn(part, result.stderr)
        self.assertFalse(os.path.exists(self.output))

    def check(self, tensors: dict) -> None:
        given = source()
        qkv = given["h.1.qkv"]
        np.testing.assert_array_equal(tensors["layers.1.attention.query.weight"], qkv[:, :4].T)
        np.testing.assert_array_equal(tensors["layers.1.attention.key.weight"], qkv[:, 4:8].T)
        np.testing.assert_array_equal(tensors["layers.1.attention.value.bias"], given["h.1.qkv_bias"][8:])
        np.testing.assert_array_equal(tensors["embeddings.position.weight"], given["wpe"][2:])
        np.testing.assert_array_equal(tensors["layers.0.mlp.up.weight"], given["h.0.up"].reshape(6, 4))
        np.testing.assert_array_equal(tensors["layers.0.attention.output.bias"], np.full(4, 0.5))
        np.testing.assert_array_equal(tensors["classifier.output.bias"], np.full(3, -1.0))

    def test_safetensors(self):
        self.check(self.converted())

    def test_unused_tensors_are_refused_unless_a_flag_allows_them(self):
        parts = {"pooler.weight": np.ones((4, 4), np.float32), "pooler.bias": np.ones(4, np.float32)}
        for write in (
            lambda tensors: pathlib.Path(self.checkpoint).write_bytes(safetensors(tensors)),
            lambda tensors: TorchFile(tensors).write(self.checkpoint),
        ):
            write({**source(), **parts})
            named = "tensors that the mapping does not use (2): ['pooler.bias', 'pooler.weight']"
            self.refused(self.checkpoint, named, "map them, or add --allow_unused")
            result = self.run_convert("--allow_unused")
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertIn(named, result.stdout)
            self.check(read_model(self.output)[1])
            self.output = os.path.join(os.path.dirname(self.output), "2")

    def test_a_config_beside_the_weights_may_name_no_approximate_gelu(self):
        beside = pathlib.Path(self.checkpoint).with_name("config.json")
        for field in ("hidden_act", "activation_function", "activation"):
            for name in ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "quick_gelu"):
                beside.write_text(json.dumps({"model_type": "gpt2", field: name}), encoding="utf-8")
                with self.subTest(field=field, name=name):
                    self.refused(f"{beside}: {field}: found '{name}', expected gelu, the exact one")
        beside.write_text(json.dumps({"model_type": "gpt2", "activation_function": "gelu"}), encoding="utf-8")
        self.check(self.converted())

    def test_many_unused_tensors_are_counted_and_the_first_are_named(self):
        parts = {f"pooler.{i:04}": np.ones(1, np.float32) for i in range(2000)}
        pathlib.Path(self.checkpoint).write_bytes(safetensors({**source(), **parts}))
        self.refused("(2000): ['pooler.0000', 'pooler.0001', ", "...; a model that lacks a part")
        self.assertLess(len(self.run_convert().stderr), 2000)

    def test_safetensors_with_metadata(self):
        pathlib.Path(self.checkpoint).write_bytes(safetensors(source(), __metadata__={"format": "pt"}))
        self.check(self.converted())

    def test_torch_at_the_top_or_under_a_key(self):
        for key in (None, "model_state_dict", "state_dict", "model"):
            others = {"iter_num": 5, "best": np.float32([1.0]), "list": [1.5, "x"]}
            value = source() if key is None else {key: source(), **others}
            TorchFile(value).write(self.checkpoint)
            self.output = os.path.join(os.path.dirname(self.output), "1" if key is None else str(len(key)))
            with self.subTest(key=key):
                self.check(self.converted())

    def test_bfloat16(self):
        tensors = source()
        upper = (tensors["ln_f"].view(np.uint32) >> 16).astype(np.uint16)
        pathlib.Path(self.checkpoint).write_bytes(safetensors({**tensors, "ln_f": upper}))
        expected = (upper.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(self.converted()["final_norm.weight"], expected)

    def test_every_kind_of_tensor(self):
        """The models of tests/testdata, mapped name by name, come out as they are."""
        folder = os.path.join(ROOT, "tests", "testdata")
        for case in ("lm-untied", "lm-relative", "lm-block-learned", "pairwise-buckets", "features", "sbm-block-matrix"):
            config, tensors = read_model(os.path.join(folder, case, "1"))
            value = {"config": config, "tensors": {name: "their." + name for name in tensors}}
            pathlib.Path(self.mapping).write_text(json.dumps(value), encoding="utf-8")
            stored = {"their." + name: values for name, values in tensors.items()}
            pathlib.Path(self.checkpoint).write_bytes(safetensors(stored))
            self.output = os.path.join(os.path.dirname(os.path.dirname(self.output)), case, "1")
            with self.subTest(case=case):
                result = self.run_convert()
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                self.assertIn("up to 48 rows" if case == "features" else "up to 48 tokens", result.stdout)
                found, written = read_model(self.output)
                self.assertEqual((found, sorted(written)), (config, sorted(tensors)))
                for name, values in tensors.items():
                    np.testing.assert_array_equal(written[name], values, name)

    def test_faults_of_the_mapping(self):
        for changes, parts in (
            ({"final_norm__weight": None}, ("'final_norm.weight'", "[4]", "is missing")),
            ({"final_norm__scale": "ln_f"}, ("'final_norm.scale'", "no part of a model")),
            ({"final_norm__weight": "ln_g"}, ("'ln_g'", "is missing")),
            ({"final_norm__weight": "head"}, ("'head'", "found [3, 4], expected [4]")),
            ({"final_norm__weight": {"name": "ln_f", "transpose": True}}, ("transpose", "found 1, expected 2")),
            ({"final_norm__weight": {"name": "ln_f", "rows": [0, 5]}}, ("rows", "[0, 5]", "b <= 4")),
            ({"final_norm__weight": {"name": "ln_f", "rows": [2, 2]}}, ("rows", "[2, 2]")),
            ({"final_norm__weight": {"name": "ln_f", "reshape": [5]}}, ("reshape", "found 4, expected [5]")),
            ({"final_norm__weight": {"name": "ln_f", "scale": 2}}, ("'scale'", "expected one of")),
            ({"final_norm__weight": {"name": "ln_f", "fill": 0}}, ("'final_norm.weight'",)),
            ({"final_norm__weight": {"fill": "0"}}, ("fill", "a finite number")),
            ({"final_norm__weight": 5}, ("'final_norm.weight'",)),
            ({"layers__0__mlp__up__bias": {"fill": 0}}, ("'layers.0.mlp.up.bias'", "mapped twice")),
        ):
            with self.subTest(changes=changes):
                self.write_mapping(**changes)
                self.refused(*parts)

    def test_a_fill_that_no_memory_holds(self):
        sizes = {"vocab_size": (1 << 31) - 1, "hidden_size": (1 << 31) - 2}
        self.write_mapping(sizes, embeddings__word__weight={"fill": 1})
        self.refused("'embeddings.word.weight': fill: no memory for the shape [2147483647, 2147483646]")

    def test_faults_of_the_config(self):
        for config, parts in (
            ({"hidden_sizes": 4}, ("unknown field 'hidden_sizes'",)),
            ({"hidden_size": 0}, ("hidden_size", "found 0")),
            ({"hidden_size": 5}, ("hidden_size 5", "num_attention_heads 2")),
            ({"num_hidden_layers": 1 << 20}, ("num_hidden_layers", "at most 4096")),
            ({"task": "translation"}, ("task", "'translation'", "causal-lm")),
            ({"hidden_act": "gelu_new"}, ("hidden_act: found 'gelu_new', expected gelu, the exact one",)),
            ({"hidden_act": "gelu_pytorch_tanh"}, ("hidden_act: found 'gelu_pytorch_tanh', expected gelu, the exact",)),
            ({"hidden_act": "gelu_fast"}, ("hidden_act: found 'gelu_fast', expected gelu, the exact",)),
            ({"hidden_act": "quick_gelu"}, ("hidden_act: found 'quick_gelu', expected gelu, the exact",)),
            ({"hidden_act": "silu"}, ("hidden_act", "'silu'", "gelu, relu")),
            ({"pooling": {"kind": "mean", "divisor": "valid"}}, ("pooling", "token-classification")),
            ({"task": "sequence-classification"}, ("pooling", "None")),
            ({"attention": {"kind": "linear"}}, ("attention.kind", "'linear'", "dense, sbm, ssa or block")),
            ({"attention": [{"kind": "dense"}]}, ("attention: entries", "found 1")),
            ({"attention": {"kind": "sbm", "num_clusters": 4}}, ("attention.law", "None")),
            ({"attention": {"kind": "sbm", "law": "bernoulli", "num_clusters": 4}}, ("clusters'", "is missing")),
            ({"layer_norm_eps": float("inf")}, ("Infinity",)),
        ):
            with self.subTest(config=config):
                self.write_mapping(config)
                self.refused("mapping.json", *parts)

    def test_faults_of_a_safetensors_file(self):
        good = safetensors({"ln_f": np.ones(4, np.float32)})

        def header(text: str, data: int = 0) -> bytes:
            return struct.pack("<Q", len(text.encode())) + text.encode() + bytes(data)

        def entry(dtype: str = '"F32"', shape: str = "[4]", offsets: str = "[0,16]") -> str:
            return '{"ln_f":{"dtype":%s,"shape":%s,"data_offsets":%s}}' % (dtype, shape, offsets)

        for data, part in (
            (b"", "at least 8"),
            (b"1234567", "at least 8"),
            (bytes(8), "header length: found 0"),
            (struct.pack("<Q", 1 << 63) + b"{}", "header length"),
            (struct.pack("<Q", 3) + b"{}", "header length: found 3"),
            (struct.pack(">Q", 2) + b"{}", "header length"),
            (header("[]"), "not a JSON object"),
            (header('{"a":1}'), "'a'"),
            (header("\ufeff{}"), "not JSON"),
            (header("{}x"), "not JSON"),
            (header("[" * 100_000), "nested more than 64 levels deep"),
            (header(entry()[:-1] + "," + entry()[1:], 16), "duplicate key 'ln_f'"),
            (header(entry(dtype='"F4"'), 16), "dtype: found 'F4'"),
            (header(entry(dtype="[]"), 16), "dtype: found []"),
            (header(entry(shape="[-4]"), 16), "shape"),
            (header(entry(shape="[4.0]"), 16), "shape"),
            (header(entry(shape="[9223372036854775808]"), 16), "shape"),
            (header(entry(shape="[4611686018427387904,4611686018427387904]"), 16), "bytes: found 16"),
            (header(entry(offsets="[16,0]"), 16), "bytes: found -16"),
            (header(entry(offsets="[4,20]"), 20), "first byte: found 4, expected 0"),
            (header(entry(offsets="[0,12]"), 12), "found 12, expected 16"),
            (good[:-1], "bytes of data: found 15, expected 16"),
            (good + b"x", "bytes of data: found 17, expected 16"),
            (safetensors({"ln_f": np.float32([1, 2, np.inf, 4])}), "'wte'"),
            (safetensors({**source(), "ln_f": np.float32([1, 2, np.inf, 4])}), "flat index 2 (inf)"),
            (safetensors({**source(), "ln_f": np.ones(4, np.int64)}), "found I64"),
        ):
            with self.subTest(part=part, data=data[:60]):
                pathlib.Path(self.checkpoint).write_bytes(data)
                self.refused(self.checkpoint, part)


if __name__ == "__main__":
    unittest.main()
