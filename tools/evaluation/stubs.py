"""Answers through the messages and calls of client/python, whose protos are compiled when they are needed.

Needs Debian's python3-grpcio, python3-protobuf and protobuf-compiler. The outputs of each sample are many numbers;
as messages they are read faster than as the command line's JSON.
"""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client" / "python"))
import compile_protos  # noqa: E402

CALL_SECONDS = 900
AT_ONCE = 4
Missing = compile_protos.Missing    # why there are no stubs


def make(folder):
    """Puts the package `edgewise` into `folder` and loads it -> (messages, services)"""
    compile_protos.stage(pathlib.Path(folder))
    sys.path.insert(0, str(folder))
    try:
        from edgewise.v1 import inference_pb2, service
    except ImportError as missing:
        raise Missing(f"{missing}: apt-get install python3-grpcio python3-protobuf") from missing
    return inference_pb2, service


class Client:
    """Asks one server. `stubs`: what make() gave."""

    def __init__(self, address, stubs):
        import grpc
        self.grpc, (self.messages, services) = grpc, stubs
        self.channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", 64 << 20)])
        self.service = services.InferenceServiceStub(self.channel)

    def input(self, example):
        """{"text"} or {"features" [rows][columns], "bias_buckets" [rows][rows] optional} -> Input"""
        sequence = self.messages.Sequence()
        if "text" in example:
            sequence.text = example["text"]
        else:
            rows = example["features"]
            sequence.features.rows, sequence.features.columns = len(rows), len(rows[0])
            sequence.features.values.extend(value for row in rows for value in row)
        if "bias_buckets" in example:
            sequence.bias.buckets = bytes(bucket for row in example["bias_buckets"] for bucket in row)
        return self.messages.Input(sequence=sequence)

    def predict(self, model, examples, seed, samples):
        """-> a Prediction per example, with the output of each sample"""
        waiting, answers = [], []
        for example in examples:
            request = self.messages.PredictRequest(model=model, inputs=[self.input(example)])
            request.ensemble.seed, request.ensemble.samples = seed, samples
            request.outputs.each_sample = True
            waiting.append(self.service.Predict.future(request, timeout=CALL_SECONDS))
            if len(waiting) == AT_ONCE:
                answers.append(waiting.pop(0))
                answers[-1].exception()     # waits
        try:
            return [call.result().predictions[0] for call in answers + waiting]
        except self.grpc.RpcError as error:
            raise RuntimeError(f"{model}: {error.code().name}: {error.details()}") from error
