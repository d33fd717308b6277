"""Encoders of bench/peer_engine.py: a sequence classifier of transformers, as PyTorch runs it or as ONNX."""

import pathlib

import numpy as np
from peer_engine import Engine, now


class Encoder(Engine):
    """Subclasses have bind(arrays), which gives a call that computes logits [texts, labels]. Several texts at once are
    one batch, padded to the longest, with a mask."""

    def load(self):
        self.calls = [self.bind(arrays) for arrays in self.inputs()]

    def inputs(self):
        """The arrays of each call by name: input_ids [1, tokens] of a text alone; or of all input_ids and
        attention_mask [texts, longest]."""
        if self.at_once == 1:
            return [{"input_ids": np.array([tokens])} for tokens in self.texts]
        shape = len(self.texts), max(map(len, self.texts))
        ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for row, tokens in enumerate(self.texts):
            ids[row, :len(tokens)], mask[row, :len(tokens)] = tokens, 1
        return [{"input_ids": ids, "attention_mask": mask}]

    def answer(self):
        return np.concatenate([np.array(call()) for call in self.calls]).reshape(-1).tolist()

    def timed(self):
        start = now()
        for call in self.calls:
            call()
        return now() - start


class TorchEncoder(Encoder):
    FORMATS = ("float32", "bfloat16")

    def __init__(self, threads, weights):
        super().__init__(threads, weights)
        import torch
        import transformers
        torch.set_num_threads(threads)
        self.torch, self.version = torch, f"PyTorch {torch.__version__}, transformers {transformers.__version__}"

    def bind(self, arrays):
        model = self.keep("model", lambda: self.pretrained("AutoModelForSequenceClassification", dtype=self.format))
        tensors = {name: self.torch.from_numpy(array) for name, array in arrays.items()}

        def call():
            with self.torch.inference_mode():
                return model(**tensors).logits.float().numpy()

        return call


def onnx_file(engine, arrays):
    """The ONNX file of an encoder in float32, written where there is none yet: for one text of any length without a
    mask, or for a batch of one shape. Among transformers' kinds of attention `eager` makes the smallest graph, which runs
    fastest."""
    several = "attention_mask" in arrays
    path = engine.folder.parent / ("batch.onnx" if several else "model.onnx")
    if not path.exists():
        import torch
        module = engine.pretrained("AutoModelForSequenceClassification", attention="eager")
        module.config.return_dict = False
        if several:
            inputs, dynamic = {name: torch.from_numpy(array) for name, array in arrays.items()}, None
        else:
            inputs = {"input_ids": torch.ones((1, 32), dtype=torch.long)}
            dynamic = {"input_ids": {1: torch.export.Dim("n", min=2, max=engine.config["max_position_embeddings"])}}
            # Without this the graph adds a mask of zeros.
            module.base_model._create_attention_masks = lambda **_: (None, None)
        with torch.inference_mode():
            torch.onnx.export(module, (), str(path), kwargs=inputs, input_names=list(inputs), output_names=["logits"],
                              dynamic_shapes=dynamic, opset_version=18, dynamo=True, external_data=False, verbose=False)
    return str(path)


def quantized_onnx_file(engine, arrays):
    """The same with 8-bit weights, a scale for each output, and rows of inputs quantized when they come."""
    whole = pathlib.Path(onnx_file(engine, arrays))
    path = whole.with_suffix(".int8.onnx")
    if not path.exists():
        from onnxruntime.quantization import QuantType, quantize_dynamic
        quantize_dynamic(str(whole), str(path), per_channel=True, weight_type=QuantType.QInt8,
                         op_types_to_quantize=["MatMul", "Gemm"], extra_options={"MatMulConstBOnly": True})
    return str(path)


class OnnxRuntime(Encoder):
    FORMATS = ("float32", "int8")

    def __init__(self, threads, weights):
        super().__init__(threads, weights)
        import onnxruntime
        self.runtime, self.version = onnxruntime, f"ONNX Runtime {onnxruntime.__version__}"

    def session(self, arrays):
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.add_free_dimension_override_by_name("n", arrays["input_ids"].shape[1])
        path = quantized_onnx_file(self, arrays) if self.format == "int8" else onnx_file(self, arrays)
        return self.runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def bind(self, arrays):
        shape = arrays["input_ids"].shape
        session = self.keep(shape, lambda: self.session(arrays))
        binding = session.io_binding()
        for name, array in arrays.items():
            binding.bind_ortvalue_input(name, self.runtime.OrtValue.ortvalue_from_numpy(array))
        outputs = [shape[0], len(self.config["id2label"])]
        logits = self.runtime.OrtValue.ortvalue_from_shape_and_type(outputs, np.float32)
        binding.bind_ortvalue_output("logits", logits)

        def call():
            session.run_with_iobinding(binding)
            return logits.numpy()

        return call


class OpenVino(Encoder):
    FORMATS = ("float32", "bfloat16")

    def __init__(self, threads, weights):
        super().__init__(threads, weights)
        import openvino
        self.openvino, self.version = openvino, f"OpenVINO {openvino.__version__}"

    def compiled(self, arrays):
        core = self.openvino.Core()
        model = core.read_model(onnx_file(self, arrays))
        model.reshape({name: array.shape for name, array in arrays.items()})
        return core.compile_model(model, "CPU", {
            "INFERENCE_PRECISION_HINT": "f32" if self.format == "float32" else "bf16",
            "INFERENCE_NUM_THREADS": self.threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"})

    def bind(self, arrays):
        request = self.keep(arrays["input_ids"].shape, lambda: self.compiled(arrays)).create_infer_request()
        for name, array in arrays.items():
            request.set_tensor(name, self.openvino.Tensor(array, shared_memory=True))

        def call(arrays=arrays):  # which must live as long as the request
            request.infer()
            return request.get_output_tensor().data

        return call
