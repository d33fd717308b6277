"""Calls whose right answers are known: each has inputs and a seed of its own, so an answer that belongs to another call
is seen. Threads make such calls, a few of them wrong on purpose or cancelled, and count what went wrong."""

import collections
import json
import random
import threading
import time
import uuid

import grpc
from serving import data_of

from evaluation import stubs  # serving made tools importable

CALL_SECONDS = 60  # a call that takes longer counts as lost
RETRY_SECONDS = 0.05
REFUSED = "RESOURCE_EXHAUSTED"
CUT_OFF = ("UNAVAILABLE", "INTERNAL", "CANCELLED", "UNKNOWN")  # a stream whose replica died
TROUBLES = ("lost", "doubled", "crossed", "wrong_answers", "wrong_statuses")


def connect(address):
    """A channel with connections of its own. With several addresses (ipv4:A,B) it takes each in turn."""
    return grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", 64 << 20),
                                                   ("grpc.use_local_subchannel_pool", 1),
                                                   ("grpc.lb_policy_name", "round_robin"),
                                                   ("grpc.max_reconnect_backoff_ms", 1000)])


class Marked:
    """The calls, and the answers that one quiet server gave to them."""

    def __init__(self, folder, models, texts=8, tokens=12):
        self.pb, self.services = stubs.make(folder)
        self.predicts, self.generates = [], []
        for model in models:
            lines = data_of(model).read_text().splitlines() if data_of(model).exists() else []
            for i, line in enumerate(lines[:texts]):
                request = self.pb.PredictRequest(model=model)
                sequence = request.inputs.add().sequence
                sequence.text = json.loads(line)["text"]
                request.ensemble.samples, request.ensemble.seed = 1 + i % 3, 1000 + i
                request.outputs.each_sample = i % 2 == 1
                self.predicts.append(request)
            for i, text in enumerate([] if lines else ["ROMEO:", "To be", "What say", "My lord"]):
                request = self.pb.GenerateRequest(model=model, max_new_tokens=tokens, temperature=1.0)
                request.prompt.text, request.ensemble.samples, request.ensemble.seed = text, 1 + i % 2, i
                self.generates.append(request)
        self.expected = {}

    def service(self, channel):
        return self.services.InferenceServiceStub(channel)

    @staticmethod
    def key(request):
        return request.SerializeToString(deterministic=True)

    @staticmethod
    def marks(response):
        """The part that an answer must have, byte for byte."""
        return tuple(prediction.SerializeToString(deterministic=True) for prediction in response.predictions)

    @staticmethod
    def tokens(messages):
        return tuple((message.token_id, message.text, message.log_probability) for message in messages)

    def learn(self, address):
        """Takes the answers of a quiet server as the right ones."""
        with connect(address) as channel:
            service = self.service(channel)
            for request in self.predicts:
                self.expected[self.key(request)] = self.marks(service.Predict(request, timeout=CALL_SECONDS))
            for request in self.generates:
                self.expected[self.key(request)] = self.tokens(service.Generate(request, timeout=CALL_SECONDS))
        assert len(set(self.expected.values())) == len(self.expected), "two calls have the same answer"
        self.answers = set(self.expected.values())


class Caller(threading.Thread):
    """Calls in turn until `stop` is set. `bad`, `cancelled`: shares of the calls; `streams`, `generations` too.
    `retry`: whether calls are made again, as they must be where replicas die."""

    def __init__(self, marked, address, stop, seed, *, bad=0.0, cancelled=0.0, streams=0.0, generations=0.0,
                 retry=False):
        super().__init__(daemon=True)
        self.marked, self.stop, self.random, self.retry = marked, stop, random.Random(seed), retry
        self.channel = connect(address)
        self.service = marked.service(self.channel)
        self.counts, self.details = collections.Counter(), []
        calls = {self.make_bad: bad, self.cancel: cancelled, self.stream: streams, self.generate: generations}
        self.calls = [*calls, self.predict]
        self.weights = [*calls.values(), 1 - sum(calls.values())]

    def run(self):
        with self.channel:
            while not self.stop.is_set():
                call, = self.random.choices(self.calls, self.weights)
                self.counts["sent"] += 1
                try:
                    call()
                except TimeoutError as error:
                    self.trouble("lost", error)
                except grpc.RpcError as error:
                    self.ended(error)

    def trouble(self, name, detail):
        self.counts[name] += 1
        if len(self.details) < 5:
            self.details.append(f"{name}: {detail}"[:300])

    def ended(self, error, allowed=()):
        """A call ended with an error; `allowed`: the codes that are right."""
        code = error.code().name
        if code in allowed:
            self.counts["as_expected"] += 1
        elif code == REFUSED:
            self.counts["refused"] += 1
        elif code == "DEADLINE_EXCEEDED":
            self.trouble("lost", error.details())
        else:
            self.trouble("wrong_statuses", f"{code} {error.details()}")

    def check(self, request, found):
        if found == self.marked.expected[self.marked.key(request)]:
            self.counts["answered"] += 1
        else:
            self.trouble("crossed" if found in self.marked.answers else "wrong_answers", f"{request}"[:100])

    def until_answered(self, call, again):
        """The result of the call. Where replicas die it is begun again after these codes."""
        end = time.monotonic() + CALL_SECONDS
        while True:
            try:
                return call()
            except grpc.RpcError as error:
                if not self.retry or error.code().name not in again:
                    raise
                if time.monotonic() > end:
                    raise TimeoutError(error.details()) from error
                self.counts[f"again_{error.code().name}"] += 1
                time.sleep(RETRY_SECONDS)

    def predict(self):
        request = self.random.choice(self.marked.predicts)
        named = self.marked.pb.PredictRequest()
        named.CopyFrom(request)
        named.request_id = uuid.UUID(int=self.random.getrandbits(128)).hex
        answer = self.until_answered(lambda: self.service.Predict(named, timeout=CALL_SECONDS), ("UNAVAILABLE",))
        if answer.request_id != named.request_id:
            return self.trouble("crossed", f"{answer.request_id} for {named.request_id}")
        return self.check(request, self.marked.marks(answer))

    def generate(self):
        request = self.random.choice(self.marked.generates)
        messages = self.until_answered(lambda: list(self.service.Generate(request, timeout=CALL_SECONDS)), CUT_OFF)
        if sum(message.done for message in messages) != 1 or not messages[-1].done:
            return self.trouble("doubled", f"{len(messages)} messages")
        return self.check(request, self.marked.tokens(messages))

    def stream(self):
        """Several requests over one stream; each is answered once, under its name."""
        open_ones = {}
        for i in range(self.random.randint(2, 8)):
            request = self.marked.pb.PredictRequest()
            request.CopyFrom(self.random.choice(self.marked.predicts))
            open_ones[f"{i}"] = request
        sent = []
        for name, request in open_ones.items():
            named = self.marked.pb.PredictRequest()
            named.CopyFrom(request)
            named.request_id = name
            sent.append(named)
        self.counts["sent"] += len(sent) - 1
        for answer in self.service.PredictStream(iter(sent), timeout=CALL_SECONDS):
            request = open_ones.pop(answer.request_id, None)
            if request is None:
                self.trouble("doubled", answer.request_id)
            elif answer.HasField("error"):
                if answer.error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]:
                    self.counts["refused"] += 1
                else:
                    self.trouble("wrong_statuses", answer.error.message)
            else:
                self.check(request, self.marked.marks(answer.response))
        for name in open_ones:
            self.trouble("lost", f"{name} on a stream")

    def make_bad(self):
        """A request that must be refused as its mistake says."""
        request = self.marked.pb.PredictRequest()
        request.CopyFrom(self.random.choice(self.marked.predicts))
        mistake = self.random.randrange(4)
        if mistake == 0:
            request.model = "no-such-model"
        elif mistake == 1:
            request.ensemble.samples = 1 << 30
        elif mistake == 2:
            request.inputs[0].sequence.token_ids.values.append(1 << 30)
        else:
            del request.inputs[:]
        try:
            self.until_answered(lambda: self.service.Predict(request, timeout=CALL_SECONDS), ("UNAVAILABLE",))
            self.trouble("wrong_statuses", f"OK for mistake {mistake}")
        except grpc.RpcError as error:
            self.ended(error, ("NOT_FOUND",) if mistake == 0 else ("INVALID_ARGUMENT",))

    def cancel(self):
        """A call whose client goes; it may have been answered before."""
        generate = self.marked.generates and self.random.random() < 0.5
        if generate:
            call = self.service.Generate(self.random.choice(self.marked.generates), timeout=CALL_SECONDS)
        else:
            call = self.service.Predict.future(self.random.choice(self.marked.predicts), timeout=CALL_SECONDS)
        time.sleep(self.random.uniform(0, 0.02))
        call.cancel()
        self.counts["as_expected"] += 1


class Callers:
    """Callers that run while the `with` block does; their counts afterwards."""

    def __init__(self, marked, addresses, number, seed=1, **shares):
        self.stop = threading.Event()
        self.threads = [Caller(marked, addresses[i % len(addresses)], self.stop, seed + i, **shares)
                        for i in range(number)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        end = time.monotonic() + 2 * CALL_SECONDS
        for thread in self.threads:
            thread.join(max(0.0, end - time.monotonic()))
        counts = sum((thread.counts for thread in self.threads), collections.Counter())
        counts["lost"] += sum(thread.is_alive() for thread in self.threads)
        self.details = [detail for thread in self.threads for detail in thread.details]
        self.troubles = {name: counts[name] for name in TROUBLES}
        others = {name: counts[name] for name in ("as_expected", "refused", *TROUBLES) if counts[name]}
        again = {name.removeprefix("again_"): counts[name] for name in counts if name.startswith("again_")}
        self.figures = {"sent": counts["sent"], "answered": counts["answered"], "others": others, "again": again}
