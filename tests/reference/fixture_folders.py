"""The shared parts of the scripts that write small folders of random weights and golden.json beside them.

Import it before transformers: it keeps that from the network.
"""

import argparse
import json
import os
import pathlib
import shutil

os.environ["HF_HUB_OFFLINE"] = "1"
import torch  # noqa: E402
import transformers  # noqa: E402


def randomize(model):
    """Weights at which every part of the model matters."""
    for name, parameter in model.named_parameters():
        if ("norm" in name.lower() or "ln_" in name) and name.endswith("weight"):
            parameter.data = 1.0 + 0.2 * torch.randn_like(parameter)
        elif parameter.dim() == 1:
            parameter.data = 0.2 * torch.randn_like(parameter)
        else:
            parameter.data = 1.5 * torch.randn_like(parameter) / parameter.shape[1] ** 0.5
        if name.endswith("wpe.weight"):
            parameter.data *= 4.0  # so that texts do not repeat a token
    model.tie_weights()


def new_model(kind, sizes, dtype, seed, **options):
    """A model of transformers' class `kind`, its weights rounded to `dtype`."""
    torch.manual_seed(seed)
    cls = getattr(transformers, kind)
    model = cls._from_config(cls.config_class(**sizes), **options).eval()
    randomize(model)
    return model.to(getattr(torch, dtype))


def empty_folder(root, name):
    """<root>/<name>/1, of which nothing is left."""
    shutil.rmtree(root / name, ignore_errors=True)
    return root / name / "1"


def rounded(value):
    if isinstance(value, float):
        return float(f"{value:.8g}")
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    return {key: rounded(entry) for key, entry in value.items()} if isinstance(value, dict) else value


def write_golden(root, name, golden):
    (root / name / "golden.json").write_text(json.dumps(rounded(golden), separators=(",", ":")) + "\n")


def main(description, cases, write_case, before=lambda root: None):
    """The command line: each case is written by write_case(root, name, seed)."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", nargs="*", choices=cases, help="write these cases alone")
    arguments = parser.parse_args()
    before(arguments.folder)
    for seed, name in enumerate(cases):
        if arguments.only is None or name in arguments.only:
            write_case(arguments.folder, name, seed)
