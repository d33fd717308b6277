"""Texts of 4,000,000 characters for every kind of tokenizer."""

import collections
import contextlib
import itertools
import json
import shutil
import threading
import time

from bare_http2 import GENERATE, PREDICT, Connection
from hostile_others import HOSTILE, MEMORY, beside, port_of, repository
from random_models import ROOT, write_bert, write_gpt2
from serving import EXAMPLES, goal, process_cpu

CHARACTERS = 4_000_000
LETTERS = "a!1"
DEADLINE, MOST_SECONDS = 0.3, 0.4
REST = 0.1             # seconds after the end of a call, in which its work may end
MOST_CPU_AFTER = 0.1   # CPU seconds in half a second after that
WORDS = 1024           # of the models made here, more than any of the tokenizers has
TOKENIZERS = ROOT / "tests/testdata_tokenizers"


def tokenizer(name):
    return json.loads((TOKENIZERS / f"{name}.json").read_text())["tokenizer"]


def add_tokenizer(folder, data):
    """`data`: an object, or the text of one."""
    (folder / "1/tokenizer.json").write_text(data if isinstance(data, str) else json.dumps(data))


def encoder(folder, data):
    write_bert(folder, layers=1, width=32, heads=2, inner=32, words=WORDS, positions=128)
    add_tokenizer(folder, data)


def decoder(folder, data):
    write_gpt2(folder, layers=1, width=32, heads=2, inner=32, words=WORDS, positions=128)
    add_tokenizer(folder, data)


def of_bytes(folder, _):
    """The model `sentiment`, which reads bytes."""
    shutil.copytree(EXAMPLES / "sentiment", folder)
    path = folder / "1/config.json"
    config = json.loads(path.read_text())
    config["tokenizer"] = {"kind": "byte"}
    path.write_text(json.dumps(config))


def copy(name):
    return lambda folder, _: shutil.copytree(name, folder)


# Kind: who writes the model, its tokenizer, whether it generates, whether it takes messages.
KINDS = {"WordPiece": (encoder, "bert", False, False), "byte-level BPE": (decoder, "gpt2", True, False),
         "metaspace BPE": (decoder, "llama2", True, False), "Unigram": (encoder, "xlm-roberta", False, False),
         "byte": (of_bytes, None, False, False), "char": (copy(EXAMPLES / "shakespeare-ssa"), None, True, False),
         "word": (copy(EXAMPLES / "shakespeare-words"), None, True, False),
         "chat": (copy(ROOT / "tests/testdata_chat/llama3"), None, True, True)}


def requests(messages, text, generates, chats):
    """(path, message) of each method that takes the text. Those of a causal model are cut, since its scores of that many
    windows are work that was asked for."""
    predict = messages.PredictRequest(model="hostile")
    sequence = predict.inputs.add().sequence
    sequence.text, sequence.truncate = text, messages.HEAD if generates else messages.REFUSE
    found = [(PREDICT, predict)]
    if not generates:
        cut = messages.PredictRequest()
        cut.CopyFrom(predict)
        cut.inputs[0].sequence.truncate = messages.TAIL
        found.append((PREDICT, cut))
    else:
        generate = messages.GenerateRequest(model="hostile", max_new_tokens=4)
        generate.prompt.text, generate.prompt.truncate = text, messages.HEAD
        found.append((GENERATE, generate))
    if chats:
        chat = messages.GenerateRequest(model="hostile", max_new_tokens=4)
        chat.messages.add(role="user", content=text)
        found = [(GENERATE, chat)]
    return [(path, message.SerializeToString()) for path, message in found]


def in_turn(port, calls, end, codes, **options):
    """Makes the calls in turn until the event is set, on one connection as long as it lives."""
    calls = itertools.cycle(calls)
    while True:  # one call at least, however late it is
        with contextlib.suppress(OSError), contextlib.closing(Connection(port, source=HOSTILE)) as connection:
            connection.pump(0.05)
            while True:
                status, text, _ = connection.call(*next(calls), **options)
                codes[status, text] += 1
                if end.is_set():
                    return
        if end.wait(0.05):
            return


def texts(run, kind):
    write, name, generates, chats = KINDS[kind]
    models = repository(run, lambda folder: write(folder, name and tokenizer(name)))
    with run.server(models, flags=[f"--max_memory={MEMORY}"]) as server:
        codes = collections.Counter()

        def attack(end):
            calls = [requests(run.stubs[0], letter * CHARACTERS, generates, chats) for letter in LETTERS]
            # One thread for each method.
            return [threading.Thread(target=in_turn, args=(port_of(server), method, end, codes), daemon=True)
                    for method in zip(*calls)]

        figures, goals = beside(run, server, attack)
        slowest, after = 0.0, 0.0
        for letter in LETTERS:
            for path, message in requests(run.stubs[0], letter * CHARACTERS, generates, chats)[-1:]:
                with contextlib.closing(Connection(port_of(server), source=HOSTILE)) as connection:
                    connection.pump(0.05)
                    _, _, seconds = connection.call(path, message, deadline=DEADLINE)
                    slowest = max(slowest, seconds)
                    time.sleep(REST)
                    cpu = process_cpu(server.process.pid)
                    time.sleep(0.5)
                    after = max(after, process_cpu(server.process.pid) - cpu)
    run.row(f"texts {kind}", {**figures, "long": by_code(codes)}, **goals,
            deadline_s=goal(slowest, "at most", MOST_SECONDS),
            cpu_after_deadline_s=goal(after, "at most", MOST_CPU_AFTER))


def by_code(codes):
    """{"code": calls}; "none": without an end."""
    counts = collections.Counter()
    for (status, _), count in codes.items():
        counts["none" if status is None else str(status)] += count
    return dict(counts)
