#!/usr/bin/env python3
"""Writes small decoders of the Llama shape as Hugging Face folders, and what transformers computes in float64.

    pip install torch transformers
    tests/reference/make_decoders.py tests/testdata_decoders

Each folder is <case>/1/, as save_pretrained leaves it, with random weights. <case>/golden.json has `inputs`: token ids,
the logits of the token that follows, and ln p of each token but the first; and `generations`: prompts with the tokens
that greedy choice adds, of which the first `sure` are sure in float32 (the two best logits are 1e-4 apart).
"""

import json

import fixture_folders
import torch
import transformers

VOCABULARY = 40
CONTEXT = 48
SURE = 1e-4
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 40, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5,
         "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 50.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 24}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 12}

# Name: class, configuration, dtype of the file, and what is changed in config.json.
CASES = {
    "llama": ("LlamaForCausalLM", {**SIZES, "tie_word_embeddings": True}, "bfloat16", {}),
    # As older versions wrote it: rope_scaling, rope_theta.
    "llama_linear": ("LlamaForCausalLM", {**SIZES, "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True,
                                          "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0,
                                                              "factor": 2.5}}, "float16",
                     {"rope_parameters": None, "rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.5}}),
    "llama_llama3": ("LlamaForCausalLM", {**SIZES, "num_key_value_heads": 1, "head_dim": 12,
                                          "rope_parameters": LLAMA3}, "bfloat16", {}),
    "llama_yarn": ("LlamaForCausalLM", {**SIZES, "rope_parameters": YARN}, "bfloat16", {}),
    "mistral_window": ("MistralForCausalLM", {**SIZES, "head_dim": 16, "sliding_window": 7}, "bfloat16", {}),
    "mistral": ("MistralForCausalLM", {**SIZES, "sliding_window": None, "hidden_act": "gelu"}, "float16", {}),
    "qwen2": ("Qwen2ForCausalLM", {**SIZES, "tie_word_embeddings": True}, "float16", {}),
    "qwen2_windows": ("Qwen2ForCausalLM", {**SIZES, "use_sliding_window": True, "sliding_window": 5,
                                           "max_window_layers": 1}, "bfloat16", {"layer_types": None}),
    "qwen3": ("Qwen3ForCausalLM", {**SIZES, "head_dim": 16, "attention_bias": True, "use_sliding_window": True,
                                   "sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"],
                                   "rope_parameters": {**YARN, "truncate": False, "beta_fast": 8.0, "beta_slow": 0.5,
                                                       "mscale": 1.0, "mscale_all_dim": 0.5}}, "bfloat16", {}),
}


def logits_of(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def scored(model, ids):
    rows = logits_of(model, ids)
    likelihoods = rows.log_softmax(-1)
    return {"token_ids": ids, "logits": rows[-1].tolist(),
            "token_log_likelihoods": [likelihoods[i, token].item() for i, token in enumerate(ids[1:])]}


def generated(model, ids, most):
    """A full context predicts the last token."""
    new, sure, unsure = [], 0, False
    while len(new) < most and len(ids) + len(new) <= CONTEXT:
        best = logits_of(model, ids + new)[-1].topk(2)
        unsure = unsure or (best.values[0] - best.values[1]).item() < SURE
        sure += not unsure
        new.append(best.indices[0].item())
    return {"token_ids": ids, "max_new_tokens": most, "new_token_ids": new, "sure": sure}


def write_case(root, name, seed):
    kind, sizes, dtype, changes = CASES[name]
    folder = fixture_folders.empty_folder(root, name)
    fixture_folders.new_model(kind, sizes, dtype, seed, attn_implementation="eager").save_pretrained(folder)
    # Read anew: the angles of a model that was rounded are rounded too.
    model = getattr(transformers, kind).from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    (folder / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config.update(changes)
    config = {key: value for key, value in config.items() if key not in changes or value is not None}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generator = torch.Generator().manual_seed(7)
    texts = [torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in (9, 1, CONTEXT, 23)]
    golden = {"inputs": [scored(model, ids) for ids in texts],
              "generations": [generated(model, ids, most) for ids, most in
                              ((texts[0], 12), (texts[1], CONTEXT), (texts[2], 3), (texts[2][:40], 20))]}
    fixture_folders.write_golden(root, name, golden)


if __name__ == "__main__":
    fixture_folders.main(__doc__, CASES, write_case)
