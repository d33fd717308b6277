"""One ensemble computed by several servers, each its part of the samples."""

from __future__ import annotations

import queue
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from edgewise.errors import Error
from edgewise.merge import merge
from edgewise.v1 import inference_pb2 as pb

#: Asks server i for a part: a call that is also a future.
Ask = Callable[[int, pb.PredictRequest], Any]

_REFUSED = (("ensemble", "tolerance", "no part knows when it is met"),
            ("budget", "allow_degraded", "parts would give up samples"),
            ("budget", "fit_deadline", "parts would choose their samples"),
            ("outputs", "graph", "a graph is of one sample"),
            ("outputs", "token_scores", "parts have no scores of the whole"),
            ("outputs", "token_embeddings", "parts do not have each sample's"))


def predict(request: pb.PredictRequest, servers: int, ask: Ask, to_error: Callable[[Any], Error],
            labels: Callable[[pb.PredictResponse], Sequence[str]]) -> pb.PredictResponse:
    """The answer of one server, byte for byte in its predictions. labels: of the model of an answer."""
    for message, field, why in _REFUSED:
        if getattr(getattr(request, message), field):
            raise _refused(f"{message}.{field}", f"{field} does not go with spread: {why}")
    if request.ensemble.first_sample + request.ensemble.samples > 1 << 32:
        raise _refused("ensemble.first_sample", f"first_sample is {request.ensemble.first_sample} with "
                       f"{request.ensemble.samples} samples; the last sample may be {(1 << 32) - 1}")
    if not request.ensemble.samples:
        raise _refused("ensemble.samples", "samples is 0; spread needs the number of samples, 1 or more")
    each_sample = request.outputs.each_sample
    if not request.ensemble.HasField("seed"):
        request.ensemble.seed = secrets.randbits(64)
    answers = _Spread(request, servers, ask, to_error).run()
    whole = merge(answers) or merge(answers, labels(answers[0]))
    assert whole is not None
    if not each_sample:
        for prediction in whole.predictions:
            del prediction.sample_outputs[:]
    return whole


def _refused(field: str, message: str) -> Error:
    return Error("INVALID_ARGUMENT", message, field)


def _origin(answer: pb.PredictResponse) -> dict[str, Any]:
    """The members that two answers must have in common to be parts of one."""
    settings = pb.Settings()
    settings.CopyFrom(answer.settings)  # which a profile changes that is reloaded
    settings.ClearField("samples")
    return {"version": answer.version, "device": answer.device, "build": answer.build, "sha256": answer.sha256,
            "settings": settings}


class _Part:
    def __init__(self, request: pb.PredictRequest, begin: int, end: int) -> None:
        self.request = pb.PredictRequest()
        self.request.CopyFrom(request)
        self.request.ensemble.first_sample += begin
        self.request.ensemble.samples = end - begin
        self.request.outputs.each_sample = True
        self.answer: pb.PredictResponse | None = None
        self.call: Any = None  # under way
        self.tries = 0


class _Server:
    def __init__(self) -> None:
        self.lost = False
        self.running = 0
        self.origin: dict[str, Any] | None = None  # of its latest answer


class _Spread:
    """The parts under way."""

    def __init__(self, request: pb.PredictRequest, servers: int, ask: Ask, to_error: Callable[[Any], Error]) -> None:
        samples, number = request.ensemble.samples, min(servers, request.ensemble.samples)
        self._parts = [_Part(request, samples * i // number, samples * (i + 1) // number) for i in range(number)]
        self._servers = [_Server() for _ in range(servers)]
        self._ask, self._to_error = ask, to_error
        self._ended: queue.SimpleQueue[tuple[_Part, _Server, Any]] = queue.SimpleQueue()
        self._lost: Error | None = None  # why the latest server that is lost is so
        self._difference = ""

    def run(self) -> list[pb.PredictResponse]:
        """All answers, in the order of the samples and of one origin."""
        try:
            while any(part.answer is None for part in self._parts):
                self._start_missing()
                self._handle(*self._ended.get())
            return [part.answer for part in self._parts if part.answer is not None]
        finally:
            for part in self._parts:
                if part.call is not None:
                    part.call.cancel()

    def _start_missing(self) -> None:
        for part in self._parts:
            if part.answer is not None or part.call is not None:
                continue
            server = self._choose()
            if server is None and not all(one.lost for one in self._servers):
                for other in self._parts:  # the servers of the first part's origin are lost; the others begin again
                    other.answer = None
                server = self._choose()
            if server is None:
                assert self._lost is not None
                raise self._lost
            part.tries += 1
            if part.tries > len(self._servers) + 2:
                raise Error("ABORTED", "the servers change while they compute the parts of the ensemble: "
                            + self._difference)
            server.running += 1
            part.call = self._ask(self._servers.index(server), part.request)
            part.call.add_done_callback(lambda call, part=part, server=server: self._ended.put((part, server, call)))

    def _choose(self) -> _Server | None:
        """The idlest server that may compute a part: of the first part's origin, or of one that is not known yet."""
        first = None if self._parts[0].answer is None else _origin(self._parts[0].answer)
        fit = [one for one in self._servers if not one.lost and (first is None or one.origin in (None, first))]
        return min(fit, key=lambda one: (first is not None and one.origin is None, one.running), default=None)

    def _handle(self, part: _Part, server: _Server, call: Any) -> None:
        part.call = None
        server.running -= 1
        if call.code() == grpc.StatusCode.UNAVAILABLE:
            server.lost, self._lost = True, self._to_error(call)
            return
        if call.code() != grpc.StatusCode.OK:
            raise self._to_error(call)
        part.answer = call.result()
        server.origin = _origin(part.answer)
        self._check(part.answer, part.request.ensemble.samples)
        if self._parts[0].answer is None:
            return
        first = _origin(self._parts[0].answer)
        for i, other in enumerate(self._parts):
            if other.answer is not None and _origin(other.answer) != first:
                self._difference = next(f"parts[{i}].{name} is {value}, but parts[0] has {first[name]}"
                                        for name, value in _origin(other.answer).items() if value != first[name])
                other.answer = None

    def _check(self, answer: pb.PredictResponse, asked: int) -> None:
        """A profile of the model may set a tolerance."""
        if answer.settings.tolerance > 0:
            raise _refused("profile", f'the tolerance of profile "{answer.settings.profile}" does not go with spread: no '
                           "part knows when it is met")
        for prediction in answer.predictions:
            if prediction.samples != asked:
                raise Error("INTERNAL", f"a part has {prediction.samples} of {asked} samples")
