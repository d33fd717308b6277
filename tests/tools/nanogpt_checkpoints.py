"""Random checkpoints in the shape of nanoGPT's ckpt.pt."""

import numpy as np

from torch_file import View

ARGS = {"n_layer": 2, "n_head": 2, "n_embd": 8, "block_size": 16, "bias": False, "vocab_size": 5, "dropout": 0.2}


def state_dict(args: dict = ARGS, head: bool = False) -> dict:
    """nanoGPT's keys, in their order, with random float32 values; lm_head shares the storage of wte unless `head`."""
    width, bias = args["n_embd"], args["bias"]
    shapes = {
        "transformer.wte.weight": (args["vocab_size"], width),
        "transformer.wpe.weight": (args["block_size"], width),
    }

    def add(name: str, *shape: int) -> None:
        shapes[name + ".weight"] = shape
        if bias:
            shapes[name + ".bias"] = shape[:1]

    for layer in range(args["n_layer"]):
        prefix = f"transformer.h.{layer}."
        add(prefix + "ln_1", width)
        add(prefix + "attn.c_attn", 3 * width, width)
        add(prefix + "attn.c_proj", width, width)
        add(prefix + "ln_2", width)
        add(prefix + "mlp.c_fc", 4 * width, width)
        add(prefix + "mlp.c_proj", width, 4 * width)
    add("transformer.ln_f", width)
    rng = np.random.default_rng(3)
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    word = tensors["transformer.wte.weight"]
    if head:
        tensors["lm_head.weight"] = rng.standard_normal(word.shape).astype(np.float32)
    else:
        shared = View(word.reshape(-1), word.shape, (width, 1), key="tied")
        tensors.update({"transformer.wte.weight": shared, "lm_head.weight": shared})
    return tensors


def checkpoint(tensors: dict, args: object = ARGS, **more: object) -> dict:
    """A checkpoint of nanoGPT's train.py, with an optimizer of one parameter."""
    optimizer = {
        "state": {0: {"step": np.float32([7]), "exp_avg": np.ones((2, 3), np.float32)}},
        "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.99), "foreach": None, "fused": True, "params": [0]}],
    }
    value = {"model": tensors, "optimizer": optimizer, "model_args": args, "iter_num": 250}
    value.update(best_val_loss=np.array(1.5, np.float32), config={"out_dir": "out", "compile": True}, **more)
    return {name: item for name, item in value.items() if item is not None}
