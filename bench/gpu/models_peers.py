"""The peers of bench/gpu/models_gpu.py: PyTorch's modules, and generate() of transformers, on the same folders. Each
part gives (name of the row, what measures it)."""

import statistics
import time

import torch
import transformers
from timing import DryClock, GpuClock

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
REPEATS = 20


class Peers:
    def __init__(self, dry_run):
        if not dry_run and not torch.cuda.is_available():
            raise RuntimeError("PyTorch sees no CUDA device")
        self.dry_run = dry_run
        self.device = "cpu" if dry_run else "cuda"
        self.clock = DryClock() if dry_run else GpuClock()
        torch.backends.cuda.matmul.allow_tf32 = False
        transformers.utils.logging.disable_progress_bar()

    def module(self, automatic, folder, precision):
        found = automatic.from_pretrained(folder, attn_implementation="sdpa", dtype=DTYPES[precision])
        return found.eval().to(self.device)

    def ids(self, texts, tokens, words):
        return torch.randint(3, words, (texts, tokens), device=self.device)

    def milliseconds(self, run):
        for _ in range(3):
            self.clock.time(run)
        return round(statistics.median(self.clock.time(run) for _ in range(3 if self.dry_run else REPEATS)), 4)

    def graph(self, run):
        """A CUDA graph of a run, as a function."""
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return graph.replay

    @torch.no_grad()
    def bert_row(self, module, tokens, texts, words):
        ids = self.ids(texts, tokens, words)

        def run():
            return module(input_ids=ids)
        row = {"torch_ms": self.milliseconds(run)}
        return row if self.dry_run else row | {"torch_graph_ms": self.milliseconds(self.graph(run))}

    def bert(self, folder, precision, texts, words):
        module = self.module(transformers.AutoModelForSequenceClassification, folder, precision)
        for tokens, at_once in texts:
            yield (f"torch bert, {tokens} tokens x {at_once}",
                   lambda: torch.no_grad()(self.bert_row)(module, tokens, at_once, words))

    @torch.no_grad()
    def generate_row(self, module, prompt, at_once, new, words):
        ids = self.ids(at_once, prompt, words)

        def run(tokens):
            self.clock.settle()
            start = time.perf_counter()
            module.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens,
                            do_sample=False, pad_token_id=0)
            self.clock.settle()
            return time.perf_counter() - start
        run(min(new, 4))  # warms up
        return {"tokens_per_second": round(at_once * new / run(new), 1)}

    def generate(self, model, folder, precision, prompts, words):
        module = self.module(transformers.AutoModelForCausalLM, folder, precision)
        for prompt, at_once, new in prompts:
            yield (f"transformers {model}, {new} tokens after {prompt} x {at_once}",
                   lambda: self.generate_row(module, prompt, at_once, new, words))
