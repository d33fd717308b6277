"""The checkpoints that the documentation's commands convert: made up, in the places that the commands name."""

import json
import os
import pickle
import shutil
import sys

from edgewise_process import ROOT, TESTDATA

sys.path.insert(0, os.path.join(ROOT, "tests", "tools"))
import checkpoints  # noqa: E402
import nanogpt_checkpoints  # noqa: E402
from torch_file import TorchFile  # noqa: E402

CHARACTERS = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # of nanoGPT's shakespeare_char
LISTOPS = ["<pad>", "[MAX", "[MIN", "[MED", "[SM", *"0123456789", "X", "<unk>"]


def write(checkout: str) -> None:
    """Into a checkout's root, and into the folder nanoGPT beside it."""

    def sbm(name: str, checkpoint: str, **settings: object) -> None:
        config = {**checkpoints.SMALL, **settings}
        made, table = checkpoints.write_authors(checkout, checkpoints.state_dict(config), config, checkpoint)
        os.replace(table, os.path.join(checkout, f"{name}.json"))

    sbm("listops", "listops", vocab_size=len(LISTOPS))
    sbm("listops", "listops_sbm_output", vocab_size=len(LISTOPS))
    sbm("text", "text_sbm_output", vocab_size=257, max_seq_len=64)
    with open(os.path.join(checkout, "listops.vocab"), "w", encoding="utf-8") as file:
        file.write("\n".join(LISTOPS) + "\n")

    # Of the same kind as the encoder that the commands name, and small.
    shutil.copytree(os.path.join(TESTDATA + "_hugging_face", "mpnet_sentence", "1"),
                    os.path.join(checkout, "all-MiniLM-L6-v2"))

    args = {**nanogpt_checkpoints.ARGS, "vocab_size": len(CHARACTERS)}
    checkpoint = TorchFile(nanogpt_checkpoints.checkpoint(nanogpt_checkpoints.state_dict(args), args))
    meta = {"vocab_size": len(CHARACTERS), "itos": dict(enumerate(CHARACTERS)),
            "stoi": {character: i for i, character in enumerate(CHARACTERS)}}
    nanogpt = os.path.join(os.path.dirname(checkout), "nanoGPT")
    for weights, characters in ((checkout, checkout), (f"{nanogpt}/out-shakespeare-char", f"{nanogpt}/data/shakespeare_char")):
        os.makedirs(weights, exist_ok=True)
        os.makedirs(characters, exist_ok=True)
        checkpoint.write(os.path.join(weights, "ckpt.pt"), archive="ckpt")
        with open(os.path.join(characters, "meta.pkl"), "wb") as file:
            pickle.dump(meta, file)
