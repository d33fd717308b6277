"""Files of tokenizers that ask for too much: refused when they are read, or their own requests end in a clear error."""

import collections
import contextlib
import json
import os
import resource
import signal
import threading
import time

from bare_http2 import GENERATE, PREDICT
from hostile_others import ADDRESS_SPACE, MEMORY, beside, port_of, repository
from hostile_texts import by_code, decoder, encoder, in_turn, tokenizer
from serving import goal

CLEAR = {3, 4, 8, 9}  # INVALID_ARGUMENT, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION
DEADLINE, PATIENCE = 5, 6  # seconds
LOAD_SECONDS = 30          # in which a file must have been read or refused
LOADED = 'edgewise_model_loads_total{{model="hostile",result="{}",version="1"}}'


def changed(name, **parts):
    """The tokenizer with other parts."""
    return {**tokenizer(name), **parts}


def sequence(kind, steps):
    return {"type": "Sequence", kind: steps}


def replace(old, new):
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def split(**pattern):
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def growth_in_an_added_token():
    data = changed("bert", normalizer=sequence("normalizers", [replace("a", "aa")] * 40))
    data["added_tokens"].append({"id": len(data["model"]["vocab"]), "content": "a!!", "normalized": True,
                                 "special": False, "single_word": False, "lstrip": False, "rstrip": False})
    return data


def nested():
    """A million steps, six levels of ten."""
    steps = '{"type":"NFC"}'
    for _ in range(6):
        steps = f'{{"type":"Sequence","normalizers":[{",".join([steps] * 10)}]}}'
    data = json.dumps(changed("bert", normalizer="HERE"))
    return data.replace('"HERE"', steps)


def template():
    """A million special tokens."""
    token = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
    return changed("bert", post_processor={
        "type": "TemplateProcessing", "single": [token] * 10**6 + [{"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}}})


# Case: its tokenizer, and the text that it is given.
FILES = {
    "added token growth": (growth_in_an_added_token, "a"),
    "Replace doubling": (lambda: changed("bert", normalizer=sequence("normalizers", [replace("a", "aa")] * 40)), "a"),
    "Replace by megabyte": (lambda: changed("bert", normalizer=replace("a", "b" * 10**6)), "a" * 20_000),
    "decoder doubling": (lambda: changed("gpt2", decoder=sequence("decoders", [
        *[replace("e", "ee")] * 40, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                                     "use_regex": False}])), None),
    "3000 Splits": (lambda: changed("bert", pre_tokenizer=sequence(
        "pretokenizers", [split(String=chr(0x4E00 + i)) for i in range(3000)])), "ab c" * 250_000),
    "million NFC": (nested, "a" * 2000),
    "(a*)*b|c": (lambda: changed("bert", pre_tokenizer=split(Regex="(a*)*b|c")), "a" * 4_000_000),
    "(a+)+b": (lambda: changed("bert", pre_tokenizer=split(Regex="(a+)+b")), "a" * 40),
    "million in template": (template, "a")}


def calls_of(messages, text):
    """Without a text: a generation of 200 tokens."""
    if text is None:
        request = messages.GenerateRequest(model="hostile", max_new_tokens=200, temperature=1.0)
        request.prompt.text = "the "
        return [(GENERATE, request.SerializeToString())]
    request = messages.PredictRequest(model="hostile")
    sequence_ = request.inputs.add().sequence
    sequence_.text, sequence_.truncate = text, messages.HEAD
    return [(PREDICT, request.SerializeToString())]


def load_and_call(server, folder, models, messages, text, end, found):
    """The file comes; once it has loaded it is used, until the event is set. A refused one counts as a clear error."""
    os.rename(folder, models / "hostile")
    until = time.monotonic() + LOAD_SECONDS
    server.process.send_signal(signal.SIGHUP)
    while server.process.poll() is None:
        with contextlib.suppress(OSError):
            if server.metric(LOADED.format("error")):
                found["refused"] = True
                return
            if server.metric(LOADED.format("ok")):
                break
        if time.monotonic() > until:
            return
        time.sleep(0.1)
    codes = found["codes"]
    while server.process.poll() is None:
        in_turn(port_of(server), calls_of(messages, text), end, codes, deadline=DEADLINE, patience=PATIENCE)
        if end.is_set() and codes:
            return


def files(run, case):
    make, text = FILES[case]
    folder = run.new_folder() / "hostile"
    (decoder if text is None else encoder)(folder, make())
    models = repository(run)
    server = run.server(models, flags=[f"--max_memory={MEMORY}"])
    resource.prlimit(server.process.pid, resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    with server:
        found = {"codes": collections.Counter()}

        def attack(end):
            arguments = (server, folder, models, run.stubs[0], text, end, found)
            return [threading.Thread(target=load_and_call, args=arguments, daemon=True)]

        figures, goals = beside(run, server, attack)
    codes = found["codes"]
    calls = sum(codes.values())
    clear = sum(count for (status, text), count in codes.items() if status in CLEAR)
    share = 1.0 if "refused" in found else clear / calls if calls else None
    if not figures["alive"]:
        share = None
    first = next((text for (_, text) in codes if text), "")
    figures |= {"refused_at_load": "refused" in found, "own": by_code(codes), "error": first[:120]}
    run.row(f"files {case}", figures, **goals, clear_errors=goal(share, "at least", 1))
