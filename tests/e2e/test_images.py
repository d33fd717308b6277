"""PNG and JPEG files through the programs and the Python client, against transformers."""

import json
import os
import tempfile
import unittest

from edgewise_process import TESTDATA, Server
from python_client import edgewise

FOLDERS = TESTDATA + "_images"
PHOTO = os.path.join(FOLDERS, "files", "photo.png")


def read(name: str) -> bytes:
    with open(os.path.join(FOLDERS, "files", name), "rb") as file:
        return file.read()


def golden(model: str) -> dict:
    with open(os.path.join(FOLDERS, model, "golden.json"), encoding="utf-8") as file:
        return json.load(file)["files"]


class ImagesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(FOLDERS).__enter__()
        cls.addClassCleanup(cls.server.__exit__, None, None, None)
        cls.client = edgewise.Client(cls.server.address, timeout=60).__enter__()
        cls.addClassCleanup(cls.client.__exit__, None, None, None)

    def assert_close(self, got, expected):
        self.assertEqual(len(got), len(expected))
        for one, other in zip(got, expected):
            self.assertAlmostEqual(one, other, delta=1e-4)

    def test_the_clients_answers_are_those_of_transformers(self):
        for name, entry in golden("vit_classes").items():
            answer = self.client.predict("vit_classes", read(name), logits=True)
            self.assert_close(answer.logits, entry["logits"])
        for name, entry in golden("vit_model").items():
            self.assert_close(self.client.predict("vit_model", bytearray(read(name))).embedding, entry["embedding"])
        model = self.client.model("vit_classes")
        self.assertEqual((model.image_width, model.image_height, model.feature_size), (8, 12, 48))

    def test_many_in_one_request(self):
        files = golden("vit_classes")
        answers = self.client.predict_many("vit_classes", [read(name) for name in files], logits=True, samples=2, seed=1)
        for answer, entry in zip(answers, files.values(), strict=True):
            self.assert_close(answer.logits, entry["logits"])

    def test_the_command_line_reads_files(self):
        entry = golden("vit_classes")["photo.png"]
        answer = self.server.predict("--model", "vit_classes", "--image", PHOTO, "--logits")
        self.assert_close(answer["predictions"][0]["logits"], entry["logits"])
        sparse = self.server.predict("--model", "vit_classes", "--image", PHOTO, "--windows=2", "--sigma=0.1",
                                     "--max_density=0.5")
        self.assertLessEqual(sparse["predictions"][0]["edges"]["density"], 0.5)
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as lines:
            for name in ("photo.png", "rgb.jpg", "gray.png"):
                lines.write(json.dumps({"image": os.path.join(FOLDERS, "files", name)}) + "\n")
            lines.flush()
            result = self.server.cli("predict", "--model", "vit_classes", "--input", lines.name)
        self.assertIn("3 answered, 0 failed", result.stdout, result.stderr)

    def test_what_is_no_image_is_refused_by_name(self):
        with self.assertRaisesRegex(edgewise.Error, "has the bytes of another format; PNG and JPEG are served") as refused:
            self.client.predict("vit_classes", b"GIF89a")
        self.assertEqual((refused.exception.code, refused.exception.field),
                         ("INVALID_ARGUMENT", "inputs[0].sequence.image"))
        missing = self.server.cli("predict", "--model", "vit_classes", "--image", os.path.join(FOLDERS, "none.png"))
        self.assertIn("--image: cannot read", missing.stderr)
        folder = self.server.cli("predict", "--model", "vit_classes", "--image", FOLDERS)
        self.assertIn("--image: cannot read", folder.stderr)
        both = self.server.cli("predict", "--model", "vit_classes", "--image", PHOTO, "--text", "a")
        self.assertIn("--text, --token_ids, --image and --input exclude each other", both.stderr)


if __name__ == "__main__":
    unittest.main()
