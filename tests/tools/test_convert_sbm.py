"""convert.py sbm-transformer: what well-formed checkpoints become, and what it says where config and tensors differ."""

import json
import os
import sys
import tempfile
import unittest

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from checkpoints import (  # noqa: E402
    ROOT,
    SMALL,
    convert,
    convert_process,
    read_model,
    state_dict,
    write_authors,
)

LRA = {**SMALL, "embedding_dim": 64, "transformer_dim": 64, "transformer_hidden_dim": 128, "head_dim": 32}
LRA.update(num_clusters=128, vocab_size=512, num_classes=2)


class SbmTransformerTest(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.folder = self._folder.name

    def run_convert(self, tensors: dict, config: object, *more: str, output: str = "model/1"):
        checkpoint, table = write_authors(self.folder, tensors, config)
        self.output = os.path.join(self.folder, output)
        return convert(
            "sbm-transformer", "--checkpoint", checkpoint, "--config", table, "--output", self.output, *more
        )

    def converted(self, tensors: dict, config: object, *more: str) -> tuple:
        result = self.run_convert(tensors, config, *more)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return read_model(self.output)

    def refused(self, tensors: dict, config: object, *parts: str, more: tuple = (), output: str = "model/1") -> None:
        result = self.run_convert(tensors, config, *more, output=output)
        self.assertEqual(result.returncode, 2, result.stdout)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        for part in parts:
            self.assertIn(part, result.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.output, "config.json")))

    def test_listops(self):
        config = {**LRA, "vocab_size": 32, "num_classes": 10, "max_seq_len": 2048}
        tensors = state_dict(config)
        model, result = self.converted(tensors, {**config, "max_seq_len": 2000})
        self.assertEqual(sum(values.size for values in result.values()), 230410)
        expected = {
            "task": "sequence-classification",
            "vocab_size": 32,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "tied_layers": False,
            "num_attention_heads": 2,
            "head_dim": 32,
            "intermediate_size": 128,
            "max_position_embeddings": 2048,
            "layer_norm_eps": 1e-5,
            "hidden_act": "gelu",
            "norm_position": "pre",
            "position_embedding": "learned",
            "pad_token_id": 0,
            "pooling": {"kind": "mean", "divisor": "max_length"},
            "num_labels": 10,
            "classifier_hidden_size": 128,
            "tokenizer": {"kind": "none"},
            "attention": {"kind": "sbm", "num_clusters": 128, "law": "bernoulli", "exploration": 0.01},
        }
        self.assertEqual(model, expected)
        pairs = {
            "embeddings.word.weight": "model.embeddings.word_embeddings.weight",
            "embeddings.position.weight": "model.embeddings.position_embeddings.weight",
            "layers.0.attention_norm.bias": "model.transformer_0.norm1.bias",
            "layers.0.attention.query.weight": "model.transformer_0.mha.W_q.weight",
            "layers.1.attention.key.weight": "model.transformer_1.mha.W_k.weight",
            "layers.1.attention.value.bias": "model.transformer_1.mha.W_v.bias",
            "layers.1.attention.output.weight": "model.transformer_1.mha.ff.weight",
            "layers.0.attention.clusters": "model.transformer_0.mha.attn.clusters",
            "layers.0.attention.membership.0.weight": "model.transformer_0.mha.attn.proj.0.weight",
            "layers.1.attention.membership.1.bias": "model.transformer_1.mha.attn.proj.2.bias",
            "layers.0.mlp_norm.weight": "model.transformer_0.norm2.weight",
            "layers.0.mlp.up.weight": "model.transformer_0.mlpblock.0.weight",
            "layers.1.mlp.down.bias": "model.transformer_1.mlpblock.3.bias",
            "final_norm.weight": "model.norm.weight",
            "classifier.hidden.weight": "seq_classifer.mlpblock.0.weight",
            "classifier.output.bias": "seq_classifer.mlpblock.2.bias",
        }
        for ours, theirs in pairs.items():
            np.testing.assert_array_equal(result[ours], tensors[theirs], ours)
        # Every tensor arrives once: the random values of the source and of the result are the same set.
        flat = [np.sort(np.concatenate([v.reshape(-1) for v in t.values()])) for t in (tensors, result)]
        np.testing.assert_array_equal(*flat)

    def test_text_softmax_with_bytes(self):
        config = {**LRA, "max_seq_len": 3072, "attn_type": "softmax"}
        model, result = self.converted(state_dict(config), {**config, "max_seq_len": 4000}, "--tokenizer", "byte")
        self.assertEqual(model["attention"], {"kind": "dense"})
        self.assertEqual(model["max_position_embeddings"], 3072)
        self.assertEqual(model["tokenizer"], {"kind": "byte", "offset": 1})
        self.assertEqual(sum(values.size for values in result.values()), 305026)
        self.assertNotIn("layers.0.attention.clusters", result)

    def test_retrieval_is_a_pair(self):
        config = {**LRA, "max_seq_len": 4096}
        model, result = self.converted(state_dict(config, dual=True), config)
        self.assertEqual(model["task"], "pair-classification")
        self.assertEqual(result["classifier.hidden.weight"].shape, (128, 256))
        self.assertEqual(sum(values.size for values in result.values()), 415746)

    def test_tied_layers_are_stored_once(self):
        config = {**SMALL, "tied_weights": True, "num_layers": 5}
        model, result = self.converted(state_dict(config), config)
        self.assertEqual((model["tied_layers"], model["num_hidden_layers"]), (True, 5))
        self.assertIn("layers.0.mlp.up.weight", result)
        self.assertNotIn("layers.1.mlp.up.weight", result)

    def test_cls_takes_the_last_word(self):
        config = {**SMALL, "pooling_mode": "CLS"}
        model, _ = self.converted(state_dict(config), config)
        self.assertEqual((model["pooling"], model["cls_token_id"]), ({"kind": "cls"}, 19))

    def test_law_and_exploration(self):
        options = ("--law", "poisson_set", "--exploration", "0", "--description", "a test")
        model, _ = self.converted(state_dict(SMALL), SMALL, *options)
        expected = {"kind": "sbm", "num_clusters": 4, "law": "poisson_set", "exploration": 0.0}
        self.assertEqual(model["attention"], expected)
        self.assertEqual(model["description"], "a test")

    def test_missing_keys_come_from_the_tensors(self):
        self.converted(state_dict(SMALL), SMALL)
        whole = read_model(self.output)[0]
        model, _ = self.converted(state_dict(SMALL), {"pooling_mode": "MEAN"}, "--overwrite")
        self.assertEqual(model, whole)

    def test_forms_of_the_config(self):
        self.converted(state_dict(SMALL), SMALL)
        whole = read_model(self.output)[0]
        short = {key: value for key, value in SMALL.items() if key not in ("num_clusters", "attn_type")}
        entry = {"dataset": {}, "model": short, "extra_attn_config": {"sbm": {"attention_grad_checkpointing": False}}}
        printed = [SMALL, {"batch_size": 128}]  # the training script prints [model, training]
        for form in (entry, printed):
            self.assertEqual(self.converted(state_dict(SMALL), form, "--overwrite")[0], whole)

    def test_softmax_needs_heads_or_their_width(self):
        config = {**SMALL, "attn_type": "softmax"}
        tensors = state_dict(config)
        del config["num_head"]
        self.assertEqual(self.converted(tensors, config)[0]["num_attention_heads"], 2)
        del config["head_dim"]
        self.refused(tensors, config, "num_head", "found nothing", output="model/2")

    def test_contradictions_name_key_found_and_expected(self):
        tensors = state_dict(SMALL)
        for key, value, expected in (
            ("num_clusters", 5, "expected 4"),
            ("vocab_size", 21, "expected 20"),
            ("max_seq_len", 17, "expected 16"),
            ("transformer_dim", 16, "expected 8"),
            ("embedding_dim", 16, "expected 8"),
            ("transformer_hidden_dim", 8, "expected 12"),
            ("num_head", 3, "expected 2"),
            ("head_dim", 4, "expected 6"),
            ("num_layers", 3, "expected 2"),
            ("num_classes", 2, "expected 3"),
            ("tied_weights", True, "expected False"),
            ("attn_type", "softmax", "expected sbm"),
            ("attn_type", "nystrom-64", "expected softmax or sbm"),
            ("pooling_mode", "MAX", "expected MEAN or CLS"),
            ("num_layers", "2", "expected a positive integer"),
            ("vocab_size", True, "expected a positive integer"),
        ):
            with self.subTest(key=key, value=value):
                where = "task_sbm_output.json: " + key
                self.refused(tensors, {**SMALL, key: value}, where, f"found {value!r}", expected)

    def test_tied_needs_the_number_of_layers(self):
        config = {**SMALL, "tied_weights": True}
        tensors = state_dict(config)
        del config["num_layers"]
        self.refused(tensors, config, "num_layers", "found nothing")

    def test_tensors_missing_superfluous_or_of_another_shape(self):
        for name in state_dict(SMALL):
            tensors = state_dict(SMALL)
            del tensors[name]
            with self.subTest(missing=name):
                self.refused(tensors, SMALL, "task_sbm_output.model", name.split(".")[1])
        tensors = state_dict(SMALL)
        tensors["model.extra.weight"] = np.zeros(3, np.float32)
        self.refused(tensors, SMALL, "'model.extra.weight'", "belongs to no part")
        tensors = state_dict(SMALL)
        tensors["model.transformer_1.norm2.bias"] = np.zeros(9, np.float32)
        self.refused(tensors, SMALL, "'model.transformer_1.norm2.bias'", "found [9]", "expected [8]")

    def test_weights_must_be_finite(self):
        tensors = state_dict(SMALL)
        tensors["model.norm.weight"][3] = np.nan
        self.refused(tensors, SMALL, "'model.norm.weight'", "flat index 3", "nan")

    def test_half_precision_becomes_float32(self):
        tensors = {name: values.astype(np.float16) for name, values in state_dict(SMALL).items()}
        _, result = self.converted(tensors, SMALL)
        np.testing.assert_array_equal(
            result["final_norm.bias"], tensors["model.norm.bias"].astype(np.float32)
        )

    def test_vocabulary_and_labels(self):
        vocabulary, labels = (os.path.join(self.folder, name) for name in ("vocab.txt", "labels.txt"))
        words = ["<pad>", "0", "1", "X", "[MAX", "<unk>"]
        with open(vocabulary, "w", encoding="utf-8") as file:
            file.write("\n".join(words) + "\n")
        with open(labels, "w", encoding="utf-8") as file:
            file.write("no\nmaybe\r\nyes\n")
        options = ["--vocab", vocabulary, "--labels", labels, "--unknown_token", "<unk>"]
        options += ["--substitute", "]=X", "--substitute", "(="]
        model, _ = self.converted(state_dict(SMALL), SMALL, *options)
        self.assertEqual(
            model["tokenizer"],
            {"kind": "word", "vocabulary": words, "unknown_token_id": 5, "substitutions": {"]": "X", "(": ""}},
        )
        self.assertEqual(model["id2label"], {"0": "no", "1": "maybe", "2": "yes"})

    def test_bad_vocabulary_and_labels(self):
        path = os.path.join(self.folder, "lines.txt")
        for option, text, part in (
            ("--vocab", "a\nb\na\n", "line 3: token 'a' is line 1 already"),
            ("--vocab", "a\n\nb\n", "line 2: found ''"),
            ("--vocab", "a b\n", "line 1: found 'a b'"),
            ("--vocab", "".join(f"w{i}\n" for i in range(21)), "found 21, expected 1 to vocab_size 20"),
            ("--labels", "a\nb\n", "found 2, expected one for each of the 3 classes"),
            ("--labels", "a\nb\na\n", "distinct"),
        ):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            with self.subTest(text=text):
                self.refused(state_dict(SMALL), SMALL, path, part, more=(option, path))
        self.refused(state_dict(SMALL), SMALL, "at least 257", more=("--tokenizer", "byte"))
        self.refused(state_dict(SMALL), SMALL, "needs --vocab", more=("--tokenizer", "word"))

    def test_output_is_a_repository_entry_and_is_not_replaced_silently(self):
        for output in ("model", "Model/1", "model/v1", "model/0", ".model/1"):
            with self.subTest(output=output):
                self.refused(state_dict(SMALL), SMALL, "--output", output, output=output)
        self.converted(state_dict(SMALL), SMALL)
        result = self.run_convert(state_dict(SMALL, seed=1), SMALL)
        self.assertEqual(result.returncode, 2)
        self.assertIn("holds a model already", result.stderr)
        self.assertEqual(sorted(os.listdir(self.output)), ["config.json", "model.safetensors"])

    def test_command_line_errors_are_one_line(self):
        for arguments in ((), ("sbm-transformer",), ("nonsense",), ("sbm-transformer", "--law", "x")):
            result = convert_process(*arguments)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)


class RealTorchFileTest(unittest.TestCase):
    """A checkpoint that torch.save wrote (make_torch_fixture.py), with the logits of a PyTorch forward in float64."""

    def test_logits_of_the_converted_model(self):
        sys.path.insert(0, os.path.join(ROOT, "tests", "reference"))
        from edgewise_reference import Reference

        data = os.path.join(ROOT, "tests", "tools", "data")
        with open(os.path.join(data, "pair_sbm.expected.json"), encoding="utf-8") as file:
            expected = json.load(file)
        with tempfile.TemporaryDirectory() as folder:
            output = os.path.join(folder, "pair", "1")
            checkpoint, config = (os.path.join(data, "pair_sbm" + end) for end in (".model", ".json"))
            result = convert("sbm-transformer", "--checkpoint", checkpoint, "--config", config, "--output", output)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            reference = Reference(output)
            for case in expected:
                inputs = (case["token_ids"], case["second"], case["graph"])
                np.testing.assert_allclose(reference.logits(*inputs), case["logits"], rtol=0, atol=1e-9)
                for ours, theirs in zip(reference.probabilities_of_edges(*inputs), case["expected_edges"]):
                    np.testing.assert_allclose(ours.sum(axis=(1, 2)), theirs, rtol=0, atol=1e-8)


if __name__ == "__main__":
    unittest.main()
