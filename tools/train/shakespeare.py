"""Recipes `shakespeare-block`, `shakespeare-ssa` and `shakespeare-words`: causal language models of tiny Shakespeare.

The models of characters share their first part, dense attention at a steady rate, kept in build/train for the next
one; in the second part, in which the rate falls to zero, they have their own attention: blocks, or sources drawn at
every step. The model of words draws sources from the first step to the last.

    python tools/train/shakespeare.py block --data DIR      DIR has tinyshakespeare.txt; trains, evaluates, exports
    python tools/train/shakespeare.py ssa --data DIR
    python tools/train/shakespeare.py words --data DIR
    ... --variant dense                 the same with dense attention throughout, to build/train/models; not bundled
    ... --variant tuned                 the exported model, trained on for a little with dense attention; likewise
    ... --write-examples FILE           held-out text (needs NumPy and safetensors only)

The last tenth of the text is held out.
"""
import argparse
import collections
import datetime
import re
import time
from pathlib import Path

import export

BUILD = export.ROOT / "build" / "train"
SSA = {"kind": "ssa", "bias": "local", "windows": 4, "sigma": [0.1, 0.225]}
ATTENTION = {"block": {"kind": "block", "block_size": 16, "pattern": "local", "width": 1},
             "ssa": {**SSA, "last_layers": 3},      # characters need their nearest neighbours: the first layer is dense
             "words": SSA}
LINES = {"block": "Continues Shakespeare by the character; attends to its block and the one before",
         "ssa": "Continues Shakespeare by the character; attends to sources drawn by chance",
         "words": "Continues Shakespeare by the word; attends to sources drawn by chance"}
SHAPE = {"hidden_size": 160, "num_hidden_layers": 4, "num_attention_heads": 8, "head_dim": 16,
         "intermediate_size": 640, "max_position_embeddings": 128}
WORDS_SHAPE = {"hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 6, "head_dim": 16,
               "intermediate_size": 384, "max_position_embeddings": 128}
WORDS = 2048        # entries of the vocabulary of words, <unk> included
BATCH = 32
TRUNK_STEPS = 1800  # dense, at a steady rate
STEPS = {"block": 400, "ssa": 500, "words": 800, "tuned": 100}
SAMPLES = (1, 2, 5, 10, 20, 50)


def set_apart(text):
    """The text in lower case, punctuation set apart by blanks: what the model of words is asked with."""
    return " ".join(re.sub(r"([^a-z'\s]|'(?![a-z]))", r" \1 ", text.lower().replace("--", " - ")).split())


def texts(name, data):
    """-> the first nine tenths and the rest of the text, as the model `name` is sent it"""
    text = (Path(data) / "tinyshakespeare.txt").read_text(encoding="ascii")
    cut = int(0.9 * len(text))
    return tuple(set_apart(part) if name == "words" else part for part in (text[:cut], text[cut:]))


def configuration(name, text):
    """config.json for the model that is trained on `text`"""
    if name == "words":
        common = collections.Counter(text.split()).most_common(WORDS - 1)
        tokenizer = {"kind": "word", "vocabulary": ["<unk>"] + sorted(word for word, _ in common),
                     "unknown_token_id": 0, "lowercase": True}
    else:
        tokenizer = {"kind": "char", "vocabulary": sorted(set(text))}
    return {"task": "causal-lm", "description": LINES[name], "vocab_size": len(tokenizer["vocabulary"]),
            **(WORDS_SHAPE if name == "words" else SHAPE), "position_embedding": "alibi", "pad_token_id": -1,
            "tokenizer": tokenizer, "attention": ATTENTION[name]}


def encode(name, vocabulary, text):
    import torch
    index = {token: i for i, token in enumerate(vocabulary)}
    return torch.tensor([index.get(word, 0) for word in text.split()] if name == "words" else
                        [index[character] for character in text])


def trunk(config, ids, held, args):
    """The first part of the models of characters -> a file of weights and the optimisers' state"""
    import torch
    from edgewise_torch import EdgewiseTransformer, Pass
    from language import train
    from muon import Optimizers

    path = BUILD / f"shakespeare-trunk-{args.seed}-{args.trunk_steps}.pt"
    if not path.exists():
        torch.manual_seed(args.seed)
        model = EdgewiseTransformer(config)
        optimizers = Optimizers(model)
        train(model, ids, held, args.trunk_steps, Pass(dense=True), lambda step: min(1.0, (step + 1) / 50), optimizers,
              BATCH, args.seed, "trunk")
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"model": model.state_dict(), "optimizers": optimizers.state()}, path)
    return path


def make(args):
    import torch
    from edgewise_torch import EdgewiseTransformer, Pass
    from language import train
    from muon import Optimizers, rise_and_fall

    torch.set_num_threads(1)
    name, start = args.model, time.time()
    full = f"shakespeare-{name}"
    text, rest = texts(name, args.data)
    config = configuration(name, text)
    ids, held = (encode(name, config["tokenizer"]["vocabulary"], part) for part in (text, rest))
    torch.manual_seed(args.seed)
    model = EdgewiseTransformer(config, args.dropout if name == "words" else 0.0)
    optimizers, steps = Optimizers(model), args.steps or STEPS["tuned" if args.variant == "tuned" else name]
    factor = lambda step: rise_and_fall(step, steps)
    if args.variant == "tuned":
        model.load_state_dict({k: torch.from_numpy(v) for k, v in export.read(export.entry(full))[1].items()})
        factor = lambda step: 0.3 * rise_and_fall(step, steps, 0.1, 0.1)
    elif name != "words":
        saved = torch.load(trunk(config, ids, held, args))
        model.load_state_dict(saved["model"])
        optimizers.load(saved["optimizers"])
        factor = lambda step: 1 - step / steps
    torch.manual_seed(args.seed + 1)
    train(model, ids, held, steps, Pass(dense=args.variant != "", own_draws=False), factor, optimizers, BATCH,
          args.seed + 1, f"{name} {args.variant}")
    minutes = (time.time() - start) / 60

    export.write(model, config, BUILD / "models" / f"{full}-{args.variant}" / "1" if args.variant else
                 export.entry(full))
    variant = f" --variant {args.variant}" if args.variant else ""
    result = {"name": full, "variant": args.variant, "date": datetime.date.today().isoformat(), "seed": args.seed,
              "command": f"python tools/train/shakespeare.py {name} --data DIR{variant}", "steps": steps,
              "trunk_steps": 0 if name == "words" else args.trunk_steps, "training_minutes": minutes,
              **evaluate(name, model, ids, held, args.ensemble_tokens)}
    export.write_result(full + (f"-{args.variant}" if args.variant else ""), result)
    print(result)


def evaluate(name, model, ids, held, ensemble_tokens):
    """Losses on the held-out text; those of 1 to 50 samples on its first `ensemble_tokens` tokens."""
    from edgewise_torch import Pass
    from language import losses

    result = {"parameters": sum(p.numel() for p in model.parameters()), "held_out_tokens": len(held) - 1,
              "loss_dense": losses(model, held, Pass(dense=True))[1], "loss_one_sample": losses(model, held, Pass())[1]}
    if name != "block":
        part = held[:ensemble_tokens]
        result["ensemble"] = {"tokens": len(part) - 1, "loss_dense": losses(model, part, Pass(dense=True))[1],
                              "loss": losses(model, part, Pass(), SAMPLES)}
    if name == "words":
        counts = ids.bincount(minlength=model.config["vocab_size"]).double() + 1
        result["baseline_unigram"] = -(counts / counts.sum()).log()[held[1:]].mean().item()
        result["unknown_share"] = (held == 0).double().mean().item()
    return result


def pieces(name, data, count):
    """The held-out text in `count` pieces of nearly the same length."""
    _, rest = texts(name, data)
    tokens = rest.split() if name == "words" else rest
    bounds = [i * len(tokens) // count for i in range(count + 1)]
    for begin, end in zip(bounds, bounds[1:]):
        yield {"text": (" " if name == "words" else "").join(tokens[begin:end])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=("block", "ssa", "words"))
    parser.add_argument("--data", required=True)
    parser.add_argument("--variant", choices=("", "dense", "tuned"), default="")
    parser.add_argument("--write-examples", metavar="FILE")
    parser.add_argument("--count", type=int, default=16, help="pieces of the held-out text")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0, help="of the last part; 0: as bundled")
    parser.add_argument("--trunk-steps", type=int, default=TRUNK_STEPS)
    parser.add_argument("--dropout", type=float, default=0.1, help="words only")
    parser.add_argument("--ensemble-tokens", type=int, default=8192)
    args = parser.parse_args()
    if args.write_examples:
        export.write_examples(args.write_examples, pieces(args.model, args.data, args.count))
    else:
        make(args)


if __name__ == "__main__":
    main()
