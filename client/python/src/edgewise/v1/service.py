"""The calls of edgewise.v1.InferenceService."""

from __future__ import annotations

import grpc

from edgewise.v1 import inference_pb2 as pb

_PATH = "/edgewise.v1.InferenceService/"


class InferenceServiceStub:
    """Its attributes are called as those of gRPC's generated stubs are."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.Predict = channel.unary_unary(
            _PATH + "Predict", pb.PredictRequest.SerializeToString, pb.PredictResponse.FromString)
        self.PredictStream = channel.stream_stream(
            _PATH + "PredictStream", pb.PredictRequest.SerializeToString, pb.PredictStreamResponse.FromString)
        self.Generate = channel.unary_stream(
            _PATH + "Generate", pb.GenerateRequest.SerializeToString, pb.GenerateResponse.FromString)
        self.ListModels = channel.unary_unary(
            _PATH + "ListModels", pb.ListModelsRequest.SerializeToString, pb.ListModelsResponse.FromString)
        self.GetModel = channel.unary_unary(
            _PATH + "GetModel", pb.GetModelRequest.SerializeToString, pb.GetModelResponse.FromString)
