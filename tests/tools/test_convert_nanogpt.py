"""convert.py nanogpt: what well-formed checkpoints become, and what it says of the others."""

import json
import os
import pathlib
import pickle
import struct
import sys
import tempfile
import unittest

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from checkpoints import ROOT, convert, read_model  # noqa: E402
from nanogpt_checkpoints import ARGS, checkpoint, state_dict  # noqa: E402
from torch_file import Raw, TorchFile, View  # noqa: E402

CHARACTERS = ["\n", " ", "a", "b", "ä"]
META = {"vocab_size": 5, "itos": dict(enumerate(CHARACTERS)), "stoi": {c: i for i, c in enumerate(CHARACTERS)}}
DATA = os.path.join(ROOT, "tests", "tools", "data")


class NanogptTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.checkpoint = os.path.join(self.folder, "ckpt.pt")
        self.versions = 0

    def file(self, name: str, data: object) -> str:
        path = os.path.join(self.folder, name)
        pathlib.Path(path).write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))
        return path

    def run_convert(self, value: object, *more: str):
        if value is not None:
            TorchFile(value).write(self.checkpoint)
        self.versions += 1
        self.output = os.path.join(self.folder, "shakespeare", str(self.versions))
        return convert("nanogpt", "--checkpoint", self.checkpoint, "--output", self.output, *more)

    def converted(self, value: object, *more: str) -> tuple:
        result = self.run_convert(value, *more)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return read_model(self.output)

    def refused(self, value: object, *parts: str, more: tuple = ()) -> None:
        result = self.run_convert(value, *more)
        self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr + result.stdout)
        for part in parts:
            self.assertIn(part, result.stderr)
        self.assertFalse(os.path.exists(self.output))

    def test_without_biases(self):
        tensors = state_dict()
        config, result = self.converted(checkpoint(tensors))
        expected = {
            "task": "causal-lm",
            "description": "nanoGPT, 250 iterations",
            "vocab_size": 5,
            "hidden_size": 8,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "head_dim": 4,
            "intermediate_size": 32,
            "max_position_embeddings": 16,
            "layer_norm_eps": 1e-5,
            "hidden_act": "gelu",
            "norm_position": "pre",
            "position_embedding": "learned",
            "causal": True,
            "tie_word_embeddings": True,
            "pad_token_id": -1,
            "attention": {"kind": "dense"},
            "tokenizer": {"kind": "none"},
        }
        self.assertEqual(config, expected)
        fused = tensors["transformer.h.1.attn.c_attn.weight"]
        for ours, theirs in (
            ("embeddings.word.weight", tensors["transformer.wte.weight"].values.reshape(5, 8)),
            ("embeddings.position.weight", tensors["transformer.wpe.weight"]),
            ("layers.1.attention.query.weight", fused[:8]),
            ("layers.1.attention.key.weight", fused[8:16]),
            ("layers.1.attention.value.weight", fused[16:]),
            ("layers.0.attention.output.weight", tensors["transformer.h.0.attn.c_proj.weight"]),
            ("layers.0.attention_norm.weight", tensors["transformer.h.0.ln_1.weight"]),
            ("layers.1.mlp_norm.weight", tensors["transformer.h.1.ln_2.weight"]),
            ("layers.0.mlp.up.weight", tensors["transformer.h.0.mlp.c_fc.weight"]),
            ("layers.1.mlp.down.weight", tensors["transformer.h.1.mlp.c_proj.weight"]),
            ("final_norm.weight", tensors["transformer.ln_f.weight"]),
        ):
            np.testing.assert_array_equal(result[ours], theirs, ours)
        self.assertNotIn("lm_head.weight", result)
        for name, values in result.items():
            self.assertEqual(np.any(values), not name.endswith(".bias"), name)
        self.assertIn("without biases; they are zeros", self.run_convert(None).stdout)

    def test_with_biases(self):
        args = {**ARGS, "bias": True}
        tensors = state_dict(args)
        result = self.run_convert(checkpoint(tensors, args))
        self.assertNotIn("without biases", result.stdout)
        _, converted = read_model(self.output)
        fused = tensors["transformer.h.0.attn.c_attn.bias"]
        np.testing.assert_array_equal(converted["layers.0.attention.query.bias"], fused[:8])
        np.testing.assert_array_equal(converted["layers.0.attention.value.bias"], fused[16:])
        np.testing.assert_array_equal(converted["final_norm.bias"], tensors["transformer.ln_f.bias"])
        old = {name: args[name] for name in args if name not in ("bias", "dropout")}  # as the first versions wrote
        self.assertEqual(self.run_convert(checkpoint(tensors, old)).returncode, 0)
        np.testing.assert_array_equal(read_model(self.output)[1]["final_norm.bias"], tensors["transformer.ln_f.bias"])

    def test_the_output_layer_is_tied_or_its_own(self):
        tensors = state_dict(head=True)
        config, result = self.converted(checkpoint(tensors))
        self.assertFalse(config["tie_word_embeddings"])
        np.testing.assert_array_equal(result["lm_head.weight"], tensors["lm_head.weight"])
        equal = {**tensors, "lm_head.weight": tensors["transformer.wte.weight"].copy()}
        absent = {name: values for name, values in tensors.items() if name != "lm_head.weight"}
        for tied in (equal, absent):
            config, result = self.converted(checkpoint(tied))
            self.assertTrue(config["tie_word_embeddings"])
            self.assertNotIn("lm_head.weight", result)

    def test_a_compiled_model_and_buffers(self):
        args = {**ARGS, "bias": True}
        tensors = state_dict(args)
        _, plain = self.converted(checkpoint(tensors, args))
        tensors["transformer.h.0.attn.bias"] = np.tril(np.ones((1, 1, 16, 16), np.float32))
        tensors["transformer.h.1.attn.masked_bias"] = np.array(-1e4, np.float32)
        prefixed = {"_orig_mod." + name: values for name, values in tensors.items()}
        for value in (tensors, prefixed):
            _, result = self.converted(checkpoint(value, args))
            self.assertEqual(list(result), list(plain))
            for name in plain:
                np.testing.assert_array_equal(result[name], plain[name])

    def test_what_only_training_needs_is_not_read(self):
        file = TorchFile(checkpoint(state_dict()))
        used = [key for key, data in file.storages.items() if len(data) in (4, 24)]  # step, best_val_loss and exp_avg
        self.assertEqual(len(used), 3)
        file.write(self.checkpoint, leave_out=tuple(f"data/{key}" for key in used))
        self.converted(None)

    def test_character_vocabularies(self):
        for option, name, data in (
            ("--vocab", "vocab.txt", "".join(CHARACTERS)),
            ("--vocab", "vocab.txt", "".join(CHARACTERS) + "\n"),
            ("--vocab", "vocab.json", json.dumps(CHARACTERS)),
            *(("--meta", "meta.pkl", pickle.dumps(META, protocol)) for protocol in (2, 3, 4, 5)),
        ):
            with self.subTest(name=name, data=data):
                config, _ = self.converted(checkpoint(state_dict()), option, self.file(name, data))
                self.assertEqual(config["tokenizer"], {"kind": "char", "vocabulary": CHARACTERS})

    def test_vocabularies_that_are_refused(self):
        def meta(**changes: object) -> bytes:
            return pickle.dumps({**META, **changes}, 4)

        reduce = b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R."
        for option, name, data, part in (
            ("--vocab", "v.txt", "\n ab", "characters: found 4, expected vocab_size 5"),
            ("--vocab", "v.txt", "\n aba", "entry 4: 'a' is entry 2 already"),
            ("--vocab", "v.txt", b"\n ab\xff", "byte 4: not UTF-8"),
            ("--vocab", "v.txt", "", "characters: found 0"),
            ("--vocab", "v.json", '["a", "b", "c", "d", "ef"]', "entry 4: found 'ef', expected one character"),
            ("--vocab", "v.json", '["a", "b", "c", "d", ""]', "entry 4: found ''"),
            ("--vocab", "v.json", '["a", "b", "c", "d", 5]', "entry 4: found 5"),
            ("--vocab", "v.json", '["a", "b", "c", "d", "\\ud800"]', "entry 4"),
            ("--vocab", "v.json", "{}", "not a JSON list"),
            ("--vocab", "v.json", "abc", "not JSON"),
            ("--meta", "m.pkl", reduce, "refuses the global 'os.system'"),
            ("--meta", "m.pkl", b"", "not a readable pickle"),
            ("--meta", "m.pkl", pickle.dumps([1]), "not a dict of vocab_size"),
            ("--meta", "m.pkl", meta(itos=5), "itos: found 'int', expected a dict"),
            ("--meta", "m.pkl", meta(vocab_size=6), "vocab_size: found 6, expected 5"),
            ("--meta", "m.pkl", meta(itos={1: "a", 2: "b", 3: "c", 4: "d", 5: "e"}), "id 0 is missing"),
            ("--meta", "m.pkl", meta(stoi={"a": 0}), "stoi is not the inverse of itos"),
            ("--meta", "m.pkl", meta(itos={0: "\n", 1: " ", 2: "a", 3: "b", 4: "ab"}), "stoi is not the inverse"),
        ):
            with self.subTest(data=data):
                self.refused(checkpoint(state_dict()), name, part, more=(option, self.file(name, data)))
        args = {**ARGS, "vocab_size": 50304}
        path = self.file("v.txt", "".join(CHARACTERS))
        self.refused(checkpoint(state_dict(args), args), "byte pairs of GPT-2", more=("--vocab", path))
        config, _ = self.converted(checkpoint(state_dict(args), args))
        self.assertEqual(config["tokenizer"], {"kind": "none"})

    def test_attention_from_a_file(self):
        for attention in (
            {"kind": "ssa", "bias": "local", "windows": 4, "sigma": [0.1, 0.3], "last_layers": 1},
            {"kind": "block", "block_size": 4, "pattern": "local"},
            [{"kind": "dense"}, {"kind": "ssa", "bias": "none", "keep": 3}],
        ):
            path = self.file("attention.json", json.dumps(attention))
            config, _ = self.converted(checkpoint(state_dict()), "--attention", path)
            self.assertEqual(config["attention"], attention)
        for attention, part in (
            ({"kind": "sbm", "num_clusters": 4, "law": "bernoulli"}, "dense, ssa or block, as task is causal-lm"),
            ({"kind": "block", "block_size": 4, "pattern": "learned", "threshold": 0.5}, "nanoGPT does not train"),
            ([{"kind": "dense"}], "entries: found 1"),
            ({"attention": {"kind": "dense"}}, "attention.kind: found None"),
            ("dense", "attention.kind: found None"),
        ):
            path = self.file("attention.json", json.dumps(attention))
            self.refused(checkpoint(state_dict()), "attention.json", part, more=("--attention", path))

    def test_faults_of_model_args(self):
        for changes, part in (
            ({"n_layer": "2"}, "model_args: n_layer: found '2', expected a positive integer"),
            ({"n_head": 0}, "n_head: found 0"),
            ({"n_head": 3}, "n_embd: found 8, expected a multiple of n_head 3"),
            ({"block_size": True}, "block_size: found True"),
            ({"bias": 1}, "bias: found 1, expected true or false"),
            ({"n_kv_head": 2}, "'n_kv_head' is no setting of nanoGPT's model"),
            ({"n_layer": 1 << 30}, "num_hidden_layers: found 1073741824"),
            ({"n_layer": 3}, "tensor 'transformer.h.2.ln_1.weight' is missing"),
            ({"n_layer": 1}, "tensor 'transformer.h.1.attn.c_attn.weight' belongs to no part"),
            ({"block_size": 17}, "tensor 'transformer.wpe.weight': shape: found [16, 8], expected [17, 8]"),
            ({"vocab_size": 1 << 30}, "tensor 'transformer.wte.weight': shape: found [5, 8]"),
            ({"bias": True}, "tensor 'transformer.h.0.ln_1.bias' is missing"),
        ):
            with self.subTest(changes=changes):
                self.refused(checkpoint(state_dict(), {**ARGS, **changes}), "ckpt.pt", part)
        for args in (None, 5, {name: value for name, value in ARGS.items() if name != "n_embd"}):
            self.refused(checkpoint(state_dict(), args), "ckpt.pt", "model_args")
        self.refused(state_dict(), "no dicts `model` and `model_args`")
        biased = checkpoint(state_dict({**ARGS, "bias": True}))
        self.refused(biased, "tensor 'transformer.h.0.attn.c_attn.bias' belongs to no part")

    def test_faults_of_tensors(self):
        fused, norm = "transformer.h.0.attn.c_attn.weight", "transformer.ln_f.weight"
        ones = np.ones(8, np.float32)
        for name, value, parts in (
            (fused, np.ones((8, 24), np.float32), (fused, "found [8, 24], expected [24, 8]")),  # GPT-2's layout
            (fused, None, (fused, "is missing")),
            ("transformer.h.0.mlp.c_fc.weight", None, ("transformer.h.0.mlp.c_fc.weight", "is missing")),
            ("transformer.h.0.mlp.c_fc.weight", ones, ("c_fc.weight", "found [8], expected 2 dimensions")),
            ("transformer.h.1.mlp.c_fc.weight", np.ones((16, 8), np.float32), ("h.1.mlp.c_fc", "expected [32, 8]")),
            (norm, np.float32([1, 2, 3, 4, 5, 6, np.nan, 8]), (norm, "flat index 6 (nan)")),
            (norm, np.ones(8, np.int64), (norm, "found I64")),
            (norm, View(ones, (8,), (0,)), (norm, "uses elements twice")),
            (norm, View(ones, (8,), (1,), offset=1), (norm, "of a storage of 8")),
            ("lm_head.weight", np.ones((6, 8), np.float32), ("lm_head.weight", "found [6, 8], expected [5, 8]")),
            ("lm_head.bias", np.ones(5, np.float32), ("'lm_head.bias' belongs to no part",)),
            ("transformer.h.0.attn.c_attn.lora", ones, ("c_attn.lora' belongs to no part",)),
            ("transformer.h.0.attn.rotary.bias", ones, ("attn.rotary.bias' belongs to no part",)),
            ("_orig_mod." + norm, ones, (norm, "with and without _orig_mod.")),
            (7, ones, ("a tensor has the number 7 for a name",)),
            (norm, Raw(b"cos\nsystem\nX" + struct.pack("<I", 4) + b"true\x85R"), ("refuses the global 'os.system'",)),
        ):
            with self.subTest(name=name, parts=parts):
                tensors = {**state_dict(), name: value}
                self.refused(checkpoint({k: v for k, v in tensors.items() if v is not None}), "ckpt.pt", *parts)


class RealTorchFileTest(unittest.TestCase):
    """Checkpoints that torch.save wrote (make_nanogpt_fixture.py), with the logits of a PyTorch forward in float64."""

    def test_logits_of_the_converted_model(self):
        sys.path.insert(0, os.path.join(ROOT, "tests", "reference"))
        from edgewise_reference import Reference

        meta = os.path.join(DATA, "nanogpt.meta.pkl")
        for name, tied in (("nanogpt", True), ("nanogpt_bias", False)):
            with tempfile.TemporaryDirectory() as folder:
                output, source = os.path.join(folder, "gpt", "1"), os.path.join(DATA, name + ".pt")
                result = convert("nanogpt", "--checkpoint", source, "--meta", meta, "--output", output)
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                reference = Reference(output)
                self.assertEqual(reference.config["tie_word_embeddings"], tied)
                self.assertEqual("".join(reference.config["tokenizer"]["vocabulary"]), "\n !,.:abcdefghinorstuwä")
                for case in json.loads(pathlib.Path(DATA, name + ".expected.json").read_text(encoding="utf-8")):
                    ids = case["token_ids"]
                    np.testing.assert_allclose(reference.logits(ids), case["logits"], rtol=0, atol=1e-12)
                    logs = reference.log_probabilities(ids)
                    np.testing.assert_allclose(logs, case["log_probabilities"], rtol=0, atol=1e-12)


if __name__ == "__main__":
    unittest.main()
