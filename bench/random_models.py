"""Models of random weights for benchmarks: in the model format, and folders as transformers saves them."""

import json
import pathlib
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from edgewise_tools.safetensors_io import write_safetensors  # noqa: E402


# Layers, width, heads, inner width, words.
BERT_BASE, MINILM = (12, 768, 12, 3072, 30522), (6, 384, 12, 1536, 30522)
GPT2_SMALL = (12, 768, 12, 3072, 50257)
# Layers, width, heads of queries, of keys, inner width, words: a Llama of GPT-2 small's size.
LLAMA_SMALL = (12, 768, 12, 4, 2048, 32000)


class Weights:
    """Tensors by name, of one width and one standard deviation; equal for equal calls in the same order."""

    def __init__(self, width, scale=0.02):
        self.random = np.random.default_rng(1)
        self.width, self.scale = width, scale

    def normal(self, *shape, scale=None):
        return ((scale or self.scale) * self.random.standard_normal(shape)).astype(np.float32)

    def linear(self, name, out, inner):
        return {f"{name}.weight": self.normal(out, inner), f"{name}.bias": self.normal(out)}

    def norm(self, name):
        return {f"{name}.weight": np.ones(self.width, np.float32), f"{name}.bias": np.zeros(self.width, np.float32)}

    def attention(self, layer, columns):
        """The norm and the four projections; `columns` of all heads together."""
        name = f"layers.{layer}.attention"
        tensors = self.norm(f"{name}_norm")
        for part in ("query", "key", "value"):
            tensors |= self.linear(f"{name}.{part}", columns, self.width)
        return tensors | self.linear(f"{name}.output", self.width, columns)

    def feed_forward(self, layer, inner):
        name = f"layers.{layer}.mlp"
        return (self.norm(f"{name}_norm") | self.linear(f"{name}.up", inner, self.width)
                | self.linear(f"{name}.down", self.width, inner))


def write_model(folder, config, tensors):
    """Version 1 of the model in `folder`."""
    folder = pathlib.Path(folder) / "1"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(str(folder / "model.safetensors"), tensors)


def write_bert(folder, layers, width, heads, inner, words, positions=512, labels=4):
    """A BertForSequenceClassification as save_pretrained leaves it, without a tokenizer."""
    weights = Weights(width, scale=width ** -0.5)
    embeddings = "bert.embeddings"
    tensors = {f"{embeddings}.word_embeddings.weight": weights.normal(words, width, scale=1.0),
               f"{embeddings}.position_embeddings.weight": weights.normal(positions, width, scale=1.0),
               f"{embeddings}.token_type_embeddings.weight": weights.normal(2, width, scale=1.0)}
    tensors |= weights.norm(f"{embeddings}.LayerNorm")
    for layer in range(layers):
        name = f"bert.encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            tensors |= weights.linear(f"{name}.attention.self.{part}", width, width)
        tensors |= weights.linear(f"{name}.attention.output.dense", width, width)
        tensors |= weights.norm(f"{name}.attention.output.LayerNorm")
        tensors |= weights.linear(f"{name}.intermediate.dense", inner, width)
        tensors |= weights.linear(f"{name}.output.dense", width, inner)
        tensors |= weights.norm(f"{name}.output.LayerNorm")
    tensors |= weights.linear("bert.pooler.dense", width, width) | weights.linear("classifier", labels, width)
    names = {str(label): f"LABEL_{label}" for label in range(labels)}
    write_model(folder, {
        "architectures": ["BertForSequenceClassification"], "model_type": "bert", "dtype": "float32",
        "vocab_size": words, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "intermediate_size": inner, "max_position_embeddings": positions, "type_vocab_size": 2, "hidden_act": "gelu",
        "layer_norm_eps": 1e-12, "pad_token_id": 0, "id2label": names,
        "label2id": {label: int(id) for id, label in names.items()}}, tensors)


def write_gpt2(folder, layers, width, heads, inner, words, positions=1024):
    """A GPT2LMHeadModel as save_pretrained leaves it, without a tokenizer and without a token that ends texts; gives
    how many numbers its matrices hold: each is read once for a token."""
    weights = Weights(width, scale=width ** -0.5)
    word, position = "transformer.wte.weight", "transformer.wpe.weight"
    tensors = {word: weights.normal(words, width), position: weights.normal(positions, width)}
    for layer in range(layers):
        name = f"transformer.h.{layer}"
        tensors |= weights.norm(f"{name}.ln_1") | weights.norm(f"{name}.ln_2")
        # [in, out], unlike the linear layers of others.
        for part, out, columns in (("attn.c_attn", 3 * width, width), ("attn.c_proj", width, width),
                                   ("mlp.c_fc", inner, width), ("mlp.c_proj", width, inner)):
            tensors[f"{name}.{part}.weight"] = weights.normal(columns, out)
            tensors[f"{name}.{part}.bias"] = weights.normal(out)
    tensors |= weights.norm("transformer.ln_f")
    write_model(folder, {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "dtype": "float32", "vocab_size": words,
        "n_embd": width, "n_layer": layers, "n_head": heads, "n_inner": inner, "n_positions": positions,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "bos_token_id": None, "eos_token_id": None,
        "tie_word_embeddings": True}, tensors)
    return sum(values.size for name, values in tensors.items() if values.ndim == 2 and name != position)


def write_llama(folder, layers, width, heads, key_value_heads, inner, words, positions=1024):
    """A LlamaForCausalLM as save_pretrained leaves it, without a tokenizer and without a token that ends texts."""
    weights = Weights(width, scale=width ** -0.5)
    narrow = width // heads * key_value_heads
    tensors = {"model.embed_tokens.weight": weights.normal(words, width)}
    for layer in range(layers):
        name = f"model.layers.{layer}"
        for part, out, columns in (("self_attn.q_proj", width, width), ("self_attn.k_proj", narrow, width),
                                   ("self_attn.v_proj", narrow, width), ("self_attn.o_proj", width, width),
                                   ("mlp.gate_proj", inner, width), ("mlp.up_proj", inner, width),
                                   ("mlp.down_proj", width, inner)):
            tensors[f"{name}.{part}.weight"] = weights.normal(out, columns)
        for part in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}.{part}.weight"] = np.ones(width, np.float32)
    tensors["model.norm.weight"] = np.ones(width, np.float32)
    write_model(folder, {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32", "vocab_size": words,
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads, "intermediate_size": inner, "max_position_embeddings": positions,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "bos_token_id": None, "eos_token_id": None,
        "tie_word_embeddings": True}, tensors)
