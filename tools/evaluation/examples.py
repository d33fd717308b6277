"""The inputs that the bundled models are measured on: held-out examples of their recipes, as JSON lines."""
import json
import pathlib
import subprocess
import sys

from evaluation.statistics import evenly

ROOT = pathlib.Path(__file__).resolve().parents[2]

# A recipe needs safetensors to write weights but not to write examples, and Debian 12 does not package it.
RUN_RECIPE = """
import runpy, sys, types
try:
    import safetensors.numpy
except ImportError:
    stub = types.ModuleType("safetensors.numpy")
    stub.load_file = stub.save_file = None
    sys.modules["safetensors"], sys.modules["safetensors.numpy"] = types.ModuleType("safetensors"), stub
sys.path.insert(0, sys.argv[1].rpartition("/")[0])
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

# Recipes whose name is not the model's, and what they are told.
RECIPES = {f"shakespeare-{part}": ("shakespeare.py", part) for part in ("block", "ssa", "words")}
RECIPES["shakespeare-llama"] = ("llama.py",)
RECIPES |= {f"review-{part}": ("reviews.py", part) for part in ("encoder", "ranker")}

# From the folder --data; the other recipes generate what they need.
SOURCES = {**dict.fromkeys(("long", *RECIPES), "tinyshakespeare.txt"),
           **dict.fromkeys(("sentiment", "review-encoder", "review-ranker"), "sst2/test.tsv")}

# The stand-in where that folder is missing: held-out examples too, but few.
BUNDLED = {"long": "examples/data/long.jsonl"}


class Missing(Exception):
    """Why there are no examples."""


def read(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]


def write(path, examples):
    path = pathlib.Path(path)
    path.write_text("".join(json.dumps(e, separators=(",", ":")) + "\n" for e in examples), encoding="utf-8")
    return path


def make(name, folder, data, made, most, options=()):
    """Examples of one recipe.

    folder: where the recipe may write; data: a folder with SOURCES; made: how many the recipe makes, of which `most`
    are kept, evenly spread. -> list of {"text", "token_ids" or "features", "label", "labels" or "value"}, and what
    else the recipe writes
    """
    script, *options_of_model = RECIPES.get(name, (f"{name}.py",))
    recipe = ROOT / "tools" / "train" / script
    if not recipe.exists():
        raise Missing(f"no recipe {recipe.relative_to(ROOT)}")
    source = SOURCES.get(name)
    if source and not (pathlib.Path(data) / source).exists():
        if options or name not in BUNDLED:
            raise Missing(f"its test text, {source}, is not part of this repository; --data names a folder that has it")
        examples = read(ROOT / BUNDLED[name])
    else:
        path = pathlib.Path(folder) / f"{name}-all.jsonl"
        arguments = [str(recipe), *options_of_model, "--write-examples", str(path), "--count", str(made), *options]
        if source:
            arguments += ["--data", str(data)]
        done = subprocess.run([sys.executable, "-c", RUN_RECIPE, *arguments], capture_output=True, text=True,
                              timeout=300)
        if done.returncode != 0:
            raise Missing(f"{recipe.name} failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
        examples = read(path)
    return [examples[i] for i in evenly(len(examples), most)]
