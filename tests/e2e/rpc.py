"""The service as a client sees it: Python stubs of the proto, which protoc makes when they are needed."""

import os
import sys
import tempfile

import grpc

from edgewise_process import ROOT, Server

sys.path.insert(0, os.path.join(ROOT, "tools"))
from evaluation import stubs  # noqa: E402

_folder = tempfile.TemporaryDirectory()
pb, _services = stubs.make(_folder.name)


class Refused(Exception):
    """INVALID_ARGUMENT and what it says."""


class Rpc:
    """Calls to one server; refusals are Refused, other errors grpc.RpcError."""

    def __init__(self, server: Server):
        self.channel = grpc.insecure_channel(server.address, options=[("grpc.max_receive_message_length", 64 << 20)])
        self.service = _services.InferenceServiceStub(self.channel)

    def close(self) -> None:
        self.channel.close()

    def model(self, name: str):
        return self.service.GetModel(pb.GetModelRequest(model=name), timeout=30).model

    def predict(self, request):
        return _answer(lambda: self.service.Predict(request, timeout=60))

    def predict_together(self, requests: list) -> list:
        """The answers of calls that are all in flight at once."""
        calls = [self.service.Predict.future(request, timeout=120) for request in requests]
        return [_answer(call.result) for call in calls]

    def predict_stream(self, requests: list) -> dict:
        """request_id -> PredictResponse, over one stream."""
        answers = {}
        for answer in self.service.PredictStream(iter(requests), timeout=120):
            if answer.HasField("error"):
                raise AssertionError(f"{answer.request_id}: {answer.error.message}")
            answers[answer.request_id] = answer.response
        return answers

    def generate(self, request) -> list:
        """All messages."""
        return _answer(lambda: list(self.service.Generate(request, timeout=60)))

    def generate_together(self, requests: list) -> list:
        calls = [self.service.Generate(request, timeout=120) for request in requests]
        return [_answer(lambda call=call: list(call)) for call in calls]


def _answer(call):
    try:
        return call()
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.INVALID_ARGUMENT:
            raise Refused(error.details()) from error
        raise
