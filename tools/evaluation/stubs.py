"""Answers through the messages and calls of client/python, whose protos are compiled when they are needed.

Needs Debian's python3-grpcio, python3-protobuf and protobuf-compiler. The command line would do for text; many calls at
a time are simpler to send from here.
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

    def models(self):
        """Names of the models that serve."""
        answer = self.service.ListModels(self.messages.ListModelsRequest(), timeout=30)
        return {m.name for m in answer.models if m.state == self.messages.ModelInfo.READY}

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

    def predict(self, model, examples, seed, samples=1, dense=False, max_density=0.0, each_sample=False):
        """-> (a Prediction per example, the device), or (why not, None) where the server refuses the cap."""
        waiting, answers = [], []
        for example in examples:
            request = self.messages.PredictRequest(model=model, inputs=[self.input(example)])
            request.ensemble.seed, request.ensemble.samples = seed, samples
            request.outputs.each_sample = each_sample
            if dense:
                request.attention = self.messages.DENSE
            if max_density:
                request.budget.max_density = max_density
            waiting.append(self.service.Predict.future(request, timeout=CALL_SECONDS))
            if len(waiting) == AT_ONCE:
                answers.append(waiting.pop(0))
                answers[-1].exception()     # waits
        try:
            done = [call.result() for call in answers + waiting]
        except self.grpc.RpcError as error:
            if max_density and error.code() == self.grpc.StatusCode.INVALID_ARGUMENT:
                return error.details(), None
            raise RuntimeError(f"{model}: {error.code().name}: {error.details()}") from error
        return [answer.predictions[0] for answer in done], done[0].device
