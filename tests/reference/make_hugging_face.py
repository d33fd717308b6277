#!/usr/bin/env python3
"""Writes small Hugging Face folders with random weights, and what transformers computes with them in float64.

    pip install torch transformers tokenizers
    tests/reference/make_hugging_face.py tests/testdata_hugging_face

Each folder is <case>/1/, as save_pretrained leaves it, and <case>/golden.json has inputs and expected outputs: `logits`
per input, per token, or per mask token, of a language model those of the next token; `scores`, what the pipeline of
transformers makes of the logits of a multi-label model; `embedding`;
`token_log_likelihoods`; `generations`, which are greedy. Tokens with the pad's id are masked, as Edgewise does. `inputs` are
of token ids, `texts` of what the folder's tokenizer makes of a text or two.
"""

import json

import causal_goldens
import fixture_folders
import hugging_face_tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

VOCABULARY = 40
MASK = hugging_face_tokenizers.MASK
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 16, "max_position_embeddings": 40}
DISTIL_SIZES = {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 16,
                "max_position_embeddings": 40}
GPT2_SIZES = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40}
# Windows of 4 positions on either side, but in every third layer.
MODERN_SIZES = {**SIZES, "hidden_size": 24, "num_hidden_layers": 4, "local_attention": 8, "pad_token_id": 0,
                "bos_token_id": None, "eos_token_id": None, "cls_token_id": 2, "sep_token_id": 3}
MODERN_ROPE = {"full_attention": {"rope_type": "yarn", "rope_theta": 300.0, "factor": 4.0,
                                  "original_max_position_embeddings": 12},
               "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}}
MODERN_OLD = {"global_attn_every_n_layers": 2, "global_rope_theta": 500.0, "local_rope_theta": 30.0}
LABELS = {0: "no", 1: "maybe", 2: "yes"}
LABELLED = {"id2label": LABELS, "label2id": {label: id for id, label in LABELS.items()}}

# Name: class, configuration, dtype of the file, and what is done to the folder.
CASES = {
    "bert_model": ("BertModel", SIZES, "bfloat16", []),
    "bert_sentence_cls": ("BertModel", {**SIZES, "hidden_act": "gelu_new"}, "float16", ["cls", "old_names"]),
    "bert_sequence": ("BertForSequenceClassification", {**SIZES, **LABELLED, "hidden_act": "gelu_new"}, "float32",
                      ["tokenizer"]),
    "bert_regression": ("BertForSequenceClassification", {**SIZES, "num_labels": 1, "hidden_act": "relu"}, "float16",
                        ["shards", "tokenizer"]),
    "bert_tokens": ("BertForTokenClassification", {**SIZES, **LABELLED}, "bfloat16", ["tokenizer"]),
    "bert_masked": ("BertForMaskedLM", {**SIZES, "hidden_act": "gelu_new"}, "float16", ["tokenizer"]),
    "bert_masked_untied": ("BertForPreTraining", {**SIZES, "tie_word_embeddings": False}, "bfloat16", ["vocab"]),
    "roberta_sequence": ("RobertaForSequenceClassification", {**SIZES, **LABELLED, "pad_token_id": 1}, "float16",
                         ["tokenizer"]),
    "roberta_masked": ("RobertaForMaskedLM", {**SIZES, "pad_token_id": 1, "hidden_act": "relu"}, "bfloat16",
                       ["tokenizer"]),
    "xlm_roberta_tokens": ("XLMRobertaForTokenClassification",
                           {**SIZES, **LABELLED, "pad_token_id": 3, "type_vocab_size": 1}, "float16", []),
    "camembert_model": ("CamembertModel", {**SIZES, "pad_token_id": 1}, "bfloat16", ["mean"]),
    "distilbert_sequence": ("DistilBertForSequenceClassification", {**DISTIL_SIZES, **LABELLED}, "float16",
                            ["vocab"]),
    "distilbert_masked": ("DistilBertForMaskedLM", {**DISTIL_SIZES, "activation": "gelu_new"}, "bfloat16", ["vocab"]),
    "mpnet_sentence": ("MPNetModel", {**SIZES, "max_position_embeddings": 160, "pad_token_id": 1}, "float16",
                       ["mean", "normalize", "tokenizer", "limit"]),
    "mpnet_sequence": ("MPNetForSequenceClassification", {**SIZES, **LABELLED, "pad_token_id": 1}, "bfloat16", []),
    # As old checkpoints are: no prefix, the causal mask as a buffer, the end in config.json alone.
    "gpt2_causal": ("GPT2LMHeadModel", {**GPT2_SIZES, "eos_token_id": 2, "bos_token_id": 0}, "float16",
                    ["tokenizer", "buffers"]),
    "gpt2_untied": ("GPT2LMHeadModel", {**GPT2_SIZES, "n_inner": 48, "activation_function": "relu",
                                        "scale_attn_weights": False, "tie_word_embeddings": False, "bos_token_id": 1,
                                        "eos_token_id": [0, 2]}, "bfloat16", ["tokenizer", "bos", "shards", "chat"]),
    "modernbert_sequence": ("ModernBertForSequenceClassification", {**MODERN_SIZES, **LABELLED}, "float16",
                            ["tokenizer"]),
    # With every bias, and with the fields of older versions.
    "modernbert_mean": ("ModernBertForSequenceClassification",
                        {**MODERN_SIZES, **LABELLED, "classifier_pooling": "mean", "classifier_bias": True,
                         "norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_activation": "relu",
                         "local_attention": 7, **MODERN_OLD}, "bfloat16", ["old_fields"]),
    "modernbert_tokens": ("ModernBertForTokenClassification",
                          {**MODERN_SIZES, **LABELLED, "hidden_activation": "gelu_pytorch_tanh",
                           "layer_types": ["sliding_attention", "full_attention"] * 2}, "float16", ["tokenizer"]),
    "modernbert_masked": ("ModernBertForMaskedLM", {**MODERN_SIZES, "rope_parameters": MODERN_ROPE}, "bfloat16",
                          ["tokenizer"]),
    "modernbert_masked_untied": ("ModernBertForMaskedLM",
                                 {**MODERN_SIZES, "num_hidden_layers": 2, "tie_word_embeddings": False,
                                  "decoder_bias": False, "classifier_activation": "gelu_new"}, "float16",
                                 ["tokenizer"]),
    # Longer than the tiles of 64 keys that attention takes at a time.
    "modernbert_sentence": ("ModernBertModel", {**MODERN_SIZES, "hidden_size": 32, "num_hidden_layers": 3,
                                                "max_position_embeddings": 120, "local_attention": 80}, "bfloat16",
                            ["cls", "normalize", "tokenizer"]),
    # A sigmoid per label.
    "bert_multi_label": ("BertForSequenceClassification",
                         {**SIZES, "id2label": {0: "toxic", 1: "insult", 2: "threat", 3: "obscene"},
                          "problem_type": "multi_label_classification", "hidden_act": "quick_gelu"}, "float16",
                         ["tokenizer"]),
    "distilbert_one_label": ("DistilBertForSequenceClassification",
                             {**DISTIL_SIZES, "num_labels": 1, "problem_type": "multi_label_classification",
                              "activation": "mish"}, "bfloat16", ["vocab"]),
}

CHAT_TEMPLATE = """{% for message in messages %}
{% if message.role == 'tool' %}{{ raise_exception('no ' ~ message.role ~ 's here') }}{% endif %}
{{ bos_token }}{{ message.role }}
{{ message.content | trim }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}
{{ bos_token }}me
{% endif %}
"""
CHATS = [[{"role": "user", "content": " the cat "}],
         [{"role": "system", "content": "on"}, {"role": "user", "content": ""}],
         # A user who spells a special token gets it.
         [{"role": "user", "content": "a<|im_end|>"}]]


def token_ids(length, pad, masks, generator):
    ids = torch.randint(6, VOCABULARY, (length,), generator=generator).tolist()
    for place in masks:
        ids[place] = MASK
    for place in pad[1]:
        ids[place] = pad[0]
    return ids


def inputs_of(config, masked, longest):
    generator = torch.Generator().manual_seed(7)
    pad = config.pad_token_id
    inputs = [
        {"token_ids": token_ids(9, (pad, []), [2, 6] if masked else [], generator)},
        {"token_ids": token_ids(1, (pad, []), [0] if masked else [], generator)},
        {"token_ids": token_ids(longest, (pad, [longest - 1]), [0, 3] if masked else [], generator)},
        {"token_ids": token_ids(17, (pad, [4, 5, 11]), [7] if masked else [], generator)},
    ]
    if getattr(config, "type_vocab_size", 1) > 1:
        inputs.append({"token_ids": inputs[0]["token_ids"], "token_types": [0, 0, 0, 0, 1, 1, 1, 0, 1]})
    return inputs


def pooled(rows, mask, options):
    vector = rows[0] if "cls" in options else (rows * mask[:, None]).sum(0) / mask.sum()
    return vector / vector.norm() if "normalize" in options else vector


def answer(model, entries, options, masked):
    """Adds what the model says to each entry."""
    for entry in entries:
        ids = torch.tensor([entry["token_ids"]])
        mask = (ids != model.config.pad_token_id).to(torch.int64)
        more = {"token_type_ids": torch.tensor([entry["token_types"]])} if "token_types" in entry else {}
        with torch.no_grad():
            output = model(input_ids=ids, attention_mask=mask, **more)
        if "last_hidden_state" in output:
            entry["embedding"] = pooled(output.last_hidden_state[0], mask[0], options).tolist()
            continue
        logits = (output.logits if "logits" in output else output.prediction_logits)[0]
        if masked:
            logits = logits[ids[0] == MASK]
        elif logits.dim() == 2:
            logits = [row.tolist() if valid else None for row, valid in zip(logits, mask[0])]
        entry["logits"] = logits.tolist() if torch.is_tensor(logits) else logits
        if model.config.problem_type == "multi_label_classification":
            entry["scores"] = scores(model.config, output.logits)
    return entries


def scores(config, logits):
    """By label, by the function that the pipeline chooses."""
    pipeline = object.__new__(transformers.TextClassificationPipeline)
    pipeline.model = type("Model", (), {"config": config})
    found = {entry["label"]: entry["score"] for entry in pipeline.postprocess({"logits": logits}, top_k=None)}
    return [found[label] for label in config.id2label.values()]


def texts_of(model, tokenizer, options, masked, most):
    classifies = type(model).__name__.endswith("SequenceClassification")
    entries = []
    spaces = model.config.model_type == "modernbert"
    for text, second, truncate in hugging_face_tokenizers.texts(tokenizer.mask_token, masked, classifies, spaces):
        entry = hugging_face_tokenizers.encode(tokenizer, text, second, truncate, most)
        entries.append(entry)
    for entry in answer(model, entries, options, masked):
        if masked:
            entry["labels"] = [tokenizer.decode([max(range(VOCABULARY), key=row.__getitem__)]) for row in entry["logits"]]
        if not type(model).__name__.endswith("TokenClassification"):
            entry.pop("offsets", None)
    return entries


def write_modules(folder, options):
    kinds = ["Transformer", "Pooling"] + (["Normalize"] if "normalize" in options else [])
    modules = [{"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
               for i, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules, indent=2))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": "cls" in options,
               "pooling_mode_mean_tokens": "mean" in options, "pooling_mode_max_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling, indent=2))


def write_buffers(folder, model):
    """The file of a language model as older versions of transformers wrote it."""
    path = folder / "model.safetensors"
    tensors = {key.removeprefix("transformer."): value for key, value in load_file(path).items()}
    for layer in range(model.config.n_layer):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(40, 40, dtype=torch.uint8).tril()[None, None]
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, path)
    (folder / "generation_config.json").unlink()


def write_old_fields(folder):
    """Layers and rotary positions as the first ModernBERT models have them."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for field in ("layer_types", "rope_parameters"):
        del config[field]
    path.write_text(json.dumps({**config, **MODERN_OLD, "position_embedding_type": "absolute"}, indent=2) + "\n")


def causal_golden(model, folder, options):
    """The golden answers of a language model with a tokenizer."""
    generator = torch.Generator().manual_seed(7)
    inputs = [{"token_ids": torch.randint(VOCABULARY, (length,), generator=generator).tolist()}
              for length in (9, 1, 40, 17)]
    golden = {"inputs": causal_goldens.answer(model, inputs)}
    tokenizer = hugging_face_tokenizers.write(folder, "gpt2", "bos" if "bos" in options else "tokenizer")
    texts = [("The cats sat on the mat.", None, "REFUSE"), ("na\u00efve caf\u00e9", None, "REFUSE"),
             (hugging_face_tokenizers.LONG, None, "TAIL"), (hugging_face_tokenizers.LONG, None, "HEAD")]
    entries = [hugging_face_tokenizers.encode(tokenizer, *text, 40) for text in texts]
    for entry in entries:
        entry.pop("offsets")
    golden["texts"] = causal_goldens.answer(model, entries)
    ends = model.config.eos_token_id
    prompts = [("the cat", 12), ("a dog is", 60), (" on", 38)]
    # A prompt that fills the context, one that nearly does, and some whose texts end by themselves.
    prompts += [(inputs[2]["token_ids"], 5), (inputs[2]["token_ids"][:37], 9)]
    prompts += [([first, second], 30) for first in range(34, 40) for second in range(6, 26)]
    golden["generations"] = causal_goldens.generations(model, tokenizer, prompts,
                                                       ends if isinstance(ends, list) else [ends], 40)
    ended = [entry for entry in golden["generations"] if entry["finish"] == "stop"][:4]
    if "chat" in options:
        (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
        tokenizer.chat_template = CHAT_TEMPLATE
        for messages in CHATS:
            ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            golden.setdefault("chats", []).append(
                {"messages": messages, **causal_goldens.generations(model, tokenizer, [(ids, 8)], ends, 40)[0]})
    assert len(ended) >= 2, "no text ends"
    golden["generations"] = golden["generations"][:7] + [entry for entry in ended if entry.get("text") is None]
    return golden


def write_case(root, name, seed):
    kind, sizes, dtype, options = CASES[name]
    model = fixture_folders.new_model(kind, sizes, dtype, seed)
    folder = fixture_folders.empty_folder(root, name)
    model.save_pretrained(folder, **({"max_shard_size": "20KB"} if "shards" in options else {}))
    masked = kind.endswith(("ForMaskedLM", "ForPreTraining"))
    if "cls" in options or "mean" in options:
        write_modules(folder, options)
    if "limit" in options:
        limit = {"max_seq_length": 24, "do_lower_case": False}
        (folder / "sentence_bert_config.json").write_text(json.dumps(limit, indent=2) + "\n")
    if "old_names" in options:
        path = folder / "model.safetensors"
        tensors = {"bert." + key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"):
                   value for key, value in load_file(path).items()}
        tensors["bert.embeddings.position_ids"] = torch.arange(40)[None]
        save_file(tensors, path)
    if "buffers" in options:
        write_buffers(folder, model)
    if "old_fields" in options:
        write_old_fields(folder)
    if kind.endswith("LMHeadModel"):
        golden = causal_golden(model.double().eval(), folder, options)
        fixture_folders.write_golden(root, name, golden)
        return
    longest = {"mpnet_sentence": 152, "modernbert_sentence": 120}.get(name, 36)
    # Read anew where there are angles: those of a model that was rounded are rounded too.
    modern = kind.startswith("ModernBert")
    model = type(model).from_pretrained(folder, dtype=torch.float64).eval() if modern else model.double().eval()
    golden = {"inputs": answer(model, inputs_of(model.config, masked, longest), options, masked)}
    kinds = {"tokenizer", "vocab"}.intersection(options)
    if kinds:
        tokenizer = hugging_face_tokenizers.write(folder, model.config.model_type, *kinds)
        pads = (model.config.pad_token_id or 0) + 1 if model.config.model_type in ("roberta", "mpnet") else 0
        positions = 120 if name == "modernbert_sentence" else 40
        most = 24 if "limit" in options else positions - pads
        golden["texts"] = texts_of(model, tokenizer, options, masked, most)
    fixture_folders.write_golden(root, name, golden)


if __name__ == "__main__":
    fixture_folders.main(__doc__, CASES, write_case)
