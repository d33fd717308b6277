"""The checks of config.json and the list of tensors: faults by name, agreement with the models of tests/testdata."""

import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from checkpoints import ROOT, read_model  # noqa: E402
from edgewise_tools.config_checks import check_config  # noqa: E402
from edgewise_tools.errors import ConvertError  # noqa: E402
from edgewise_tools.model_format import optional_tensor_shapes, tensor_shapes  # noqa: E402

CLASSIFIER = {
    "task": "sequence-classification",
    "vocab_size": 10,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 6,
    "max_position_embeddings": 12,
    "pooling": {"kind": "mean", "divisor": "valid"},
    "num_labels": 3,
    "attention": {"kind": "dense"},
}
LANGUAGE = {key: value for key, value in CLASSIFIER.items() if key not in ("pooling", "num_labels")}
LANGUAGE["task"] = "causal-lm"
FEATURES = {key: value for key, value in CLASSIFIER.items() if key != "vocab_size"}
FEATURES.update(feature_size=4, task="regression")
LOCAL = {"kind": "ssa", "bias": "local", "windows": 3, "sigma": 0.2}
NONE = {"kind": "ssa", "bias": "none", "keep": 3}
BLOCK = {"kind": "block", "block_size": 5, "pattern": "diagonal"}
ADAPTIVE = {"min": 2, "max": 8, "alpha": 0.29}


def without(table: dict, name: str) -> dict:
    return {key: value for key, value in table.items() if key != name}


class ConfigTest(unittest.TestCase):
    def refused(self, config: dict, *parts: str) -> None:
        with self.subTest(parts=parts), self.assertRaises(ConvertError) as caught:
            check_config(config, "c.json")
        for part in ("c.json", *parts):
            self.assertIn(part, str(caught.exception))

    def test_what_is_allowed(self):
        for config in (
            CLASSIFIER,
            LANGUAGE,
            FEATURES,
            {**LANGUAGE, "causal": True, "tie_word_embeddings": False, "pad_token_id": -1},
            {**CLASSIFIER, "causal": False, "position_embedding": "alibi"},
            {**CLASSIFIER, "problem_type": "multi_label_classification"},
            {**CLASSIFIER, "pairwise_bias": {"kind": "buckets", "num_buckets": 256}},
            {**FEATURES, "pairwise_bias": {"kind": "values"}, "tokenizer": {"kind": "none"}, "pad_token_id": -1},
            *({**CLASSIFIER, "attention": attention} for attention in (
                LOCAL,
                {**LOCAL, "sigma": [0, 1], "last_layers": 1, "grid": [3, 4]},
                NONE,
                {"kind": "ssa", "bias": "none", "windows": 4},
                [LOCAL, BLOCK],
                {**BLOCK, "block_size": ADAPTIVE},
                {**BLOCK, "pattern": "local", "width": 0},
                {**BLOCK, "pattern": "strided", "stride": 2},
                {**BLOCK, "pattern": "list", "blocks": [[0, 1], [9, 9]]},
                {**BLOCK, "pattern": "learned", "threshold": 0.5},
            )),
        ):
            check_config(config, "c.json")

    def test_fields_that_do_not_go_together(self):
        for config, *parts in (
            ({**LANGUAGE, "causal": False}, "causal: found false, expected true, as task is causal-lm"),
            ({**CLASSIFIER, "causal": True}, "causal: found true, expected false"),
            ({**CLASSIFIER, "causal": 1}, "causal: found 1, expected true or false"),
            ({**CLASSIFIER, "tie_word_embeddings": True}, "tie_word_embeddings", "only causal-lm"),
            ({**LANGUAGE, "tie_word_embeddings": "yes"}, "tie_word_embeddings: found 'yes'"),
            ({**LANGUAGE, "pooling": {"kind": "mean", "divisor": "valid"}}, "pooling", "causal-lm has none"),
            ({**LANGUAGE, "classifier_hidden_size": 0}, "classifier_hidden_size", "causal-lm has no classifier"),
            ({**LANGUAGE, "num_labels": 3}, "num_labels", "causal-lm has no classifier"),
            ({**CLASSIFIER, "problem_type": "regression"}, "problem_type: found 'regression', expected one of single_"),
            ({**LANGUAGE, "problem_type": "multi_label_classification"}, "problem_type", "causal-lm is of one kind"),
            ({**LANGUAGE, "classifier_hidden_size": 3}, "classifier_hidden_size", "causal-lm has no classifier"),
            (without(CLASSIFIER, "num_labels"), "num_labels: found 'nothing'"),
            (without(CLASSIFIER, "vocab_size"), "vocab_size: found 'nothing'"),
            ({**CLASSIFIER, "feature_size": 4}, "vocab_size is given beside feature_size"),
            ({**FEATURES, "feature_size": 0}, "feature_size: found 0"),
            ({**without(LANGUAGE, "vocab_size"), "feature_size": 4}, "feature_size", "causal-lm models take tokens"),
            ({**FEATURES, "pad_token_id": 0}, "pad_token_id", "has no tokens"),
            ({**FEATURES, "cls_token_id": 1}, "cls_token_id", "has no tokens"),
            ({**FEATURES, "tokenizer": {"kind": "byte"}}, "tokenizer", "feature_size"),
            ({**FEATURES, "pooling": {"kind": "cls"}}, "pooling.kind", "feature_size"),
            ({**without(CLASSIFIER, "pooling"), "task": "regression"}, "pooling: found None"),
            ({**CLASSIFIER, "pad_token_id": 10}, "pad_token_id: found 10", "below vocab_size 10"),
            ({**CLASSIFIER, "position_embedding": "rotary"}, "'rotary'", "learned, sinusoidal, alibi, relative, none"),
            ({**CLASSIFIER, "pairwise_bias": {"kind": "bytes"}}, "pairwise_bias.kind: found 'bytes'"),
            ({**CLASSIFIER, "pairwise_bias": 5}, "pairwise_bias.kind: found None"),
            ({**CLASSIFIER, "pairwise_bias": {"kind": "values", "num_buckets": 4}}, "unknown field 'num_buckets'"),
            ({**CLASSIFIER, "pairwise_bias": {"kind": "buckets"}}, "num_buckets: found 'nothing'"),
            ({**CLASSIFIER, "pairwise_bias": {"kind": "buckets", "num_buckets": 257}}, "257, expected at most 256"),
        ):
            self.refused(config, *parts)

    def test_faults_of_attention(self):
        for attention, part in (
            ({"kind": "dense", "windows": 3}, "unknown field 'windows' of kind dense; its fields: none"),
            ({"kind": "ssa", "windows": 3, "sigma": 0.1}, "attention.bias: found 'nothing', expected local or none"),
            (without(LOCAL, "windows"), "attention.windows: found 'nothing'"),
            (without(LOCAL, "sigma"), "attention.sigma: found 'nothing'"),
            ({**LOCAL, "windows": 0}, "attention.windows: found 0"),
            ({**LOCAL, "sigma": -0.1}, "attention.sigma: found -0.1, expected a number from 0 to 1e+06"),
            ({**LOCAL, "sigma": float("inf")}, "attention.sigma: found inf"),
            ({**LOCAL, "sigma": [0.1]}, "attention.sigma: found [0.1]"),
            ({**LOCAL, "sigma": [0.1, "x"]}, "attention.sigma: found 'x'"),
            ({**LOCAL, "keep": 3}, "attention.keep is given, but belongs to bias none"),
            ({**LOCAL, "grid": [3, 5]}, "grid: found 3 * 5 = 15, expected as many places as max_position_embeddings"),
            ({**LOCAL, "grid": [12]}, "attention.grid: found [12], expected [rows, columns]"),
            ({**LOCAL, "last_layers": 3}, "attention.last_layers: found 3, expected an integer from 1 to 2"),
            ({**NONE, "windows": 3}, "needs keep or windows, and not both"),
            (without(NONE, "keep"), "needs keep or windows"),
            ({**NONE, "sigma": 0.1}, "attention.sigma is given, but belongs to bias local"),
            ([{**LOCAL, "sigma": [0.1, 0.2]}, LOCAL], "attention[0].sigma: found [0.1, 0.2], expected one number"),
            ([LOCAL, {**LOCAL, "last_layers": 1}], "attention[1].last_layers is given, but attention is a list"),
            ({**BLOCK, "pattern": "random"}, "attention.pattern: found 'random'"),
            ({**BLOCK, "pattern": []}, "attention.pattern: found []"),
            ({**BLOCK, "block_size": 0}, "attention.block_size: found 0"),
            ({**BLOCK, "block_size": {"min": 2}}, "attention.block_size: found {'min': 2}"),
            ({**BLOCK, "block_size": {**ADAPTIVE, "max": 1}}, "block_size.max: found 1, expected an integer from 2"),
            ({**BLOCK, "block_size": {**ADAPTIVE, "alpha": -1}}, "block_size.alpha: found -1"),
            ({**BLOCK, "width": 2}, "attention.width is given, but does not belong to pattern diagonal"),
            ({**BLOCK, "pattern": "local", "width": -1}, "attention.width: found -1"),
            ({**BLOCK, "pattern": "strided"}, "attention.stride: found 'nothing'"),
            ({**BLOCK, "pattern": "list"}, "attention.blocks: found None"),
            ({**BLOCK, "pattern": "list", "blocks": [[0, 1], [0]]}, "attention.blocks[1]: found [0]"),
            ({**BLOCK, "pattern": "learned"}, "attention.threshold: found 'nothing'"),
            ({**BLOCK, "pattern": "learned", "threshold": 1.5}, "attention.threshold: found 1.5"),
            (
                {"kind": "block", "block_size": ADAPTIVE, "pattern": "learned", "threshold": 0.5},
                "attention.block_size: found",
            ),
            ({"kind": "sbm", "num_clusters": 4, "law": "bernoulli", "exploration": 2}, "exploration: found 2"),
            ({**LOCAL, "windows": 1 << 21}, "attention.windows: found 2097152, expected an integer from 1 to 1048576"),
        ):
            self.refused({**CLASSIFIER, "attention": attention}, part)
        listed = {**CLASSIFIER, "attention": [LOCAL, NONE], "tied_layers": True}
        self.refused(listed, "attention[1] differs from attention[0]")
        self.refused({**LANGUAGE, "attention": {"kind": "sbm", "num_clusters": 4, "law": "bernoulli"}}, "causal-lm")


class TensorsTest(unittest.TestCase):
    def test_the_models_of_the_test_data(self):
        folder = os.path.join(ROOT, "tests", "testdata")
        cases = [case for case in sorted(os.listdir(folder)) if os.path.isdir(os.path.join(folder, case))]
        self.assertGreater(len(cases), 40)
        for case in cases:
            with self.subTest(case=case):
                config, tensors = read_model(os.path.join(folder, case, "1"))
                check_config(config, case)
                shapes = {name: values.shape for name, values in tensors.items()}
                required, optional = tensor_shapes(config), optional_tensor_shapes(config)
                self.assertEqual({**required, **{n: s for n, s in optional.items() if n in shapes}}, shapes)

    def test_the_example_models(self):
        folder = os.path.join(ROOT, "examples", "models")
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name, "1", "config.json")
            if not os.path.exists(path):
                continue
            with self.subTest(name=name), open(path, encoding="utf-8") as file:
                config = json.load(file)
                if "model_type" not in config:  # else a folder of Hugging Face
                    check_config(config, name)


if __name__ == "__main__":
    unittest.main()
