"""Parts of an ensemble -> the whole, byte for byte as one server computes it.

The arithmetic is that of docs/ensembles.md: sums in double, in the order of the samples, rounded to float32 once. Python's
float is a double, and its math.log that of the C library, as the server's is.
"""

from __future__ import annotations

import array
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from edgewise.errors import Error
from edgewise.v1 import inference_pb2 as pb

_EXPECTED_UNIT = 1.0 / (1 << 20)  # expected edges are multiples of it

Rows = Sequence[Sequence[float]]  # one of each sample


def merge(parts: Sequence[pb.PredictResponse], label_names: Sequence[str] | None = None) -> pb.PredictResponse | None:
    """Parts in the order of their samples, of one request and seed, each with all its samples (outputs.each_sample).

    label_names: those of Model.labels, for labels that no part names. Where it is None, and there is one, the result is
    None.
    """
    first = parts[0]
    for i, part in enumerate(parts):
        for field in ("model", "version", "seed", "device", "build", "sha256"):
            if getattr(part, field) != getattr(first, field):
                raise _refused(f"parts[{i}].{field} is {getattr(part, field)}, but parts[0] has {getattr(first, field)}")
        if len(part.predictions) != len(first.predictions):
            raise _refused(f"parts[{i}].predictions: their number is {len(part.predictions)}, but parts[0] has "
                           f"{len(first.predictions)}")
    merged = pb.PredictResponse(model=first.model, version=first.version, seed=first.seed, device=first.device,
                                build=first.build, sha256=first.sha256, request_id=first.request_id)
    if first.HasField("settings"):
        merged.settings.CopyFrom(first.settings)
        merged.settings.samples = sum(part.settings.samples for part in parts)
    if any(part.HasField("timing") for part in parts):
        merged.timing.CopyFrom(_timing([part.timing for part in parts]))
    for i in range(len(first.predictions)):
        of_input = [part.predictions[i] for part in parts]
        _check(of_input, i)
        names = _names(of_input, label_names)
        one = _prediction(of_input, names)
        if label_names is None and any(label not in names for label in _labels_of(one)):
            return None
        merged.predictions.append(one)
    return merged


def _refused(message: str) -> Error:
    return Error("INVALID_ARGUMENT", message)


def _timing(parts: Sequence[pb.Timing]) -> pb.Timing:
    return pb.Timing(
        queue_us=max(part.queue_us for part in parts), compute_us=sum(part.compute_us for part in parts),
        total_us=max(part.total_us for part in parts), batch_inputs=max(part.batch_inputs for part in parts),
        batch_tokens=max(part.batch_tokens for part in parts))


def _shape(part: pb.Prediction) -> tuple[Any, ...]:
    """The members that depend on the input alone."""
    edges = part.edges
    return (len(part.probabilities), len(part.values), len(part.embedding), len(part.logits), len(part.top),
            part.scored_tokens, part.truncated_tokens, part.normalized, part.multi_label, edges.pairs, edges.budget,
            [(token.pad, token.position, token.begin, token.end, len(token.probabilities), len(token.logits),
              len(token.top)) for token in part.tokens],
            [[len(head.key_degrees) for head in layer.heads] for layer in edges.layers])


def _check(parts: Sequence[pb.Prediction], index: int) -> None:
    for i, part in enumerate(parts):
        name = f"parts[{i}].predictions[{index}]"
        if not part.samples or len(part.sample_outputs) != part.samples:
            raise _refused(f"{name} has {len(part.sample_outputs)} sample_outputs for {part.samples} samples; ask for "
                           "outputs.each_sample")
        if _shape(part) != _shape(parts[0]):
            raise _refused(f"{name} has another shape than parts[0]")
        if part.HasField("graph") and len(parts) + part.samples > 2:
            raise _refused(f"{name}.graph: graphs are of one sample and cannot be merged")
        if part.HasField("token_embeddings"):
            raise _refused(f"{name}.token_embeddings: they cannot be merged; ask without them")
        if part.token_scores:
            raise _refused(f"{name}.token_scores: they cannot be merged; ask without them")


def _multi_label(part: pb.Prediction) -> bool:
    return part.multi_label


def _labels_of(part: pb.Prediction) -> Iterable[int]:
    yield part.label_id
    for one in part.top:
        yield one.label_id
    for token in part.tokens:
        if not token.pad:
            yield token.label_id
            for one in token.top:
                yield one.label_id


def _names(parts: Sequence[pb.Prediction], label_names: Sequence[str] | None) -> dict[int, str]:
    """The caller's, then what the parts name."""
    names = dict(enumerate(label_names or ()))
    for part in parts:
        for labelled in (part, *part.top, *(token for token in part.tokens if not token.pad),
                         *(one for token in part.tokens for one in token.top)):
            if labelled.label or not part.tokens:
                names.setdefault(labelled.label_id, labelled.label)
    return names


def _prediction(parts: Sequence[pb.Prediction], names: Mapping[int, str]) -> pb.Prediction:
    first = parts[0]
    outputs = [output for part in parts for output in part.sample_outputs]
    merged = pb.Prediction(samples=len(outputs), edges=_edges(parts), truncated_tokens=first.truncated_tokens,
                           sample_outputs=outputs)
    if first.HasField("graph"):
        merged.graph.CopyFrom(first.graph)
    merged.input_tokens.extend(first.input_tokens)
    if first.perplexity != 0:  # a language model
        merged.scored_tokens = first.scored_tokens
        merged.log_likelihood = _log_likelihood([output.token_probabilities for output in outputs])
        merged.perplexity = (math.exp(-merged.log_likelihood / first.scored_tokens) if first.scored_tokens else 1.0)
    if first.values:
        mean, stddev = _moments([output.values for output in outputs])
        merged.values.extend(_rounded(mean))
        merged.stddev.extend(stddev)
    if first.embedding:
        _embed([output.embedding for output in outputs], first.normalized, merged)
    probabilities = [list(output.probabilities) for output in outputs]
    logits = [list(output.logits) for output in outputs]
    if first.tokens:
        labels = next((len(token.probabilities) for token in first.tokens if not token.pad), 0)
        for t, given in enumerate(first.tokens):
            token = merged.tokens.add(begin=given.begin, end=given.end, position=given.position, pad=given.pad)
            if not given.pad:
                row = slice(t * labels, (t + 1) * labels)
                _label([one[row] for one in probabilities], [one[row] for one in logits] if given.logits else [], False,
                       names, len(given.top), token)
    elif first.probabilities:
        merged.multi_label = first.multi_label
        _label(probabilities, logits if first.logits else [], first.multi_label, names, len(first.top), merged)
    return merged


def _label(rows: Rows, logits: Rows, multi_label: bool, names: Mapping[int, str], top: int,
           merged: pb.Prediction | pb.TokenPrediction) -> None:
    """The part that Prediction and TokenPrediction share."""
    mean, stddev = _moments(rows)
    merged.probabilities.extend(_rounded(mean))
    merged.stddev.extend(stddev)
    entropy = _entropy_of_each if multi_label else _entropy
    merged.predictive_entropy = entropy(mean)
    merged.mutual_information = max(0.0, merged.predictive_entropy - _sum(map(entropy, rows)) / len(rows))
    merged.label_id = mean.index(max(mean))
    merged.label = _name(merged.label_id, names)
    if logits:
        merged.logits.extend(_rounded(_moments(logits)[0]))
    given = list(merged.probabilities)
    for label in sorted(range(len(given)), key=lambda label: -given[label])[:top] if top else ():
        merged.top.add(label_id=label, label=_name(label, names), probability=given[label])


def _name(label: int, names: Mapping[int, str]) -> str:
    return names.get(label) or str(label)


def _embed(rows: Rows, normalized: bool, merged: pb.Prediction) -> None:
    """The mean of the samples' pooled rows, of length 1 where the parts are."""
    mean, stddev = _moments(rows)
    means = _rounded(mean)
    squares = _sum(one * one for one in means)
    length = math.sqrt(squares) if normalized and squares > 0 else 1.0
    merged.embedding.extend(_rounded([one / length for one in means]))
    merged.stddev.extend(stddev)
    merged.normalized = normalized


def _edges(parts: Sequence[pb.Prediction]) -> pb.EdgeReport:
    reports = [part.edges for part in parts]
    first = reports[0]
    each = [output.edges for part in parts for output in part.sample_outputs]

    def mean(value: Callable[[pb.EdgeReport], float], unit: float = 1.0) -> float:
        """Over all samples, of what the parts give as a mean over theirs: their sums are multiples of the unit."""
        return _sum(round(value(part.edges) * part.samples / unit) * unit for part in parts) / len(each)

    merged = pb.EdgeReport(
        edges=sum(each) / len(each), pairs=first.pairs, budget=first.budget, capped=any(one.capped for one in reports),
        max_sample_edges=max(each), expected_edges=mean(lambda one: one.expected_edges, _EXPECTED_UNIT),
        isolated_queries=mean(lambda one: one.isolated_queries))
    merged.density = merged.edges / first.pairs if first.pairs else 0.0
    for l, layer in enumerate(first.layers):
        heads = merged.layers.add().heads
        for h in range(len(layer.heads)):
            heads.add(edges=mean(lambda one: one.layers[l].heads[h].edges),
                      expected=mean(lambda one: one.layers[l].heads[h].expected, _EXPECTED_UNIT),
                      key_degrees=map(sum, zip(*(one.layers[l].heads[h].key_degrees for one in reports))))
    return merged


def _moments(rows: Rows) -> tuple[list[float], list[float]]:
    """Mean, before rounding, and unbiased standard deviation, as float32, of each column."""
    count = len(rows)
    sums = [0.0] * len(rows[0])
    for row in rows:
        sums = [one + other for one, other in zip(sums, row)]
    mean = [one / count for one in sums]
    if count < 2:
        return mean, [0.0] * len(mean)
    squares = [0.0] * len(mean)
    for row in rows:
        squares = [one + (other - middle) * (other - middle) for one, other, middle in zip(squares, row, mean)]
    return mean, _rounded([math.sqrt(one / (count - 1.0)) for one in squares])


def _entropy(distribution: Iterable[float]) -> float:
    """Nats; never -0."""
    return -_sum(q * math.log(q) for q in distribution if q > 0.0) or 0.0


def _entropy_of_each(probabilities: Iterable[float]) -> float:
    """The sum over labels of the entropy of a yes or no."""
    return -_sum(q * math.log(q) + (1.0 - q) * math.log1p(-q) for q in probabilities if 0.0 < q < 1.0) or 0.0


def _log_likelihood(rows: Rows) -> float:
    """The log-likelihood: that of the mean probability of every scored token. rows: of each sample."""
    return _sum(math.log(_sum(column) / len(rows)) for column in zip(*rows))


def _sum(numbers: Iterable[float]) -> float:
    """One after the other: the built-in sum of Python 3.12 and later corrects its rounding."""
    total = 0.0
    for one in numbers:
        total += one
    return total


def _rounded(numbers: Sequence[float]) -> list[float]:
    """To float32."""
    return array.array("f", numbers).tolist()
