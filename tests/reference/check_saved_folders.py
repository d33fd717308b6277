#!/usr/bin/env python3
"""Compares answers on folders that the installed transformers saves with its own. Run by hand, with the programs built.

    pip install torch transformers
    tests/reference/check_saved_folders.py

Saves small models of random weights, of every family and in every way that changes the files: dtypes, shards, tied
weights or not, other spellings of config.json and of the index. Serves them all and compares what the server says of
token ids (of an image: of its patches) with what from_pretrained of the same folder computes in float64. It fails
where a folder does not load, or an answer differs by more than 1e-4 of its largest number.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import fixture_folders  # first: it keeps transformers from the network
import hugging_face_tokenizers
import torch
import transformers
from make_hugging_face import (DISTIL_SIZES, GPT2_SIZES, LABELLED, MASK, MODERN_OLD, MODERN_ROPE, MODERN_SIZES, SIZES,
                               answer)
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))

from edgewise_process import Server  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
MOST = 1e-4
ROBERTA_SIZES = {**SIZES, "pad_token_id": 1}
LLAMA_SIZES = {**SIZES, "num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
IMAGES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16,
          "image_size": 12, "patch_size": 4}
INDEX = "model.safetensors.index.json"


def edit(folder, name, change):
    value = json.loads((folder / name).read_text())
    change(value)
    (folder / name).write_text(json.dumps(value, indent=2) + "\n")


def config(**fields):
    """Sets fields of config.json; None takes one away."""
    def change(value):
        value.update(fields)
        for field in [field for field in fields if fields[field] is None]:
            del value[field]
    return lambda folder: edit(folder, "config.json", change)


def config_text(old, new):
    """Changes config.json as text, to what json.dump of a dict does not write."""
    def change(folder):
        text = (folder / "config.json").read_text()
        assert old in text
        (folder / "config.json").write_text(text.replace(old, new, 1))
    return change


def weight_map(rename, move=None):
    def change(folder):
        files = sorted({path.name for path in folder.glob("model-*.safetensors")})
        edit(folder, INDEX, lambda index: index.update(
            weight_map={tensor: rename(file) for tensor, file in index["weight_map"].items()}))
        for file in files if move else []:
            (folder / rename(file)).parent.mkdir(exist_ok=True)
            (folder / file).rename(folder / rename(file))
    return change


def tensors(change, **options):
    """Writes model.safetensors anew."""
    def write(folder):
        path = folder / "model.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in change(load_file(path)).items()}, path, **options)
    return write


def mixed(weights):
    """Every other tensor of another dtype."""
    dtypes = [torch.float16, torch.float32, torch.bfloat16, torch.float64]
    return {name: value.to(dtypes[i % 4]) if value.is_floating_point() else value
            for i, (name, value) in enumerate(sorted(weights.items()))}


def named(rename):
    return tensors(lambda weights: {rename(name): value for name, value in weights.items()})


# Name: class, configuration, dtype of the file, and what is done to the folder. "shards": in files of 20 KB.
CASES = {
    "bert": ("BertModel", SIZES, "float32", []),
    "bert_float64": ("BertModel", SIZES, "float64", []),
    "bert_mixed": ("BertForSequenceClassification", {**SIZES, **LABELLED}, "float32", [tensors(mixed)]),
    "bert_no_metadata": ("BertForTokenClassification", {**SIZES, **LABELLED}, "float16",
                         [tensors(dict), config(transformers_version=None, dtype=None)]),
    "bert_old_dtype": ("BertForSequenceClassification", {**SIZES, "num_labels": 1}, "float16",
                       [config(dtype=None, torch_dtype="float16")]),
    "bert_two_values": ("BertForSequenceClassification", {**SIZES, "problem_type": "regression"}, "float32", []),
    "bert_masked": ("BertForMaskedLM", SIZES, "float64", []),
    "bert_masked_untied": ("BertForMaskedLM", {**SIZES, "tie_word_embeddings": False}, "float32", ["shards"]),
    "bert_pretraining": ("BertForPreTraining", SIZES, "bfloat16", ["shards"]),
    "bert_old_names": ("BertForSequenceClassification", {**SIZES, **LABELLED}, "float32",
                       [named(lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma")
                              .replace("LayerNorm.bias", "LayerNorm.beta"))]),
    "bert_no_prefix": ("BertModel", SIZES, "float32", [named(lambda name: "bert." + name)]),
    "bert_infinite": ("BertForSequenceClassification", {**SIZES, **LABELLED}, "float32",
                      [config_text('"hidden_size"', '"note": [NaN, -Infinity, 1e999], "hidden_size"')]),
    "bert_tagged_infinite": ("BertForSequenceClassification", {**SIZES, **LABELLED, "initializer_range": float("inf")},
                             "float32", []),
    "bert_twice": ("BertForSequenceClassification", {**SIZES, **LABELLED}, "float32",
                   [config_text('"hidden_size"', '"hidden_size": 7, "hidden_size"')]),
    "bert_dot": ("BertForSequenceClassification", {**SIZES, **LABELLED}, "float32",
                 ["shards", weight_map(lambda file: "./" + file)]),
    "bert_named": ("BertForSequenceClassification", {**SIZES, **LABELLED}, "float32",
                   [lambda folder: (folder / "model.safetensors").rename(folder / "mine.safetensors"),
                    config(transformers_weights="mine.safetensors")]),
    "bert_shards_below": ("BertForSequenceClassification", {**SIZES, **LABELLED}, "float32",
                          ["shards", weight_map(lambda file: "weights/" + file, move=True)]),
    "bert_shards_mapped_wrong": ("BertForSequenceClassification", {**SIZES, **LABELLED}, "float32",
                                 ["shards", lambda folder: edit(folder, INDEX, lambda index: index["weight_map"].update(
                                     {"bert.embeddings.position_ids": sorted(index["weight_map"].values())[0],
                                      "classifier.bias": sorted(index["weight_map"].values())[0]}))]),
    "roberta": ("RobertaModel", ROBERTA_SIZES, "bfloat16", []),
    "roberta_sequence": ("RobertaForSequenceClassification", {**ROBERTA_SIZES, **LABELLED}, "float64", ["shards"]),
    "roberta_tokens": ("RobertaForTokenClassification", {**ROBERTA_SIZES, **LABELLED}, "float16", []),
    "roberta_masked": ("RobertaForMaskedLM", ROBERTA_SIZES, "float32", []),
    "xlm_roberta_sequence": ("XLMRobertaForSequenceClassification", {**ROBERTA_SIZES, **LABELLED}, "bfloat16", []),
    "xlm_roberta_masked": ("XLMRobertaForMaskedLM", {**ROBERTA_SIZES, "tie_word_embeddings": False}, "float32", []),
    "camembert": ("CamembertModel", ROBERTA_SIZES, "float64", []),
    "camembert_masked": ("CamembertForMaskedLM", ROBERTA_SIZES, "float16", ["shards"]),
    "distilbert": ("DistilBertModel", DISTIL_SIZES, "float32", []),
    "distilbert_sequence": ("DistilBertForSequenceClassification", {**DISTIL_SIZES, **LABELLED}, "float64", []),
    "distilbert_tokens": ("DistilBertForTokenClassification", {**DISTIL_SIZES, **LABELLED}, "float32", ["shards"]),
    "distilbert_masked": ("DistilBertForMaskedLM", DISTIL_SIZES, "bfloat16", []),
    "mpnet": ("MPNetModel", ROBERTA_SIZES, "float32", ["shards"]),
    "mpnet_tokens": ("MPNetForTokenClassification", {**ROBERTA_SIZES, **LABELLED}, "float64", []),
    "mpnet_masked": ("MPNetForMaskedLM", ROBERTA_SIZES, "float32", []),
    "modernbert": ("ModernBertModel", MODERN_SIZES, "float64", []),
    "modernbert_sequence": ("ModernBertForSequenceClassification",
                            {**MODERN_SIZES, **LABELLED, "classifier_pooling": "mean"}, "float32", ["shards"]),
    "modernbert_old": ("ModernBertForTokenClassification", {**MODERN_SIZES, **LABELLED, **MODERN_OLD}, "float16",
                       [config(layer_types=None, rope_parameters=None, **MODERN_OLD)]),
    "modernbert_masked": ("ModernBertForMaskedLM", {**MODERN_SIZES, "rope_parameters": MODERN_ROPE}, "bfloat16", []),
    "gpt2": ("GPT2LMHeadModel", GPT2_SIZES, "float64", []),
    "gpt2_untied": ("GPT2LMHeadModel", {**GPT2_SIZES, "tie_word_embeddings": False}, "float32", ["shards"]),
    "gpt2_no_prefix": ("GPT2LMHeadModel", GPT2_SIZES, "float32",
                       [named(lambda name: name.removeprefix("transformer."))]),
    "llama": ("LlamaForCausalLM", LLAMA_SIZES, "bfloat16", ["shards"]),
    "llama_float64": ("LlamaForCausalLM", {**LLAMA_SIZES, "tie_word_embeddings": True}, "float64", []),
    "llama_old": ("LlamaForCausalLM", {**LLAMA_SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
                  "float16", [config(rope_parameters=None, rope_theta=500.0, rope_scaling=None, pretraining_tp=1)]),
    "mistral": ("MistralForCausalLM", {**LLAMA_SIZES, "sliding_window": 7}, "float32", []),
    "qwen2": ("Qwen2ForCausalLM", LLAMA_SIZES, "float64", ["shards"]),
    "qwen3": ("Qwen3ForCausalLM", {**LLAMA_SIZES, "head_dim": 16}, "bfloat16", []),
    "vit": ("ViTModel", IMAGES, "float64", []),
    "vit_classes": ("ViTForImageClassification", {**IMAGES, **LABELLED}, "float32", ["shards"]),
}


def save(root, name, seed):
    kind, sizes, dtype, changes = CASES[name]
    folder = root / name / "1"
    model = fixture_folders.new_model(kind, sizes, dtype, seed)
    model.save_pretrained(folder, **({"max_shard_size": "20KB"} if "shards" in changes else {}))
    assert ("shards" in changes) == (folder / INDEX).exists(), name
    if is_masked(kind):
        hugging_face_tokenizers.write(folder, model.config.model_type, "tokenizer")
    for change in changes:
        if change != "shards":
            change(folder)


def has_logits(name):
    """Else the answer is an embedding, or the values of a regression, as they are."""
    kind, sizes = CASES[name][:2]
    base = kind.endswith("Model") and kind != "GPT2LMHeadModel"
    return not base and sizes.get("num_labels") != 1 and "problem_type" not in sizes


def is_masked(kind):
    return kind.endswith(("ForMaskedLM", "ForPreTraining"))


def expected(root, name):
    """The inputs that are sent, and the numbers that transformers has for each: rows of them."""
    kind = CASES[name][0]
    model = getattr(transformers, kind).from_pretrained(root / name / "1", dtype=torch.float64).eval()
    generator = torch.Generator().manual_seed(3)
    if kind.startswith("ViT"):
        image = torch.randn(1, 3, 12, 12, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            output = model(pixel_values=image)
        row = (output.pooler_output if "pooler_output" in output else output.logits)[0].tolist()
        patches = image[0].unfold(1, 4, 4).unfold(2, 4, 4).permute(1, 2, 0, 3, 4).flatten(2).flatten(0, 1)
        return [{"features": patches.tolist()}], [[row]]
    sent = []
    for length in (12, 1, 37):
        ids = torch.randint(6, 40, (length,), generator=generator).tolist()
        if is_masked(kind):
            ids[length // 2] = MASK
        sent.append({"token_ids": ids})
    if model.config.model_type in ("gpt2", "llama", "mistral", "qwen2", "qwen3"):
        with torch.no_grad():
            return sent, [[model(input_ids=torch.tensor([one["token_ids"]]), use_cache=False).logits[0, -1].tolist()]
                          for one in sent]
    answers = answer(model, [dict(one) for one in sent], [], is_masked(kind))
    return sent, [rows_of(one.get("embedding", one.get("logits"))) for one in answers]


def rows_of(numbers):
    return numbers if isinstance(numbers[0], list) else [numbers]


def served(server, name, sent, path):
    path.write_text("".join(json.dumps(one) + "\n" for one in sent))
    logits = ["--logits"] if has_logits(name) else []
    result = server.cli("predict", "--model", name, "--input", str(path), "--json", *logits)
    if result.returncode != 0:
        raise ValueError(result.stdout.strip() or result.stderr.strip())
    rows = []
    for line in result.stdout.splitlines():
        for prediction in json.loads(line).get("predictions", []):
            tokens = prediction.get("tokens")
            rows.append([numbers_of(token) for token in tokens] if tokens else [numbers_of(prediction)])
    return rows


def numbers_of(prediction):
    return prediction.get("embedding") or prediction.get("values") or prediction["logits"]


def difference(got, wanted):
    """The largest, in shares of the largest number that is wanted."""
    got, wanted = torch.tensor(got, dtype=torch.float64), torch.tensor(wanted, dtype=torch.float64)
    if got.shape != wanted.shape:
        raise ValueError(f"the shape is {list(got.shape)}, of transformers {list(wanted.shape)}")
    return float((got - wanted).abs().max() / max(1.0, float(wanted.abs().max())))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=CASES, help="check these folders alone")
    parser.add_argument("--keep", type=pathlib.Path, help="an empty folder that the models are left in")
    arguments = parser.parse_args()
    names = arguments.only or list(CASES)
    worst, failed = 0.0, []
    with tempfile.TemporaryDirectory() as temporary:
        root = arguments.keep or pathlib.Path(temporary) / "models"
        for seed, name in enumerate(CASES):
            if name in names:
                save(root, name, seed)
        with Server(str(root)) as server:
            for name in names:
                try:
                    sent, wanted = expected(root, name)
                    largest = max(map(difference, served(server, name, sent, pathlib.Path(temporary) / "sent"), wanted))
                except Exception as error:  # what neither reads is a failure of one folder too
                    largest, reason = float("inf"), str(error)
                else:
                    reason = ""
                print(f"{name:28} {largest:.1e} {reason}", flush=True)
                worst = max(worst, largest)
                failed += [name] if not largest <= MOST else []
    print(f"{len(names)} folders of transformers {transformers.__version__}: largest difference {worst:.1e}; "
          f"{len(failed)} failed {' '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
