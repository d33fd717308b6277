"""Answers: views of the server's messages. Each has the message behind it as `message`."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from edgewise.v1 import inference_pb2 as pb


class Latency(NamedTuple):
    """Seconds in the server."""

    queue: float  #: waiting
    compute: float  #: forward pass
    total: float  #: from the arrival of the request to its answer


class Top(NamedTuple):
    label: str
    label_id: int
    probability: float


def latency(timing: pb.Timing) -> Latency:
    return Latency(timing.queue_us / 1e6, timing.compute_us / 1e6, timing.total_us / 1e6)


class _Cost:
    """edges: distinct attended pairs, mean per sample."""

    def __init__(self, report: pb.EdgeReport) -> None:
        self.edges = report.edges
        self.pairs = report.pairs  #: over layers and heads
        self.density = report.density  #: edges / pairs
        self.budget = report.budget  #: the cap in edges; 0: none
        self.capped = report.capped  #: some layer had to drop edges
        self.max_sample_edges = report.max_sample_edges  #: of the most expensive sample


class _Computed(_Cost):
    """A prediction and the response that it came in."""

    def __init__(self, message: pb.Prediction, response: pb.PredictResponse) -> None:
        super().__init__(message.edges)
        self.message = message
        self.response = response
        self.samples = message.samples
        self.truncated_tokens = message.truncated_tokens
        self.model = response.model
        self.version = response.version
        self.seed = response.seed  #: with it the answer can be had again, byte for byte
        self.device = response.device
        self.request_id = response.request_id
        self.latency = latency(response.timing)


class _Labelled:
    """A label and how sure the model is of it. NaN stands for a number that does not apply."""

    def __init__(self, message: pb.Prediction | pb.TokenPrediction) -> None:
        self.label = message.label  #: the most probable one; its number where the model names none
        self.label_id = message.label_id
        self.probabilities = list(message.probabilities)  #: by label id, mean over samples
        self.stddev = list(message.stddev)  #: of the probabilities (regression: of the values) over samples
        self.probability = _entry(self.probabilities, self.label_id)  #: of the label
        self.spread = _entry(self.stddev, self.label_id)  #: standard deviation of that probability over samples
        self.logits = list(message.logits)  #: when asked for
        self.entropy = message.predictive_entropy  #: nats, of the mean over samples
        self.mutual_information = message.mutual_information  #: nats: what the samples disagree about


class LabelledToken(_Labelled):
    """One token's prediction, of a model for token classification or for masks."""

    def __init__(self, message: pb.TokenPrediction) -> None:
        super().__init__(message)
        self.message = message
        self.pad = message.pad  #: nothing was predicted
        self.position = message.position  #: fill-mask: where the mask token stands
        self.top = _top(message)  #: fill-mask, with top_k
        self.begin = message.begin  #: byte of the text, where a Hugging Face tokenizer reads it for token classification
        self.end = message.end  #: one past its last byte; 0 of tokens that the tokenizer's template adds

    def __repr__(self) -> str:
        return f"LabelledToken(label={self.label!r}, probability={self.probability:.4g}, spread={self.spread:.2g})"


class Answer(_Labelled, _Computed):
    """The prediction for one input."""

    def __init__(self, message: pb.Prediction, response: pb.PredictResponse) -> None:
        _Labelled.__init__(self, message)
        _Computed.__init__(self, message, response)
        self.values = list(message.values)  #: regression: mean over samples; spread is that of the first
        self.tokens = [LabelledToken(token) for token in message.tokens]  #: one per token; fill-mask: per mask token
        self.embedding = list(message.embedding)  #: embedding models: mean over samples; stddev is that of its numbers
        self.normalized = message.normalized  #: the embedding has length 1
        #: with token_embeddings: a row for each token, before the pooling
        self.token_embeddings = _rows(message.token_embeddings.values, message.token_embeddings.tokens)
        self.multi_label = message.multi_label  #: each label is a question of its own: probabilities need not sum to 1
        self.top = _top(message)  #: with top_k

    def __repr__(self) -> str:
        what = f"values={self.values}" if self.values else f"label={self.label!r}, probability={self.probability:.4g}"
        if self.embedding:
            what = f"embedding of {len(self.embedding)}"
        return (f"Answer({what}, spread={self.spread:.2g}, edges={self.edges:g}, pairs={self.pairs}, "
                f"density={self.density:.4g}, samples={self.samples}, seed={self.seed})")


class Score(_Computed):
    """How well a language model predicts a text."""

    def __init__(self, message: pb.Prediction, response: pb.PredictResponse) -> None:
        super().__init__(message, response)
        self.log_likelihood = message.log_likelihood  #: nats, of the scored tokens
        self.perplexity = message.perplexity  #: exp(-log_likelihood / tokens)
        self.tokens = message.scored_tokens  #: how many were scored: all but the first

    def __repr__(self) -> str:
        return (f"Score(log_likelihood={self.log_likelihood:.6g}, perplexity={self.perplexity:.4g}, "
                f"tokens={self.tokens}, density={self.density:.4g}, samples={self.samples}, seed={self.seed})")


class Alternative(NamedTuple):
    token_id: int
    token_bytes: bytes  #: that it adds to a text: may be a part of a character
    log_probability: float  #: nats, of the mean over samples


class Token(_Cost):
    """One new token of a generation. Its edges are those of the row that predicted it."""

    def __init__(self, message: pb.GenerateResponse) -> None:
        super().__init__(message.edges)
        self.message = message
        self.token_id = message.token_id
        self.text = message.text  #: what is now sure to belong to the text; empty where more tokens are needed to tell
        self.token_bytes = message.token_bytes  #: that the token adds to a text: may be a part of a character
        #: ln of the mean over samples, before penalties, temperature, top_k, top_p and min_p; so are the others
        self.log_probability = message.log_probability
        self.entropy = message.predictive_entropy  #: nats, of the mean over samples
        self.mutual_information = message.mutual_information  #: nats: what the samples disagree about
        self.alternatives = [Alternative(one.token_id, one.token_bytes, one.log_probability)
                             for one in message.alternatives]  #: when asked for: the most probable tokens

    def __repr__(self) -> str:
        return (f"Token(text={self.text!r}, token_id={self.token_id}, log_probability={self.log_probability:.4g}, "
                f"edges={self.edges:g})")


@dataclasses.dataclass(frozen=True)
class Model:
    """One version of a model, as the server knows it."""

    name: str
    version: int
    state: str  #: "READY", "LOADING", "FAILED", "DRAINING"
    error: str  #: FAILED: why
    description: str
    task: str
    attention: str
    layers: int
    heads: int
    hidden_size: int
    max_tokens: int  #: longest input
    vocab_size: int
    labels: list[str]  #: by label id; a language model's vocabulary comes with Client.model only
    tokenizer: str
    parameters: int
    sha256: str
    device: str
    feature_size: int  #: above 0: the input is rows of this many features
    image_width: int  #: above 0: the input may be an image, which is scaled to this size
    image_height: int
    pairwise_bias: str
    num_buckets: int
    causal: bool
    mask_token_id: int  #: task fill-mask: the token whose places are predicted
    multi_label: bool  #: each label is a question of its own: probabilities need not sum to 1
    takes_messages: bool  #: Client.generate(messages=...): it has a chat template that is served
    prompts: list[str]  #: what prompt_name may be
    default_prompt: str  #: of texts that name none; empty: no prompt
    embedding_size: int  #: the numbers of an embedding, where dimensions is left out
    message: pb.ModelInfo = dataclasses.field(repr=False)

    @classmethod
    def of(cls, message: pb.ModelInfo) -> Model:
        plain = {field.name: getattr(message, field.name) for field in dataclasses.fields(cls)
                 if field.name not in ("state", "labels", "prompts", "message")}
        return cls(**plain, state=pb.ModelInfo.State.Name(message.state), labels=list(message.labels),
                   prompts=list(message.prompts), message=message)


def _top(message: pb.Prediction | pb.TokenPrediction) -> list[Top]:
    return [Top(one.label, one.label_id, one.probability) for one in message.top]


def _rows(numbers: Sequence[float], count: int) -> list[list[float]]:
    columns = len(numbers) // count if count else 0
    return [list(numbers[i * columns:(i + 1) * columns]) for i in range(count)]


def _entry(numbers: list[float], index: int) -> float:
    return numbers[index] if index < len(numbers) else float("nan")
