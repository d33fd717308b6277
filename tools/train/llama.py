"""Recipe `shakespeare-llama`: a language model of tiny Shakespeare in the shape of Llama, as a Hugging Face folder.

A byte-level BPE tokenizer with the split of Llama 3 and a LlamaForCausalLM, both trained on the first nine tenths of
the text and written by save_pretrained, in bfloat16. Nothing in the folder is Edgewise's own.

    python tools/train/llama.py --data DIR      DIR has tinyshakespeare.txt; trains, writes the folder, evaluates it
    ... --evaluate                              prints the losses of the folder that is there
    ... --write-examples FILE                   held-out text (needs NumPy and safetensors only)

Needs transformers and tokenizers beside what the other recipes need. Losses are those of the last tenth, by the rounded
weights, in nats per character: the sum over the tokens but the first, divided by the characters of the text.
"""
import argparse
import datetime
import os
import time

import export
import shakespeare

os.environ["HF_HUB_OFFLINE"] = "1"
NAME = "shakespeare-llama"
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
         r"\s+(?!\S)|\s+")      # Llama 3's
SHAPE = {"vocab_size": 1024, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 352, "max_position_embeddings": 256,
         "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": None}
# A dialogue as the text has them: who speaks, a colon, the words, an empty line. A system message is a text in front.
CHAT = """\
{%- for message in messages -%}
{%- if message.role == 'user' %}{{ user | default('ROMEO') }}:
{% elif message.role == 'assistant' %}{{ assistant | default('JULIET') }}:
{% endif %}{{ message.content | trim }}

{% endfor -%}
{%- if add_generation_prompt %}{{ assistant | default('JULIET') }}:
{% endif -%}
"""
BATCH = 8
STEPS = 1500


def make_tokenizer(text):
    """A tokenizer without special tokens: every byte has a token, and a text is no more than its own."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=SHAPE["vocab_size"], initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=SHAPE["max_position_embeddings"],
                                   chat_template=CHAT)


def adapter(network):
    """`network` as language.py calls models: rows of token ids -> logits."""
    import torch

    class Adapter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network, self.config = network, network.config.to_dict()

        def forward(self, rows, how):
            return self.network(rows, use_cache=False).logits

    return Adapter()


def make(args):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from edgewise_torch import Pass
    from language import train
    from muon import Optimizers, rise_and_fall

    start = time.time()
    text, rest = shakespeare.texts(NAME, args.data)
    tokenizer = make_tokenizer(text)
    ids, held = (torch.tensor(tokenizer.backend_tokenizer.encode(part).ids) for part in (text, rest))
    print(f"{len(ids)} tokens, {len(held)} held out, {len(text) / len(ids):.2f} characters each", flush=True)
    torch.manual_seed(args.seed)
    network = LlamaForCausalLM(LlamaConfig(**SHAPE))
    for layer in network.model.layers:      # at first the identity
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    model = adapter(network)
    train(model, ids, held, args.steps, Pass(dense=True), lambda step: rise_and_fall(step, args.steps),
          Optimizers(model), BATCH, args.seed + 1, NAME)
    minutes = (time.time() - start) / 60

    folder = export.entry(NAME)
    network.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)     # a server may run as another user
    result = {"name": NAME, "date": datetime.date.today().isoformat(), "seed": args.seed,
              "command": "python tools/train/llama.py --data DIR", "steps": args.steps, "training_minutes": minutes,
              **evaluate(args.data)}
    export.write_result(NAME, result)
    print(result)


def evaluate(data):
    """Losses of the folder on the held-out text, in nats per token and per character."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from edgewise_torch import Pass
    from language import losses

    folder = export.entry(NAME)
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    _, rest = shakespeare.texts(NAME, data)
    held = torch.tensor(AutoTokenizer.from_pretrained(folder).backend_tokenizer.encode(rest).ids)
    loss = losses(adapter(network), held, Pass(dense=True))[1]
    return {"parameters": sum(p.numel() for p in network.parameters()), "held_out_tokens": len(held) - 1,
            "held_out_characters": len(rest), "loss_per_token": loss,
            "loss_per_character": loss * (len(held) - 1) / len(rest)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--write-examples", metavar="FILE")
    parser.add_argument("--count", type=int, default=16, help="pieces of the held-out text")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args()
    if args.write_examples:
        export.write_examples(args.write_examples, shakespeare.pieces(NAME, args.data, args.count))
        return
    import torch
    torch.set_num_threads(1)
    if args.evaluate:
        print(evaluate(args.data))
    else:
        make(args)


if __name__ == "__main__":
    main()
