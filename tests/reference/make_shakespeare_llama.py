#!/usr/bin/env python3
"""Writes what transformers makes of a few texts with examples/models/shakespeare-llama, in float64.

    pip install torch transformers tokenizers
    tests/reference/make_shakespeare_llama.py tests/testdata_shakespeare_llama.json

`texts`: tokens, and ln p of each but the first. `generations`: greedy texts. `chats`: the prompts of messages.
"""

import json
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch  # noqa: E402
import transformers  # noqa: E402

import causal_goldens  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples" / "models" / "shakespeare-llama" / "1"
TEXTS = ["But, soft! what light through yonder window breaks?",
         "Roméo’s 2 roses — 🌹🌹\t(naïve)\r\n"]  # characters of several tokens, none of which was trained
PROMPTS = [("ROMEO:", 60), ("🌹", 20)]

CHATS = [([{"role": "user", "content": "Who art thou? "}], {}),
         ([{"role": "system", "content": "In Verona."}, {"role": "user", "content": "Who?"},
           {"role": "assistant", "content": "A friend."}, {"role": "user", "content": "Hm."}],
          {"user": "LEONTES", "assistant": "CAMILLO"})]


def main():
    torch.set_num_threads(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float64).eval()
    texts = [{"text": text, "token_ids": tokenizer(text)["input_ids"]} for text in TEXTS]
    for entry in causal_goldens.answer(model, texts):
        del entry["logits"]
    context = model.config.max_position_embeddings
    chats = [{"messages": messages, "template_arguments": names, "prompt": tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, **names)} for messages, names in CHATS]
    answer = {"texts": texts, "generations": causal_goldens.generations(model, tokenizer, PROMPTS, [], context),
              "chats": chats}
    pathlib.Path(sys.argv[1]).write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
