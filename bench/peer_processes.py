"""What bench/peers.py times: our server, asked over gRPC, and each peer, a child in a Python of its own."""

import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import time

import numpy as np
from peer_engine import one_turn, span
from serving import process_cpu

from evaluation import stubs  # serving made tools importable

SECONDS = 0.3  # of a turn, about


class Stoppable:
    """A process that runs inside `with`, and is stopped outside."""

    def __init__(self, pid):
        self.pid = pid

    def __enter__(self):
        os.kill(self.pid, signal.SIGCONT)
        return self

    def __exit__(self, *_):
        os.kill(self.pid, signal.SIGSTOP)


class Ours(Stoppable):
    """The server. A text is a call. For calls one after another, `compute_us` counts, and for decode the time between
    messages; of calls at once the time until the last message."""

    def __init__(self, server, made_stubs, most_at_once):
        super().__init__(server.process.pid)
        self.client = stubs.Client(server.address, made_stubs)
        self.pool = concurrent.futures.ThreadPoolExecutor(most_at_once)

    def now(self):
        return np.array([time.perf_counter(), process_cpu(self.pid)])

    def prepare(self, case):
        self.new, self.at_once = case["new"], case["at_once"]
        self.requests = [self.request(case["model"], ids) for ids in case["ids"]]

    def request(self, model, ids):
        messages = self.client.messages
        sequence = messages.Sequence(token_ids=messages.TokenIds(values=ids))
        if self.new:
            return messages.GenerateRequest(model=model, prompt=sequence, max_new_tokens=self.new)
        request = messages.PredictRequest(model=model, inputs=[messages.Input(sequence=sequence)])
        request.outputs.logits = True
        return request

    def predict(self):
        call = self.client.service.Predict
        if self.at_once == 1:
            return [call(request, timeout=stubs.CALL_SECONDS) for request in self.requests]
        return [waiting.result() for waiting in [call.future(request, timeout=stubs.CALL_SECONDS)
                                                 for request in self.requests]]

    def generate(self, stamps):
        """The messages of each call; each is stamped as it comes."""
        def messages_of(request):
            found = []
            for message in self.client.service.Generate(request, timeout=stubs.CALL_SECONDS):
                stamps.append(self.now())
                found.append(message)
            return found

        return list(self.pool.map(messages_of, self.requests))

    def answer(self):
        if self.new:
            return [[message.token_id for message in messages] for messages in self.generate([])]
        return [logit for response in self.predict() for logit in response.predictions[0].logits]

    def timed(self):
        stamps, start = [], self.now()
        if self.new:
            timings = [messages[-1].timing for messages in self.generate(stamps)]
            wall, cpu = span(start, stamps, len(self.requests))
        else:
            timings = [response.timing for response in self.predict()]
            wall, cpu = self.now() - start
        if self.at_once == 1 and self.new <= 1:
            wall = sum(timing.compute_us for timing in timings) / 1e6
        return wall, cpu

    def turn(self):
        return one_turn(self.timed, SECONDS)


class Missing(Exception):
    """Why a peer cannot take part."""


class Peer(Stoppable):
    """bench/peer_engine.py as a child. Its log is in the folder above that of the models."""

    def __init__(self, python, name, threads, weights, repository):
        self.repository = pathlib.Path(repository)
        environment = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
        script = pathlib.Path(__file__).with_name("peer_engine.py")
        command = [python, script, name, "--threads", str(threads), "--weights", weights]
        with open(self.repository.parent / f"{name}.log", "ab") as log:
            self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                                          env=environment)
        super().__init__(self.child.pid)
        try:
            self.version = self.read()["version"]
        except Missing:
            self.close()
            raise
        self.__exit__()

    def read(self):
        line = self.child.stdout.readline()
        answer = json.loads(line) if line else {"error": "the process ended"}
        if "error" in answer:
            raise Missing(answer["error"])
        return answer

    def ask(self, **asked):
        self.child.stdin.write(json.dumps(asked) + "\n")
        self.child.stdin.flush()
        return self.read()

    def prepare(self, case):
        self.ask(do="prepare", folder=str(self.repository / case["model"] / "1"), texts=case["ids"],
                 at_once=case["at_once"], new=case["new"])

    def answer(self):
        return self.ask(do="answer")["answer"]

    def turn(self):
        return self.ask(do="time", seconds=SECONDS)

    def close(self):
        os.kill(self.pid, signal.SIGCONT)
        self.child.stdin.close()
        try:
            self.child.wait(10)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self.child.stdout.close()


def start_peers(python, names, threads, weights, repository, versions):
    """{name: Peer} of those that can be imported; `versions` gets all, with the reason where one is skipped."""
    peers = {}
    for name in names:
        try:
            peers[name] = Peer(python, name, threads, weights, repository)
            versions[name] = peers[name].version
        except Missing as reason:
            versions[name] = f"skipped: {reason}"
            print(f"skipped: {name}: {reason}", flush=True)
    return peers
