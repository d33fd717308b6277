"""Checks an exported entry against docs/model-format.md and against the twin.

Every tensor the format asks for must be there with its shape, and no other. A forward written in NumPy from the format's
text must give the twin's logits over all pairs, and the twin's expected density in the first layer. Models without
memberships (SSA, blocks) are compared with the float64 reference of tests/reference, over the pairs that it draws.
Hugging Face folders are left out: save_pretrained wrote them.

    python tools/train/check_export.py [examples/models/NAME/1 ...]
"""
import math
import sys
from pathlib import Path

import numpy as np

import export

erf = np.vectorize(math.erf)


def expected_shapes(config):
    """-> {tensor name: shape}"""
    V, D, h = (config[key] for key in ("vocab_size", "hidden_size", "num_attention_heads"))
    d, F, C = config.get("head_dim", D // h), config["intermediate_size"], config["num_labels"]
    H = config.get("classifier_hidden_size", 0)
    shapes = {"embeddings.word.weight": (V, D)}
    linear = lambda name, out, width: shapes.update({name + ".weight": (out, width), name + ".bias": (out,)})
    norm = lambda name: shapes.update({name + ".weight": (D,), name + ".bias": (D,)})
    if config.get("position_embedding", "learned") == "learned":
        shapes["embeddings.position.weight"] = (config["max_position_embeddings"], D)
    for i in range(config["num_hidden_layers"]):
        kind = config["attention"][i] if isinstance(config["attention"], list) else config["attention"]
        norm(f"layers.{i}.attention_norm")
        for name in ("query", "key", "value"):
            linear(f"layers.{i}.attention.{name}", h * d, D)
        linear(f"layers.{i}.attention.output", D, h * d)
        if kind["kind"] == "sbm":
            shapes[f"layers.{i}.attention.clusters"] = (h, kind["num_clusters"], d)
            linear(f"layers.{i}.attention.membership.0", d, d)
            linear(f"layers.{i}.attention.membership.1", d, d)
        norm(f"layers.{i}.mlp_norm")
        linear(f"layers.{i}.mlp.up", F, D)
        linear(f"layers.{i}.mlp.down", D, F)
    norm("final_norm")
    if H:
        linear("classifier.hidden", H, D)
    linear("classifier.output", C, H or D)
    return shapes


def forward(config, t, ids):
    """ids [n] without pads -> (logits, expected density of layer 0 or None), over all pairs, in float64."""
    t = {name: value.astype(np.float64) for name, value in t.items()}
    linear = lambda x, name: x @ t[name + ".weight"].T + t[name + ".bias"]
    sigmoid = lambda x: 1 / (1 + np.exp(-x))
    h = config["num_attention_heads"]
    d = config.get("head_dim", config["hidden_size"] // h)

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x ** 2).mean(-1, keepdims=True) + config.get("layer_norm_eps", 1e-5))
        return x * t[name + ".weight"] + t[name + ".bias"]

    def softmax(x, axes):
        x = np.exp(x - x.max(axes, keepdims=True))
        return x / x.sum(axes, keepdims=True)

    pooling = config.get("pooling", {}).get("kind")
    if pooling == "cls":
        ids = np.concatenate([[config["cls_token_id"]], ids])[:config["max_position_embeddings"]]
    n, density = len(ids), None
    x = t["embeddings.word.weight"][ids]
    if "embeddings.position.weight" in t:
        x = x + t["embeddings.position.weight"][:n]
    for i in range(config["num_hidden_layers"]):
        at = f"layers.{i}.attention."
        y = norm(x, f"layers.{i}.attention_norm")
        q, k, v = (linear(y, at + name).reshape(n, h, d).transpose(1, 0, 2) for name in ("query", "key", "value"))
        if i == 0 and at + "clusters" in t:
            C = t[at + "clusters"]
            member = lambda z: sigmoid(linear(np.maximum(linear(z, at + "membership.0"), 0), at + "membership.1")
                                       @ C.transpose(0, 2, 1))
            S = softmax(C @ C.transpose(0, 2, 1), (1, 2))
            kind = config["attention"][0] if isinstance(config["attention"], list) else config["attention"]
            density = np.minimum(member(q) @ S @ member(k).transpose(0, 2, 1) + kind.get("exploration", 0), 1).mean()
        a = softmax(q @ k.transpose(0, 2, 1) / math.sqrt(d), (2,)) @ v
        x = x + linear(a.transpose(1, 0, 2).reshape(n, h * d), at + "output")
        y = linear(norm(x, f"layers.{i}.mlp_norm"), f"layers.{i}.mlp.up")
        y = np.maximum(y, 0) if config.get("hidden_act") == "relu" else y * (1 + erf(y / math.sqrt(2))) / 2
        x = x + linear(y, f"layers.{i}.mlp.down")
    x = norm(x, "final_norm")
    if pooling == "cls":
        x = x[0]
    elif pooling == "mean":
        x = x.sum(0) / (n if config["pooling"]["divisor"] == "valid" else config["max_position_embeddings"])
    if "classifier.hidden.weight" in t:
        x = np.maximum(linear(x, "classifier.hidden"), 0)
    return linear(x, "classifier.output"), density


def sampled_by_memberships(config):
    kinds = config["attention"] if isinstance(config["attention"], list) else [config["attention"]]
    return any(kind["kind"] == "sbm" for kind in kinds)


def check_drawn(folder):
    """SSA and blocks: the twin, given the pairs that the reference draws, gives the reference's logits."""
    import torch
    from edgewise_torch import EdgewiseTransformer
    sys.path.insert(0, str(export.ROOT / "tests" / "reference"))
    from edgewise_reference import Reference

    config, tensors = export.read(folder)
    model = EdgewiseTransformer(config).eval()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in tensors.items()})   # names and shapes
    reference, rng, worst = Reference(str(folder)), np.random.default_rng(0), 0.0
    longest = config["max_position_embeddings"]
    for length in (1, 7, longest) if config["attention"].get("grid") is None else (longest,):
        given, bias = {"draw": (3, 1)}, None
        if "feature_size" in config:
            one = rng.standard_normal((length, config["feature_size"])).astype(np.float32)
        else:
            one = rng.integers(0, config["vocab_size"], length)
        if "pairwise_bias" in config:
            bias = rng.integers(0, config["pairwise_bias"]["num_buckets"], (length, length))
            given["bias"] = bias.ravel().tolist()
        graph = reference.attended(one.tolist(), **given)
        for layer, drawn in zip(model.layers, graph["layers"]):
            mask = torch.zeros(length, length, dtype=torch.bool)
            offsets, keys = drawn["heads"][0]["row_offsets"], drawn["heads"][0]["keys"]
            for row, (begin, end) in enumerate(zip(offsets, offsets[1:])):
                mask[row, keys[begin:end]] = True
            layer.attention.draw = lambda valid, how, mask=mask: mask
        wanted = reference.token_logits(one.tolist(), **given) if config["task"] == "causal-lm" else \
            reference.logits(one.tolist(), **given)
        with torch.no_grad():
            twin = model(torch.from_numpy(one)[None], None, None, None if bias is None else torch.from_numpy(bias)[None])
        worst = max(worst, np.abs(twin[0].numpy() - wanted).max())
    assert worst < 1e-3, worst
    print(f"{folder}: {len(tensors)} tensors, {sum(v.size for v in tensors.values()):,} numbers, "
          f"logits within {worst:.1e} of the reference")


def check(folder):
    import torch
    from sbm_torch import Pass, SbmTransformer

    config, tensors = export.read(folder)
    if not sampled_by_memberships(config):
        return check_drawn(folder)
    found = {name: value.shape for name, value in tensors.items()}
    wanted = expected_shapes(config)
    assert found == wanted, {name: (found.get(name), wanted.get(name)) for name in {*found, *wanted}
                             if found.get(name) != wanted.get(name)}
    assert all(value.dtype == np.float32 and np.isfinite(value).all() for value in tensors.values())
    vocabulary = config["tokenizer"].get("vocabulary")
    assert vocabulary is None or len(vocabulary) == len(set(vocabulary)) == config["vocab_size"]

    model = SbmTransformer(config).eval()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in tensors.items()})
    rng, worst = np.random.default_rng(0), 0.0
    for length in (1, 7, min(200, config["max_position_embeddings"] - 1)):
        ids = rng.integers(1, config["vocab_size"], length)
        logits, density = forward(config, tensors, ids)
        with torch.no_grad():
            batch = torch.from_numpy(np.concatenate([ids, np.zeros(5, np.int64)])[None])   # pads must change nothing
            batch = batch[:, :config["max_position_embeddings"]]
            twin = model(batch, Pass(dense=True))[0].numpy()
            twin = twin[:length] if twin.ndim == 2 else twin
            how = Pass(measure=True)
            model(batch, how)
        worst = max(worst, np.abs(twin - logits).max())
        if density is not None:
            mine = how.expected[0].item() / (how.pairs.item() / len(model.layers))
            assert abs(mine - density) < 1e-5, (mine, density)
    assert worst < 1e-3, worst
    print(f"{folder}: {len(tensors)} tensors, {sum(v.size for v in tensors.values()):,} numbers, "
          f"logits within {worst:.1e} of the twin")


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:] or sorted((export.ROOT / "examples" / "models").glob("*/*"))):
        if not (path / "tokenizer.json").exists():      # a Hugging Face folder, which is not ours to check
            check(path)
