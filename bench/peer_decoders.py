"""Decoders of bench/peer_engine.py: a GPT-2 of transformers, as PyTorch, CTranslate2 and llama.cpp run it."""

import pathlib
import sys

import numpy as np
from peer_engine import Engine, now, span

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
from edgewise_tools.safetensors_io import SafetensorsStateDict  # noqa: E402


class Decoder(Engine):
    """Subclasses have generate(stamps), which gives self.new greedy tokens of each text, and appends now() to `stamps` at
    each token. The texts are of one length, and computed at once."""

    def answer(self):
        return self.generate([])

    def timed(self):
        stamps, start = [], now()
        self.generate(stamps)
        return span(start, stamps, len(self.texts))


class StepByStep(Decoder):
    """Subclasses have step(ids, position), which takes the next tokens of each text, [texts][tokens], the first of them
    at `position`, and gives the most probable token behind each."""

    def generate(self, stamps):
        found, ids, position = [[] for _ in self.texts], self.texts, 0
        for _ in range(self.new):
            tokens = self.step(ids, position)
            position += len(ids[0])
            ids = [[token] for token in tokens]
            stamps += [now()] * len(tokens)
            for text, token in zip(found, tokens):
                text.append(token)
        return found


class TorchDecoder(StepByStep):
    FORMATS = ("float32", "bfloat16")

    def __init__(self, threads, weights):
        super().__init__(threads, weights)
        import torch
        import transformers
        torch.set_num_threads(threads)
        self.torch, self.version = torch, f"PyTorch {torch.__version__}, transformers {transformers.__version__}"

    def load(self):
        self.model = self.keep("model", lambda: self.pretrained("AutoModelForCausalLM", dtype=self.format))

    def step(self, ids, position):
        with self.torch.inference_mode():
            output = self.model(input_ids=self.torch.tensor(ids), past_key_values=self.cache if position else None,
                                use_cache=True, logits_to_keep=1)
        self.cache = output.past_key_values
        return output.logits[:, -1].argmax(-1).tolist()


class CTranslate2(Decoder):
    FORMATS = ("float32", "bfloat16", "int8")

    def __init__(self, threads, weights):
        super().__init__(threads, weights)
        import ctranslate2
        self.library, self.version = ctranslate2, f"CTranslate2 {ctranslate2.__version__}"
        self.product = "int8_float32" if weights == "int8" else weights
        if self.product not in ctranslate2.get_supported_compute_types("cpu"):
            raise RuntimeError(f"{self.version} has no {self.product} on this machine")

    def load(self):
        self.model = self.keep("model", self.converted)

    def converted(self):
        path = self.folder.parent / "ctranslate2"
        if not path.exists():
            convert_for_ctranslate2(self.folder, path, self.config["vocab_size"])
        return self.library.Generator(str(path), "cpu", compute_type=self.product, inter_threads=1,
                                      intra_threads=self.threads)

    def generate(self, stamps):
        found = [[] for _ in self.texts]

        def step(result):
            found[result.batch_id].append(result.token_id)
            stamps.append(now())
            return False

        self.model.generate_batch([list(map(str, tokens)) for tokens in self.texts], max_length=self.new,
                                  min_length=self.new, sampling_topk=1, include_prompt_in_result=False, callback=step)
        return found


def convert_for_ctranslate2(folder, path, words):
    """By its converter, with the numbers of the tokens as a vocabulary."""
    from ctranslate2.converters import TransformersConverter

    class Numbers:
        bos_token = eos_token = unk_token = str(words - 1)

        def get_vocab(self):
            return {str(word): word for word in range(words)}

    class Converter(TransformersConverter):
        def load_tokenizer(self, *_, **__):
            return Numbers()

    Converter(str(folder)).convert(str(path))


class LlamaCpp(StepByStep):
    """Its GELU is from a table in half precision: a token may differ where two are close. int8 is its Q8_0, a scale for
    each 32 weights, in its plain layout: the one for AMX ended the process (0.3.36)."""

    FORMATS = ("float32", "bfloat16", "int8")

    def __init__(self, threads, weights):
        super().__init__(threads, weights)
        import gguf  # noqa: F401
        import llama_cpp
        self.api, self.version = llama_cpp, f"llama.cpp, llama-cpp-python {llama_cpp.__version__}"
        llama_cpp.llama_backend_init()
        self.context = None

    def load(self):
        model = self.keep("model", self.model)
        texts, tokens = len(self.texts), len(self.texts[0]) + self.new
        if self.context:
            self.api.llama_free(self.context)
            self.api.llama_batch_free(self.batch)
        params = self.api.llama_context_default_params()
        params.n_ctx = texts * -(-tokens // 256) * 256
        params.n_batch, params.n_ubatch, params.n_seq_max = texts * tokens, 512, texts
        params.n_threads = params.n_threads_batch = self.threads
        params.type_k = params.type_v = 0  # float32
        self.context = self.api.llama_init_from_model(model, params)
        if not self.context:
            raise RuntimeError("llama.cpp makes no context")
        self.batch = self.api.llama_batch_init(texts * tokens, 0, 1)

    def model(self):
        path = self.folder.parent / "model.gguf"
        if not path.exists():
            write_gguf(self.folder, path, self.config)
        if self.format != "float32":
            path = self.rounded(path)
        params = self.api.llama_model_default_params()
        params.use_extra_bufts = self.format != "int8"
        return self.api.llama_model_load_from_file(str(path).encode(), params)

    def rounded(self, path):
        found = path.with_suffix(f".{self.format}.gguf")
        if not found.exists():
            params = self.api.llama_model_quantize_default_params()
            types = {"bfloat16": self.api.LLAMA_FTYPE_MOSTLY_BF16, "int8": self.api.LLAMA_FTYPE_MOSTLY_Q8_0}
            params.ftype = types[self.format]
            if self.api.llama_model_quantize(str(path).encode(), str(found).encode(), params) != 0:
                raise RuntimeError(f"llama.cpp cannot make {self.format} of its model")
        return found

    def step(self, ids, position):
        if position == 0:
            self.api.llama_memory_clear(self.api.llama_get_memory(self.context), False)
        batch, length = self.batch, len(ids[0])
        batch.n_tokens = len(ids) * length
        for place in range(batch.n_tokens):
            text, index = divmod(place, length)
            batch.token[place], batch.pos[place] = ids[text][index], position + index
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, text
            batch.logits[place] = index == length - 1
        if self.api.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama.cpp cannot decode")
        return [self.best(text * length + length - 1) for text in range(len(ids))]

    def best(self, place):
        logits = self.api.llama_get_logits_ith(self.context, place)
        return int(np.argmax(np.ctypeslib.as_array(logits, (self.config["vocab_size"],))))


def write_gguf(folder, path, config):
    """The folder in llama.cpp's format. Its own converter is no part of its packages; the names of tensors are."""
    import gguf
    layers = config["n_layer"]
    writer = gguf.GGUFWriter(str(path), "gpt2")
    writer.add_block_count(layers)
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(config["n_inner"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_file_type(0)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, layers)
    file = SafetensorsStateDict(str(folder / "model.safetensors"))
    for name in file.names():
        values = file.load(name)
        is_transposed = ".c_" in name and values.ndim == 2  # GPT-2 keeps these as [in, out]
        writer.add_tensor(names.get_name(name, (".weight", ".bias")),
                          np.ascontiguousarray(values.T) if is_transposed else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
