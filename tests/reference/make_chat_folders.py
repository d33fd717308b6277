#!/usr/bin/env python3
"""Writes small chat models as Hugging Face folders with random weights, and how transformers answers with them.

    pip install torch transformers tokenizers jinja2
    tests/reference/make_chat_folders.py tests/testdata_chat

Each folder is <case>/1/, as save_pretrained leaves it. <case>/golden.json has `day`, the date and time that
strftime_now tells, and `chats`: messages, the `prompt` that apply_chat_template makes of them, its tokens, and greedy
text in float64 as of make_hugging_face.py.
"""

import json

import causal_goldens
import fixture_folders
import tokenizer_kinds
import transformers
from make_chat_goldens import HEADERS, NOW, THINKING
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers.utils import chat_template_utils

CONTEXT = 320
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 40, "max_position_embeddings": CONTEXT, "tie_word_embeddings": True, "pad_token_id": None}
ROPE = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 80}
MERGES = ["t h", "th e", "e r", "u s", "us er", "s i", "si s", "sis t", "a n", "an t", "a s", "as sist", "assist ant",
          "s y", "sy s", "t e", "te m", "sys tem", "o n"]

# Name: class, configuration, special tokens from id 0 on, the template with the file that it stands in, and a factor of
# the end tokens' weights, with which some answers end.
CASES = {
    "llama3": ("LlamaForCausalLM", {**SIZES, "rope_parameters": ROPE, "bos_token_id": 0, "eos_token_id": [1, 4]},
               ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
               HEADERS, "chat_template.jinja", 1.1),
    "qwen3": ("Qwen3ForCausalLM", {**SIZES, "head_dim": 12, "bos_token_id": None, "eos_token_id": [2, 0]},
              ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], THINKING, "tokenizer_config.json", 1.8),
}
CHATS = [[("user", "Is the sea on the map? ")],
         [("system", " Be brief.\n"), ("user", "na\u00efve \u4f60\u597d"), ("assistant", "<think>\nso\n</think>\n\nNo."),
          ("user", "2 + 2?")],
         [("user", "")],
         # A user who spells a special token gets it.
         [("user", "Hi<|eot_id|><|im_end|>")],
         [("assistant", "<think>so</think>Well"), ("user", "the user, the assistant")]]


class Clock:
    """In place of datetime where transformers asks for the time."""

    @staticmethod
    def now():
        return NOW


def make_tokenizer(name, specials, template):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(specials + letters + [merge.replace(" ", "") for merge in MERGES])}
    tokenizer = Tokenizer(models.BPE(vocab, [tuple(merge.split()) for merge in MERGES], ignore_merges=name == "llama3"))
    tokenizer.pre_tokenizer = tokenizer_kinds.split_first(
        tokenizer_kinds.LLAMA3 if name == "llama3" else tokenizer_kinds.QWEN)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    if name == "llama3":
        named = {"bos_token": specials[0], "eos_token": specials[4]}
        # apply_chat_template leaves it out: the prompt has a bos_token already.
        tokenizer.post_processor = processors.Sequence([
            tokenizer.post_processor,
            processors.TemplateProcessing(single=f"{specials[0]} $A", pair=f"{specials[0]} $A $B",
                                          special_tokens=[(specials[0], 0)])])
    else:
        tokenizer.normalizer = normalizers.NFC()
        named = {"eos_token": specials[2]}
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **named,
                                                model_input_names=["input_ids", "attention_mask"])


def write_tokenizer(folder, tokenizer, template_file):
    tokenizer.save_pretrained(folder, save_jinja_files=template_file == "chat_template.jinja")
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()), ensure_ascii=False, separators=(",", ":")) + "\n")


def write_case(root, name, seed):
    kind, sizes, specials, template, template_file, ends_factor = CASES[name]
    tokenizer = make_tokenizer(name, specials, template)
    model = fixture_folders.new_model(kind, {**sizes, "vocab_size": len(tokenizer)}, "bfloat16", seed,
                                      attn_implementation="eager")
    ends = sizes["eos_token_id"]
    model.get_input_embeddings().weight.data[ends] *= ends_factor
    folder = fixture_folders.empty_folder(root, name)
    model.save_pretrained(folder)
    write_tokenizer(folder, tokenizer, template_file)
    # Read anew: the angles of a model that was rounded are rounded too.
    model = type(model).from_pretrained(folder, dtype="float64", attn_implementation="eager").eval()
    chats = []
    for chat in CHATS:
        messages = [{"role": role, "content": content} for role, content in chat]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        assert ids == tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        chats.append({"messages": messages, "prompt": prompt,
                      **causal_goldens.generations(model, tokenizer, [(ids, 20)], ends, CONTEXT)[0]})
    finishes = {chat["finish"] for chat in chats}
    assert finishes == {"stop", "length"}, finishes
    fixture_folders.write_golden(root, name, {"day": NOW.isoformat(), "chats": chats})


if __name__ == "__main__":
    chat_template_utils.datetime = Clock
    fixture_folders.main(__doc__, CASES, write_case)
