#!/usr/bin/env python3
"""The HTTP front beside gRPC: the same requests to the same model, by 8 callers.

    ./dev bench http [--seconds 3] [--only embeddings] [--json FILE]

The callers of front_calls (one process, on another core than the server's) wait for each answer and make nothing of it;
both ways run in turns, in five rounds. Figures of a row:

http_per_second, grpc_per_second   answers; their ratio, the median over the rounds, is the goal
cpu_http_us, cpu_grpc_us           CPU time of the server an answer

`embeddings` is /v1/embeddings of one text of 16 words, to an encoder of random weights with two layers of 128 columns, and
384 numbers in an answer; `embeddings in base64` the same so. `chat` is a streamed /v1/chat/completions of 32 tokens of
shakespeare-llama, and `chat whole` the same in one answer; over gRPC it is a stream each time.
"""

import json
import shutil
import subprocess
import sys

import numpy as np
from random_models import ROOT, Weights, write_safetensors
from serving import CLIENT_CORE, EXAMPLES, Cpu, goal, main, on_core

CALLERS, ROUNDS = 8, 5
LEAST = 0.6
WIDTH, LAYERS, HEADS, INNER, NUMBERS = 128, 2, 2, 256, 384
TEXT = "the cat sat on the old mat and the red dog run in a blue house ."
MESSAGES = [{"role": "user", "content": "But soft, what light through yonder window breaks?"}]
TEMPLATE = "{% for m in messages %}{{ m.role | upper }}:\n{{ m.content }}\n\n{% endfor %}ROMEO:\n"


def write_encoder(folder):
    """A sentence encoder of the kind of tests/testdata_sentence/dense, larger."""
    shutil.copytree(ROOT / "tests/testdata_sentence/dense/1", folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": INNER}
    (folder / "config.json").write_text(json.dumps(config))
    weights = Weights(WIDTH, scale=WIDTH ** -0.5)
    tensors = {f"embeddings.{name}_embeddings.weight": weights.normal(rows, WIDTH, scale=1.0)
               for name, rows in (("word", config["vocab_size"]), ("position", config["max_position_embeddings"]),
                                  ("token_type", config["type_vocab_size"]))}
    tensors |= weights.norm("embeddings.LayerNorm")
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            tensors |= weights.linear(f"{name}.attention.self.{part}", WIDTH, WIDTH)
        tensors |= weights.linear(f"{name}.attention.output.dense", WIDTH, WIDTH)
        tensors |= weights.norm(f"{name}.attention.output.LayerNorm")
        tensors |= weights.linear(f"{name}.intermediate.dense", INNER, WIDTH)
        tensors |= weights.linear(f"{name}.output.dense", WIDTH, INNER)
        tensors |= weights.norm(f"{name}.output.LayerNorm")
    write_safetensors(str(folder / "model.safetensors"), tensors)
    pooling = folder / "1_Pooling/config.json"
    pooling.write_text(json.dumps(json.loads(pooling.read_text()) | {"embedding_dimension": WIDTH}))
    for dense, columns in ((folder / "2_Dense", WIDTH), (folder / "3_Dense", NUMBERS)):
        config = json.loads((dense / "config.json").read_text()) | {"in_features": columns, "out_features": NUMBERS}
        (dense / "config.json").write_text(json.dumps(config))
        tensors = {"linear.weight": weights.normal(NUMBERS, columns)}
        tensors |= {"linear.bias": np.zeros(NUMBERS, np.float32)} if config["bias"] else {}
        write_safetensors(str(dense / "model.safetensors"), tensors)


def write_writer(folder):
    """shakespeare-llama with a chat template."""
    shutil.copytree(EXAMPLES / "shakespeare-llama/1", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)


PREDICT = {"model": "encoder", "inputs": [{"sequence": {"text": TEXT}}], "ensemble": {"seed": 7}}
GENERATE = {"model": "writer", "messages": MESSAGES, "maxNewTokens": 32, "temperature": 1, "ensemble": {"seed": 7}}
EMBED = {"model": "encoder", "input": TEXT, "edgewise": {"seed": 7}}
CHAT = {"model": "writer", "messages": MESSAGES, "max_tokens": 32, "temperature": 1, "seed": 7}
# The route of HTTP and its body, the method of gRPC and its.
CASES = {"embeddings": ("/v1/embeddings", EMBED, "Predict", PREDICT),
         "embeddings in base64": ("/v1/embeddings", EMBED | {"encoding_format": "base64"}, "Predict", PREDICT),
         "chat": ("/v1/chat/completions", CHAT | {"stream": True}, "Generate", GENERATE),
         "chat whole": ("/v1/chat/completions", CHAT, "Generate", GENERATE)}


def calls(run, address, route, body):
    """The answers to front_calls, as it prints them."""
    file = run.new_folder() / "body.json"
    file.write_text(json.dumps(body))
    with on_core(CLIENT_CORE):
        found = subprocess.run(
            [f"{run.args.bin}/front_calls", f"--server={address}", f"--route={route}", f"--body={file}",
             f"--callers={CALLERS}", f"--milliseconds={int(1e3 * run.seconds)}"], capture_output=True, text=True, check=True)
    answers = json.loads(found.stdout)
    if answers["failed"]:
        raise RuntimeError(f"{route}: {answers}")
    return answers


def scenario(run):
    folder = run.new_folder()
    write_encoder(folder / "encoder")
    write_writer(folder / "writer")
    flags = [f"--model={name}={folder / name}" for name in ("encoder", "writer")]
    with run.server("", flags=["--http_listen=127.0.0.1:0", *flags]) as server:
        serving = next(line for line in server.log.read_text().splitlines() if '"event":"serving"' in line)
        http = f"127.0.0.1:{json.loads(serving)['http_port']}"
        for case, (route, body, method, message) in CASES.items():
            if not run.wants(case):
                continue
            rates, cpu = {"http": [], "grpc": []}, {"http": [], "grpc": []}
            for _ in range(ROUNDS):
                for way, where in (("grpc", (server.address, method, message)), ("http", (http, route, body))):
                    with Cpu(server) as used:
                        found = calls(run, *where)
                    rates[way].append(found["answered"] / found["seconds"])
                    cpu[way].append(1e6 * used.seconds / found["answered"])
            rate, micros = ({way: float(np.median(values)) for way, values in one.items()} for one in (rates, cpu))
            run.row(case, {"http_per_second": rate["http"], "grpc_per_second": rate["grpc"],
                           "cpu_http_us": micros["http"], "cpu_grpc_us": micros["grpc"]},
                    http_over_grpc=goal(np.median(np.divide(rates["http"], rates["grpc"])), "at least", LEAST))


if __name__ == "__main__":
    sys.exit(main("http", __doc__, scenario, seconds=3))
