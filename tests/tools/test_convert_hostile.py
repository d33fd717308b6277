"""Checkpoints that are damaged or that try something: each refused in one line, nothing executed, nothing written."""

import os
import pathlib
import random
import struct
import sys
import tempfile
import unittest
import zipfile

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import nanogpt_checkpoints  # noqa: E402
from checkpoints import SMALL, convert, state_dict, write_authors  # noqa: E402
from torch_file import Raw, TorchFile, View  # noqa: E402

NAME = "model.norm.weight"  # the tensor that a test replaces; its shape is [8]


class HostileFileTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.output = os.path.join(self.folder, "model", "1")
        self.checkpoint, self.config = write_authors(self.folder, state_dict(SMALL), SMALL, "good")

    def run_convert(self):
        return convert(
            "sbm-transformer", "--checkpoint", self.checkpoint, "--config", self.config, "--output", self.output
        )

    def refused(self, *parts: str) -> None:
        result = self.run_convert()
        self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr + result.stdout)
        for part in parts:
            self.assertIn(part, result.stderr)
        self.assertFalse(os.path.exists(self.output))

    def replace(self, value: object) -> None:
        """Writes the good checkpoint with one tensor replaced."""
        TorchFile({"model_state_dict": {**state_dict(SMALL), NAME: value}}).write(self.checkpoint)

    def with_pickle(self, data: bytes) -> None:
        file = TorchFile({})
        file.pickle = data
        file.write(self.checkpoint)

    def test_the_good_file_is_good(self):
        self.replace(np.ones(8, np.float32))
        self.assertEqual(self.run_convert().returncode, 0)

    def test_globals_are_refused_and_not_called(self):
        target = os.path.join(self.folder, "executed")
        command = b"X" + struct.pack("<I", len(target) + 6) + b"touch " + target.encode()
        for module, name in (
            ("os", "system"),
            ("posix", "system"),
            ("builtins", "eval"),
            ("builtins", "getattr"),
            ("torch", "load"),
            ("torch._utils", "_rebuild_tensor"),
            ("torch.storage", "_load_from_bytes"),
            ("collections", "deque"),
            ("numpy.core.multiarray", "_reconstruct"),
        ):
            code = f"c{module}\n{name}\n".encode() + command + b"\x85R"
            with self.subTest(name=name):
                self.replace(Raw(code))
                self.refused("refuses the global", f"'{module}.{name}'")
                stack = b"".join(b"X" + struct.pack("<I", len(t)) + t.encode() for t in (module, name))
                self.with_pickle(b"\x80\x04" + stack + b"\x93" + command + b"\x85R.")
                self.refused("refuses the global", f"'{module}.{name}'")
        self.assertFalse(os.path.exists(target))

    def test_opcodes_that_torch_save_does_not_write(self):
        for name, code in (
            ("INST", b"(ios\nsystem\n"),
            ("OBJ", b"(N" + b"o"),
            ("NEWOBJ", b"N)\x81"),
            ("NEWOBJ_EX", b"N)}\x92"),
            ("EXT1", b"\x82\x01"),
            ("PERSID", b"P0\n"),
            ("DUP", b"N2"),
            ("POP", b"N0"),
            ("EMPTY_SET", b"\x8f"),
            ("STRING", b"S'x'\n"),
            ("BYTEARRAY8", b"\x96" + bytes(8)),
            ("NEXT_BUFFER", b"\x97"),
        ):
            with self.subTest(name=name):
                self.with_pickle(b"\x80\x02" + code + b".")
                self.refused(f"pickle opcode {name} is not allowed")

    def test_broken_pickles(self):
        ordered = b"ccollections\nOrderedDict\n"
        text = b"X\x01\x00\x00\x00a"
        for code, part in (
            (b"\xff.", "not a readable pickle"),
            (b"", "not a readable pickle"),
            (b"}", "not a readable pickle"),
            (b"X\xff\xff\xff\x7fabc.", "not a readable pickle"),
            (b"\x8b\xff\xff\xff\x7f.", "not a readable pickle"),
            (b".", "empty stack"),
            (b"N\x86.", "empty stack"),
            (b"t.", "no MARK"),
            (b"(.", "empty stack"),
            (b"h\x05.", "memo entry 5"),
            (b"}(Nu.", "pairs"),
            (b"}NNs.", "dict key is of type NoneType"),
            (b"}])s.", "dict key is of type list"),
            (b"}(" + text + b"N" + text + b"Nu.", "duplicate key 'a'"),
            (b"NNa.", "APPENDS needs a list"),
            (b"NQ.", "persistent id"),
            (b"N)R.", "not a function of the allow-list"),
            (b"ctorch\nFloatStorage\n)R.", "not a function of the allow-list"),
            (ordered + b"NR.", "tuple of arguments"),
            (ordered + b"N\x85R.", "OrderedDict arguments: found 1, expected 0"),
            (b"}}b.", "BUILD is allowed on an OrderedDict only"),
            (ordered + b")R}" + text + b"Nsb.", "other than _metadata"),
            (b"ctorch._utils\n_rebuild_tensor_v2\n)R.", "found 0, expected 6 or 7"),
            (b"}.", "no state dict"),
            (b"N.", "no state dict"),
        ):
            with self.subTest(code=code):
                self.with_pickle(b"\x80\x02" + code if code else b"")
                self.refused("good.model", part)

    def test_deep_and_self_containing_values_do_no_harm(self):
        self.with_pickle(b"\x80\x02" + b"N" + b"\x85" * 200_000 + b".")
        self.refused("no state dict")
        self.with_pickle(b"\x80\x02}q\x00X\x10\x00\x00\x00model_state_dicth\x00s.")
        self.refused("no state dict")

    def test_tensors_that_do_not_fit_their_storage(self):
        ones = np.ones(8, np.float32)
        for view, part in (
            (View(ones, (8,), (1,), count=9), "found 32, expected 36 (9 of F32)"),
            (View(ones, (8,), (1,), count=7), "found 32, expected 28 (7 of F32)"),
            (View(ones, (8,), (1,), storage="DoubleStorage"), "found 32, expected 64 (8 of F64)"),
            (View(ones, (8,), (1,), offset=1), "reach element 8 of a storage of 8"),
            (View(ones, (8,), (2,)), "reach element 14 of a storage of 8"),
            (View(ones, (8,), (1 << 40,)), "of a storage of 8"),
            (View(ones, (8,), (0,)), "uses elements twice"),
            (View(ones, (8,), (-1,)), "not non-negative integers"),
            (View(ones, (8,), (1,), offset=-8), "not non-negative integers"),
            (View(ones, (8,), (1,), count=-8), "no element count"),
            (View(ones, (8, 1), (1,)), "not non-negative integers"),
            (View(ones, (8,), (True,)), "not non-negative integers"),
            (View(ones, (8,) * 9, (1,) * 9), "not non-negative integers"),
            (View(ones.astype(np.int64), (8,), (1,)), "found I64, expected one of F32"),
            (View(ones, (7,), (1,)), "found [7], expected [8]"),
            (View(ones, (1 << 62,), (0,)), "found [4611686018427387904], expected [8]"),
            (View(ones, (), ()), "found [], expected 1 positive numbers"),
            (View(ones, (8,), (1,), storage="ComplexFloatStorage"), "refuses the global 'torch.ComplexFloatStorage'"),
            (View(np.full(8, 1e300), (8,), (1,)), "not finite in float32"),
        ):
            with self.subTest(part=part):
                self.replace(view)
                self.refused(part)

    def test_overlapping_strides(self):
        name = "model.transformer_0.mha.attn.proj.0.weight"  # [6, 6]
        values = np.arange(36, dtype=np.float32)
        for stride, good in (((6, 1), True), ((1, 6), True), ((5, 1), False), ((1, 1), False), ((0, 1), False)):
            tensors = {**state_dict(SMALL), name: View(values, (6, 6), stride)}
            TorchFile({"model_state_dict": tensors}).write(self.checkpoint)
            with self.subTest(stride=stride):
                if not good:
                    self.refused(name, "uses elements twice")
                    continue
                self.output = os.path.join(self.folder, "model", f"{stride[0]}")
                self.assertEqual(self.run_convert().returncode, 0)
                self.output = os.path.join(self.folder, "model", "99")

    def test_missing_data(self):
        file = TorchFile({"model_state_dict": state_dict(SMALL)})
        file.write(self.checkpoint, leave_out=("data/0",))
        self.refused("'model.embeddings.word_embeddings.weight'", "'archive/data/0'", "missing")
        file.write(self.checkpoint, leave_out=("data.pkl",))
        self.refused("<archive>/data.pkl", "found 0, expected 1")

    def test_a_storage_key_is_only_a_member_name(self):
        self.replace(View(np.ones(8, np.float32), (8,), (1,), key="../../etc/passwd"))
        self.assertEqual(self.run_convert().returncode, 0)  # the zip holds a member of that name; no path is opened

    def test_compressed_members(self):
        TorchFile({"model_state_dict": state_dict(SMALL)}).write(self.checkpoint, stored=False)
        self.refused("compressed or encrypted")

    def test_two_members_of_one_name(self):
        with self.assertWarns(UserWarning), zipfile.ZipFile(self.checkpoint, "a") as file:
            file.writestr("good/data/0", b"other")
        self.refused("two zip members have one name")

    def test_truncated_and_changed_files(self):
        data = pathlib.Path(self.checkpoint).read_bytes()
        for length in (0, 3, 4, 100, len(data) // 2, len(data) - 1):
            with self.subTest(length=length):
                pathlib.Path(self.checkpoint).write_bytes(data[:length])
                self.refused("good.model")
        changed = bytearray(data)
        changed[data.index(state_dict(SMALL)[NAME].tobytes())] ^= 1
        pathlib.Path(self.checkpoint).write_bytes(changed)
        self.refused("Bad CRC-32")

    def test_random_damage_never_escapes_as_another_exception(self):
        data = pathlib.Path(self.checkpoint).read_bytes()
        pickled = TorchFile({"model_state_dict": state_dict(SMALL)}).pickle
        dice = random.Random(7)
        for trial in range(300):
            if trial % 2:
                changed = bytearray(data)
                start = dice.choice((0, len(data) - 4000))  # the headers of the first members, or the directory
                for _ in range(dice.randrange(1, 4)):
                    changed[start + dice.randrange(4000)] = dice.randrange(256)
                pathlib.Path(self.checkpoint).write_bytes(changed)
            else:
                changed = bytearray(pickled)
                for _ in range(dice.randrange(1, 4)):
                    changed[dice.randrange(len(changed))] = dice.randrange(256)
                file = TorchFile({"model_state_dict": state_dict(SMALL)})
                file.pickle = bytes(changed)
                file.write(self.checkpoint)
            self.output = os.path.join(self.folder, "model", str(trial + 1))
            result = self.run_convert()
            self.assertIn(result.returncode, (0, 2))
            self.assertEqual(result.stderr.count("\n"), result.returncode // 2, result.stderr)

    def test_files_of_another_kind(self):
        for data in (b"\x80\x02}q\x00.", b"<html>", b"\x08\0\0\0\0\0\0\0{}      ", b"PK\x03\x04"):
            pathlib.Path(self.checkpoint).write_bytes(data)
            self.refused("good.model")
        os.unlink(self.checkpoint)
        self.refused("No such file")
        os.mkfifo(self.checkpoint)
        self.refused("not a regular file")
        os.unlink(self.checkpoint)
        os.mkdir(self.checkpoint)
        self.refused("not a regular file")

    def test_bad_config_files(self):
        for text, part in (
            ("", "not JSON"),
            ("{", "not JSON"),
            ("[]", "not a JSON object"),
            ("3", "not a JSON object"),
            ('{"num_head": 2, "num_head": 3}', "duplicate key 'num_head'"),
            ('{"num_head": NaN}', "NaN"),
            ('{"num_head": 1e400}', "found inf"),
            ('{"num_head": -2}', "found -2"),
            ("[" * 100_000, "nested more than 64 levels deep"),
            ('{"model": {}}', "pooling_mode: found nothing"),
        ):
            pathlib.Path(self.config).write_text(text, encoding="utf-8")
            with self.subTest(text=text[:40]):
                self.refused("good.json", part)
        pathlib.Path(self.config).write_bytes(b"\xff\xfe")
        self.refused("good.json", "not JSON")


class HostileValueTest(unittest.TestCase):
    """Values that are small in a file and long, deep or endless as text: one short line refuses each."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.checkpoint, self.file = (os.path.join(self.folder, name) for name in ("ckpt.pt", "F.json"))
        self.write_checkpoint()

    def write_checkpoint(self, **settings: object) -> None:
        args = {**nanogpt_checkpoints.ARGS, **settings}
        TorchFile(nanogpt_checkpoints.checkpoint(nanogpt_checkpoints.state_dict(), args)).write(self.checkpoint)

    def refused(self, part: str, *arguments: str) -> None:
        output = os.path.join(self.folder, "model", "1")
        result = convert("nanogpt", "--checkpoint", self.checkpoint, *arguments, "--output", output)
        self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr[:500])
        self.assertRegex(result.stderr, r"\Aconvert\.py: .*\n\Z")
        self.assertLess(len(result.stderr), 400)
        self.assertIn(part, result.stderr)
        self.assertFalse(os.path.exists(output))

    def test_values_of_a_pickle(self):
        laughs = b"]q\0"  # ten times the list before it, 20 times over
        for i in range(20):
            laughs = b"](" + laughs + bytes((ord("h"), i)) * 9 + b"eq" + bytes((i + 1,))
        for value, part in (
            (laughs, "found [[[[[["),
            (b"]q\0h\0a", "found [[[[[["),  # a list that holds itself
            (b"N" + b"\x85" * 100_000, "found (((((("),
            (b"\x8a\xff" + b"\x7f" * 255, "found an integer of 2039 bits"),
            (b"X" + struct.pack("<I", 1_000_000) + b"a" * 1_000_000, "found 'aaaaaa"),
        ):
            with self.subTest(part=part, value=value[:20]):
                meta = b"\x80\x02}(X\x0a\0\0\0vocab_size" + value + b"X\x04\0\0\0itos}X\x04\0\0\0stoi}u."
                pathlib.Path(self.file).write_bytes(meta)
                self.write_checkpoint()
                self.refused(part, "--meta", self.file)
                self.write_checkpoint(n_layer=Raw(value))
                self.refused(part)

    def test_values_of_a_json_file(self):
        values = (
            ("[" + "7," * 100_000 + "7]", "found [7, 7, 7, "),
            ('"' + "a" * 1_000_000 + '"', "found 'aaaaaa"),
            ("9" * 400, "found an integer of 1329 bits"),
            ("9" * 5_000, "not JSON: 'Exceeds the limit (4300 digits)"),
            ("[" * 60 + "]" * 60, "found [[[[[["),
            ("[" * 65 + "]" * 65, "nested more than 64 levels deep"),
            ('{"a":' * 900 + "1" + "}" * 900, "nested more than 64 levels deep"),
            ("[" * 100_000 + "]" * 100_000, "nested more than 64 levels deep"),
        )
        for attention in (
            '{"kind": %s}',
            '{"kind": "ssa", "bias": "local", "windows": %s, "sigma": 1}',
            '{"kind": "ssa", "bias": "local", "windows": 2, "sigma": {"a": %s}}',
            '{"kind": "block", "pattern": "list", "block_size": 2, "blocks": [%s]}',
        ):
            for value, part in values:
                with self.subTest(attention=attention, part=part):
                    pathlib.Path(self.file).write_text(attention % value, encoding="utf-8")
                    self.refused(part.removeprefix("found "), "--attention", self.file)

    def test_integers_that_no_float_holds(self):
        digits = "9" * 4_000
        for fields, part in (
            (f'"sigma": {digits}', "sigma: found an integer of 13288 bits"),
            (f'"sigma": [1, {digits}]', "sigma: found an integer of 13288 bits"),
            (f'"sigma": 1, "grid": [{digits}, {digits}]', "grid: found [an integer of 13288 bits, an integer"),
        ):
            with self.subTest(part=part):
                text = '{"kind": "ssa", "bias": "local", "windows": 2, %s}' % fields
                pathlib.Path(self.file).write_text(text, encoding="utf-8")
                self.refused(part, "--attention", self.file)


if __name__ == "__main__":
    unittest.main()
