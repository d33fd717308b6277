"""One engine that bench/peers.py compares with: a child in the peers' Python that answers lines of JSON.

    PYTHON bench/peer_engines.py NAME --threads N [--weights float32|bfloat16|int8]

The first line says which version runs, or why none can. Then, line by line: {"do": "prepare", "folder", "tokens",
"new"} loads the model of a folder (docs/model-format.md) and binds the tokens, of one text or of a list of texts,
{"do": "answer"} gives logits or new tokens, and {"do": "time", "seconds"} times one turn.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
from edgewise_tools.safetensors_io import SafetensorsStateDict  # noqa: E402


def now():
    return np.array([time.perf_counter(), time.process_time()])


def one_turn(call, seconds):
    """call() -> (wall, CPU) seconds of what is timed. One call warms up; then calls for `seconds`, at least one."""
    call()
    end, times = time.perf_counter() + seconds, []
    while not times or time.perf_counter() < end:
        times.append(call())
    wall, cpu = zip(*times)
    return {"wall": statistics.median(wall), "cpu": statistics.fmean(cpu)}


def span(stamps, new):
    """Seconds of a generation: all of it for its first token, else from its first token to its last, per token."""
    return (stamps[1] - stamps[0]) if new == 1 else (stamps[-1] - stamps[1]) / (new - 1)


class Engine:
    """A model and an input of it. Subclasses have load(), which sets up self.folder's model for self.tokens.

    FORMATS: of weights that the engine has, as the server's --weights names them; activations may have them too."""

    FORMATS = ("float32",)

    def __init__(self, threads, weights):
        if weights not in self.FORMATS:
            raise RuntimeError(f"compared with {' and '.join(self.FORMATS)} weights only")
        self.threads, self.format, self.key = threads, weights, None

    def prepare(self, folder, tokens, new):
        self.folder, self.tokens, self.new = pathlib.Path(folder), tokens, new
        self.config = json.loads((self.folder / "config.json").read_text())
        self.load()

    def tensors(self):
        file = SafetensorsStateDict(str(self.folder / "model.safetensors"))
        return {name: file.load(name) for name in file.names()}

    def is_new(self, *key):
        """Whether the model has to be loaded: whether `key` differs from the last one."""
        old, self.key = self.key, (self.folder, *key)
        return old != self.key


class Encoder(Engine):
    """Subclasses have run() -> logits. Several texts are one batch, padded to the longest, with a mask."""

    def inputs(self):
        """{name: array}: ids [texts, longest], and for a list of texts the mask [texts, longest] too."""
        if not isinstance(self.tokens[0], list):
            return {"ids": np.array([self.tokens])}
        shape = len(self.tokens), max(map(len, self.tokens))
        ids, mask = np.zeros(shape, np.int64), np.zeros(shape, bool)
        for row, tokens in enumerate(self.tokens):
            ids[row, :len(tokens)], mask[row, :len(tokens)] = tokens, True
        return {"ids": ids, "mask": mask}

    def answer(self):
        return np.asarray(self.run()).reshape(-1).tolist()

    def timed(self):
        start = now()
        self.run()
        return now() - start


class Decoder(Engine):
    """Subclasses have tokens_of(stamps) -> self.new greedy tokens, which appends now() to `stamps` at each token."""

    def answer(self):
        return list(map(int, self.tokens_of([])))

    def timed(self):
        stamps = [now()]
        self.tokens_of(stamps)
        return span(stamps, self.new)


def torch_encoder(config, weights):
    """Our forward as a module: layers with the norm after the residual, exact GELU, the mean over the tokens. With a
    mask, keys that are pads are not attended to, and the mean leaves pads out."""
    import torch
    from torch import nn
    from torch.nn import functional as F
    heads = config["num_attention_heads"]

    class Layer(nn.Module):
        def __init__(self, name):
            super().__init__()
            for part in ("attention.query", "attention.key", "attention.value", "attention.output", "attention_norm",
                         "mlp.up", "mlp.down", "mlp_norm"):
                for kind in ("weight", "bias"):
                    tensor = torch.from_numpy(weights[f"{name}.{part}.{kind}"])
                    self.register_parameter(f"{part}_{kind}".replace(".", "_"), nn.Parameter(tensor))

        def forward(self, x, mask):
            texts, length, width = x.shape
            q, k, v = (F.linear(x, w, b).view(texts, length, heads, width // heads).transpose(1, 2) for w, b in (
                (self.attention_query_weight, self.attention_query_bias),
                (self.attention_key_weight, self.attention_key_bias),
                (self.attention_value_weight, self.attention_value_bias)))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(texts, length, width)
            x = F.layer_norm(x + F.linear(y, self.attention_output_weight, self.attention_output_bias), (width,),
                             self.attention_norm_weight, self.attention_norm_bias)
            y = F.gelu(F.linear(x, self.mlp_up_weight, self.mlp_up_bias))
            return F.layer_norm(x + F.linear(y, self.mlp_down_weight, self.mlp_down_bias), (width,),
                                self.mlp_norm_weight, self.mlp_norm_bias)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.word, self.position, self.weight, self.bias = (
                nn.Parameter(torch.from_numpy(weights[name])) for name in (
                    "embeddings.word.weight", "embeddings.position.weight", "classifier.output.weight",
                    "classifier.output.bias"))
            self.layers = nn.ModuleList(Layer(f"layers.{layer}") for layer in range(config["num_hidden_layers"]))

        def forward(self, ids, mask=None):
            x = F.embedding(ids, self.word) + self.position[:ids.shape[1]]
            keys = None if mask is None else mask[:, None, None, :]
            for layer in self.layers:
                x = layer(x, keys)
            if mask is None:
                mean = x.mean(1)
            else:
                own = mask[:, :, None].to(x.dtype)
                mean = (x * own).sum(1) / own.sum(1)
            return F.linear(mean, self.weight, self.bias)

    return Model().eval()


class TorchEncoder(Encoder):
    FORMATS = ("float32", "bfloat16")

    def __init__(self, threads, weights):
        super().__init__(threads, weights)
        import torch
        torch.set_num_threads(threads)
        self.torch, self.version = torch, f"PyTorch {torch.__version__}"

    def load(self):
        if self.is_new():
            self.model = torch_encoder(self.config, self.tensors()).to(getattr(self.torch, self.format))
        self.arrays = [self.torch.from_numpy(array) for array in self.inputs().values()]

    def run(self):
        with self.torch.inference_mode():
            return self.model(*self.arrays).float().numpy()


def onnx_file(engine):
    """The ONNX file of an encoder in float32, written where there is none yet: for one text of any length, or for a
    batch of one shape."""
    inputs = engine.inputs()
    several = "mask" in inputs
    path = engine.folder.parent / ("batch.onnx" if several else "model.onnx")
    if not path.exists():
        import torch
        module = torch_encoder(engine.config, engine.tensors())
        arrays = tuple(map(torch.from_numpy, inputs.values())) if several else (torch.zeros((1, 32), dtype=torch.long),)
        dynamic = None if several else ({1: torch.export.Dim("n", min=2, max=512)},)
        with torch.inference_mode():
            torch.onnx.export(module, arrays, str(path), input_names=list(inputs), output_names=["logits"],
                              dynamic_shapes=dynamic, opset_version=18, dynamo=True, external_data=False, verbose=False)
    return str(path)


def quantized_onnx_file(engine):
    """The same with 8-bit weights, a scale for each output, and rows of inputs quantized when they come."""
    whole = pathlib.Path(onnx_file(engine))
    path = whole.with_suffix(".int8.onnx")
    if not path.exists():
        from onnxruntime.quantization import QuantType, quantize_dynamic
        quantize_dynamic(str(whole), str(path), per_channel=True, weight_type=QuantType.QInt8,
                         op_types_to_quantize=["MatMul", "Gemm"], extra_options={"MatMulConstBOnly": True})
    return str(path)


class OnnxRuntime(Encoder):
    FORMATS = ("float32", "int8")

    def __init__(self, threads, weights):
        super().__init__(threads, weights)
        import onnxruntime
        self.runtime, self.version = onnxruntime, f"ONNX Runtime {onnxruntime.__version__}"

    def load(self):
        inputs = self.inputs()
        texts, length = inputs["ids"].shape
        if self.is_new(texts, length):
            options = self.runtime.SessionOptions()
            options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
            options.add_free_dimension_override_by_name("n", length)
            path = quantized_onnx_file(self) if self.format == "int8" else onnx_file(self)
            self.session = self.runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.binding = self.session.io_binding()
        for name, array in inputs.items():
            self.binding.bind_ortvalue_input(name, self.runtime.OrtValue.ortvalue_from_numpy(array))
        shape = [texts, self.config["num_labels"]]
        self.logits = self.runtime.OrtValue.ortvalue_from_shape_and_type(shape, np.float32)
        self.binding.bind_ortvalue_output("logits", self.logits)

    def run(self):
        self.session.run_with_iobinding(self.binding)
        return self.logits.numpy()


class OpenVino(Encoder):
    FORMATS = ("float32", "bfloat16")

    def __init__(self, threads, weights):
        super().__init__(threads, weights)
        import openvino
        self.openvino, self.version = openvino, f"OpenVINO {openvino.__version__}"

    def load(self):
        self.arrays = self.inputs()  # they must live as long as the request
        texts, length = self.arrays["ids"].shape
        if self.is_new(texts, length):
            core = self.openvino.Core()
            model = core.read_model(onnx_file(self))
            if texts == 1:
                model.reshape([1, length])
            compiled = core.compile_model(model, "CPU", {
                "INFERENCE_PRECISION_HINT": "f32" if self.format == "float32" else "bf16",
                "INFERENCE_NUM_THREADS": self.threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"})
            self.request = compiled.create_infer_request()
        for name, array in self.arrays.items():
            self.request.set_tensor(name, self.openvino.Tensor(array, shared_memory=True))

    def run(self):
        self.request.infer()
        return self.request.get_output_tensor().data


def gpt2(config, weights):
    """The same decoder as a GPT-2 of transformers."""
    import torch
    import transformers
    sizes = transformers.GPT2Config(
        vocab_size=config["vocab_size"], n_positions=config["max_position_embeddings"], n_embd=config["hidden_size"],
        n_layer=config["num_hidden_layers"], n_head=config["num_attention_heads"], n_inner=config["intermediate_size"],
        activation_function="gelu", layer_norm_epsilon=1e-5, attn_implementation="sdpa")
    names = {"transformer.wte": "embeddings.word", "transformer.wpe": "embeddings.position",
             "transformer.ln_f": "final_norm"}
    state = {}
    for layer in range(sizes.n_layer):
        ours, theirs = f"layers.{layer}", f"transformer.h.{layer}"
        names |= {f"{theirs}.ln_1": f"{ours}.attention_norm", f"{theirs}.ln_2": f"{ours}.mlp_norm",
                  f"{theirs}.attn.c_proj": f"{ours}.attention.output", f"{theirs}.mlp.c_fc": f"{ours}.mlp.up",
                  f"{theirs}.mlp.c_proj": f"{ours}.mlp.down"}
        for kind in ("weight", "bias"):
            parts = [weights[f"{ours}.attention.{part}.{kind}"] for part in ("query", "key", "value")]
            state[f"{theirs}.attn.c_attn.{kind}"] = np.concatenate(parts).T
    for theirs, ours in names.items():
        for kind in ("weight", "bias"):
            if f"{ours}.{kind}" in weights:
                transposed = "c_" in theirs  # GPT-2 keeps these as [in, out]
                state[f"{theirs}.{kind}"] = weights[f"{ours}.{kind}"].T if transposed else weights[f"{ours}.{kind}"]
    model = transformers.GPT2LMHeadModel(sizes)
    state = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in state.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    if set(missing) - {"lm_head.weight"} or unexpected:
        raise RuntimeError(f"weights of GPT-2: missing {missing}, unexpected {unexpected}")
    return model.eval()


class TorchDecoder(Decoder):
    FORMATS = ("float32", "bfloat16")

    def __init__(self, threads, weights):
        super().__init__(threads, weights)
        import torch
        import transformers
        torch.set_num_threads(threads)
        self.torch, self.version = torch, f"PyTorch {torch.__version__}, transformers {transformers.__version__}"

    def load(self):
        if self.is_new():
            self.model = gpt2(self.config, self.tensors()).to(getattr(self.torch, self.format))

    def tokens_of(self, stamps):
        found, cache, ids = [], None, self.torch.tensor([self.tokens])
        with self.torch.inference_mode():
            for _ in range(self.new):
                output = self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache, ids = output.past_key_values, output.logits[:, -1].argmax(-1, keepdim=True)
                found.append(int(ids))
                stamps.append(now())
        return found


class CTranslate2(Decoder):
    FORMATS = ("float32", "bfloat16", "int8")

    def __init__(self, threads, weights):
        super().__init__(threads, weights)
        import ctranslate2
        self.library, self.version = ctranslate2, f"CTranslate2 {ctranslate2.__version__}"

    def load(self):
        if self.is_new():
            path = self.folder.parent / "ctranslate2"
            if not path.exists():
                self.convert(path)
            product = "int8_float32" if self.format == "int8" else self.format
            self.model = self.library.Generator(str(path), "cpu", compute_type=product, inter_threads=1,
                                                intra_threads=self.threads)

    def convert(self, path):
        """As its converter does with a folder of transformers, with the numbers of the tokens as a vocabulary."""
        from ctranslate2.converters.transformers import GPT2Loader
        loader = GPT2Loader()
        spec = loader.get_model_spec(gpt2(self.config, self.tensors()))
        words = [str(word) for word in range(self.config["vocab_size"])]
        spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = words[-1]
        loader.set_vocabulary(spec, words)
        spec.validate()
        spec.optimize(quantization=None)
        path.mkdir()
        spec.save(str(path))

    def tokens_of(self, stamps):
        found = []

        def step(result):
            found.append(result.token_id)
            stamps.append(now())
            return False

        self.model.generate_batch([list(map(str, self.tokens))], max_length=self.new, min_length=self.new,
                                  sampling_topk=1, include_prompt_in_result=False, callback=step)
        return found


class LlamaCpp(Decoder):
    """Its GELU is the approximation by tanh, from a table in half precision: tokens may differ where ours are close.
    int8 is its Q8_0, a scale for each 32 weights, in its plain layout: the one for AMX ended the process (0.3.36)."""

    FORMATS = ("float32", "bfloat16", "int8")

    def __init__(self, threads, weights):
        super().__init__(threads, weights)
        import llama_cpp
        import gguf  # noqa: F401
        self.library, self.version = llama_cpp, f"llama.cpp, llama-cpp-python {llama_cpp.__version__}"

    def load(self):
        if self.is_new():
            path = self.folder.parent / "model.gguf"
            if not path.exists():
                self.convert(path)
            if self.format != "float32":
                path = self.rounded(path)
            defaults = self.library.llama_model_default_params()
            defaults.use_extra_bufts = self.format != "int8"
            self.library.llama_cpp.llama_model_default_params = lambda: defaults  # what Llama begins with
            self.model = self.library.Llama(
                str(path), n_ctx=self.config["max_position_embeddings"], n_batch=512, n_ubatch=512,
                n_threads=self.threads, n_threads_batch=self.threads, type_k=0, type_v=0, verbose=False)

    def rounded(self, path):
        found = path.with_suffix(f".{self.format}.gguf")
        if not found.exists():
            params = self.library.llama_model_quantize_default_params()
            types = {"bfloat16": self.library.LLAMA_FTYPE_MOSTLY_BF16, "int8": self.library.LLAMA_FTYPE_MOSTLY_Q8_0}
            params.ftype = types[self.format]
            if self.library.llama_model_quantize(str(path).encode(), str(found).encode(), params) != 0:
                raise RuntimeError(f"llama.cpp cannot make {self.format} of its model")
        return found

    def convert(self, path):
        import gguf
        config, weights = self.config, self.tensors()
        writer = gguf.GGUFWriter(str(path), "gpt2")
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(config["num_attention_heads"])
        writer.add_layer_norm_eps(1e-5)
        writer.add_file_type(0)
        writer.add_vocab_size(config["vocab_size"])
        writer.add_tokenizer_model("none")
        writer.add_tensor("token_embd.weight", weights["embeddings.word.weight"])
        writer.add_tensor("position_embd.weight", weights["embeddings.position.weight"])
        for kind in ("weight", "bias"):
            writer.add_tensor(f"output_norm.{kind}", weights[f"final_norm.{kind}"])
            for layer in range(config["num_hidden_layers"]):
                ours = f"layers.{layer}"
                parts = [weights[f"{ours}.attention.{part}.{kind}"] for part in ("query", "key", "value")]
                writer.add_tensor(f"blk.{layer}.attn_qkv.{kind}", np.concatenate(parts))
                for theirs, name in (("attn_norm", "attention_norm"), ("attn_output", "attention.output"),
                                     ("ffn_norm", "mlp_norm"), ("ffn_up", "mlp.up"), ("ffn_down", "mlp.down")):
                    writer.add_tensor(f"blk.{layer}.{theirs}.{kind}", weights[f"{ours}.{name}.{kind}"])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def tokens_of(self, stamps):
        found, ids = [], self.tokens
        self.model.reset()
        for _ in range(self.new):
            self.model.eval(ids)
            logits = self.library.llama_get_logits_ith(self.model.ctx, -1)
            ids = [int(np.argmax(np.ctypeslib.as_array(logits, (self.config["vocab_size"],))))]
            found += ids
            stamps.append(now())
        return found


ENGINES = {"onnxruntime": OnnxRuntime, "openvino": OpenVino, "torch-encoder": TorchEncoder, "ctranslate2": CTranslate2,
           "torch-decoder": TorchDecoder, "llama.cpp": LlamaCpp}


def answer_line(engine, line):
    asked = json.loads(line)
    try:
        if asked["do"] == "prepare":
            engine.prepare(asked["folder"], asked["tokens"], asked["new"])
            return {}
        return {"answer": engine.answer()} if asked["do"] == "answer" else one_turn(engine.timed, asked["seconds"])
    except Exception as error:  # of any engine; the row says it
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=ENGINES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--weights", default="float32")
    args = parser.parse_args()
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what an engine prints is no answer
    try:
        engine = ENGINES[args.name](args.threads, args.weights)
    except (ImportError, OSError, RuntimeError) as error:
        lines.write(json.dumps({"error": str(error)}) + "\n")
        return
    lines.write(json.dumps({"version": engine.version}) + "\n")
    for line in sys.stdin:
        lines.write(json.dumps(answer_line(engine, line)) + "\n")


if __name__ == "__main__":
    main()
