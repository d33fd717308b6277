"""Plain arguments -> messages. Each argument is named once in a class of options, and once in _PATHS."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar, Union

from edgewise.errors import Error
from edgewise.v1 import inference_pb2 as pb

#: A text, token ids, rows of features, the bytes of a PNG or JPEG file; or a message, for what has no argument here (a
#: bias, a graph).
Input = Union[str, Sequence[int], Sequence[Sequence[float]], bytes, pb.Sequence]

_Request = TypeVar("_Request", pb.PredictRequest, pb.GenerateRequest)


class Override(TypedDict, total=False):
    """SSA or blocks instead of a dense model's own attention: windows, window_tokens or keep; or pattern."""

    kind: str  #: "ssa" or "block"; where it is left out the one that the other fields belong to
    windows: int  #: the number of windows, with sources near their queries
    window_tokens: int  #: the same, by the tokens of a window
    sigma: Sequence[float]  #: with these two: how far sources may come from; one number, or first and last layer's
    keep: int  #: sources for all queries of a layer, wherever they stand
    pattern: str  #: of blocks: "diagonal", "local", "strided", "first_and_diagonal"; or "learned" with threshold
    block_size: int  #: the tokens of a block
    width: int  #: pattern local: blocks on each side of a query's own
    stride: int  #: pattern strided: blocks from one to the next
    threshold: float  #: pattern learned: the least sigmoid of a block's score
    last_layers: int  #: the layers below these last ones stay dense


class CostOptions(TypedDict, total=False):
    """Fields of every call that computes."""

    version: int | None  #: of the model; 0: the latest that is ready
    max_edges: int | None  #: cap on the edges of an input (generate: of a token) and sample
    max_density: float | None  #: the same, as a share of all pairs, in (0, 1]
    keep_edges: str | None  #: attention sbm: the edges that a cap keeps, "random" or "probable"
    samples: int | None  #: forward passes to average over
    seed: int | None  #: makes the answer repeatable; without it the server draws one and the answer has it
    dense: bool | None  #: attend to every pair, whatever the model does
    override: Override | None
    priority: int | None  #: 0: default; 1: highest
    profile: str | None  #: the model's profile for what is left open; "none": no profile
    request_id: str | None  #: at most 128 printable characters; returned as it came, and logged
    truncate: str | None  #: "head" or "tail": drop tokens there where the input is too long; otherwise it is refused


class PredictOptions(CostOptions, total=False):
    tolerance: float | None  #: stop sampling once the standard error is below it
    first_sample: int | None  #: index of the first sample: to compute a part of a larger ensemble
    allow_degraded: bool | None  #: where time is short the server may compute fewer samples, then fewer edges
    fit_deadline: bool | None  #: as many samples, at most `samples`, or else edges, as the timeout allows
    top_k: int | None  #: the k most probable labels, in Answer.top
    logits: bool | None
    layer_stats: bool | None  #: edges and expected edges of every layer and head, in Answer.message.edges
    key_degrees: bool | None  #: how often each key is attended to, there too
    each_sample: bool | None  #: an output for every sample, in Answer.message.sample_outputs
    graph: bool | None  #: what was attended, in Answer.message.graph; of one sample
    dimensions: int | None  #: embedding models: only this many numbers, normalised; in Answer.embedding
    token_embeddings: bool | None  #: embedding models: a row for every token, in Answer.token_embeddings
    prompt_name: str | None  #: the model's prompt that goes before the text (Model.prompts); "": none, nor the default
    stride: int | None  #: language models: from window to window of a text beyond the context; 0: half the context


class GenerateOptions(CostOptions, total=False):
    max_new_tokens: int | None  #: 100 where it is left out
    temperature: float | None  #: 0: the most probable token
    top_k: int | None  #: draw among the k most probable; 0: off
    top_p: float | None  #: draw among the fewest whose probabilities sum to it; 0: off
    min_p: float | None  #: then among those that have this share of the most probable one's probability; 0: off
    presence_penalty: float | None  #: lowers ln of the probability of a token that was written already, -2 to 2
    frequency_penalty: float | None  #: lowers it for each time, -2 to 2
    repetition_penalty: float | None  #: multiplies it, of tokens of the prompt and the text; 1: off
    alternatives: int | None  #: the most probable tokens beside each, in Token.alternatives; at most 20
    stop: str | Sequence[str] | None  #: ends before the first of these
    overflow: str | None  #: beyond the context: "slide", as where it is left out, "halve" or "stop"
    #: with messages: what the chat template may know beside them, as {"enable_thinking": False} or {"tools": [...]}
    template_arguments: Mapping[str, Any] | None


#: Arguments that are one field of the request: where.
_PATHS = {
    "version": "version", "priority": "priority", "request_id": "request_id", "profile": "profile",
    "max_edges": "budget.max_edges", "max_density": "budget.max_density", "allow_degraded": "budget.allow_degraded",
    "fit_deadline": "budget.fit_deadline", "samples": "ensemble.samples", "seed": "ensemble.seed", "tolerance": "ensemble.tolerance",
    "first_sample": "ensemble.first_sample",
}
_PREDICT_PATHS = {**_PATHS, **{name: f"outputs.{name}" for name in (
    "top_k", "logits", "layer_stats", "key_degrees", "each_sample", "graph", "stride",
    "dimensions", "token_embeddings")}}
_GENERATE_PATHS = {**_PATHS, **{name: name for name in (
    "max_new_tokens", "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "alternatives")}}
_OVERFLOW = {"slide": pb.SLIDE, "halve": pb.HALVE, "stop": pb.STOP}
_KEEP = {"random": pb.RANDOM, "probable": pb.PROBABLE}
_TRUNCATE = {"head": pb.HEAD, "tail": pb.TAIL}


def predict(model: str, inputs: Iterable[Input | pb.Input], seconds: Iterable[Input] | None,
            options: Mapping[str, Any]) -> pb.PredictRequest:
    """seconds: the second sequences of pairs, one for every input."""
    request = pb.PredictRequest(model=model)
    request.inputs.extend(value if isinstance(value, pb.Input) else pb.Input(sequence=sequence(value, f"inputs[{i}]"))
                          for i, value in enumerate(inputs))
    if seconds is not None:
        others = [sequence(value, f"inputs[{i}].second") for i, value in enumerate(seconds)]
        if len(others) != len(request.inputs):
            raise Error("INVALID_ARGUMENT", f"second has {len(others)} entries for {len(request.inputs)} inputs",
                        "second")
        for one, second in zip(request.inputs, others):
            one.second.CopyFrom(second)
    rest = _fill(request, _PREDICT_PATHS, options)
    for one in request.inputs:
        _truncate(one.sequence, rest.get("truncate"))
        if one.HasField("second"):
            _truncate(one.second, rest.get("truncate"))
        _prompt(one.sequence, rest.get("prompt_name"))
    _refuse_unknown(rest, ("truncate", "prompt_name"))
    return request


def generate(model: str, prompt: Input | None, options: Mapping[str, Any],
             messages: Iterable[Mapping[str, str]] | None = None) -> pb.GenerateRequest:
    if prompt is None and messages is None:
        raise Error("INVALID_ARGUMENT", "neither a prompt nor messages are given", "prompt")
    if prompt is not None and messages is not None:
        raise Error("INVALID_ARGUMENT", "a prompt and messages are both given; one of them is expected", "messages")
    request = pb.GenerateRequest(model=model, max_new_tokens=100)
    rest = _fill(request, _GENERATE_PATHS, options)
    if prompt is not None:
        request.prompt.CopyFrom(sequence(prompt, "prompt"))
        _truncate(request.prompt, rest.get("truncate"))
    else:
        if rest.get("truncate") is not None:
            raise Error("INVALID_ARGUMENT", "truncate goes with a prompt", "truncate")
        try:
            request.messages.extend(pb.ChatMessage(**message) for message in messages or ())
        except (TypeError, ValueError) as why:
            raise Error("INVALID_ARGUMENT", f"messages: {why}; expected mappings of role and content",
                        "messages") from why
    stop = rest.get("stop") or ()
    request.stop.extend([stop] if isinstance(stop, str) else stop)
    overflow = rest.get("overflow") or "slide"
    if overflow not in _OVERFLOW:
        raise Error("INVALID_ARGUMENT", f'overflow is {overflow!r}; expected "slide", "halve" or "stop"', "overflow")
    request.overflow = _OVERFLOW[overflow]
    if rest.get("template_arguments") is not None:
        if messages is None:
            raise Error("INVALID_ARGUMENT", "template_arguments goes with messages", "template_arguments")
        try:
            request.template_arguments = json.dumps(dict(rest["template_arguments"]), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as why:  # also what UTF-8 cannot say
            raise Error("INVALID_ARGUMENT", f"template_arguments: {why}; expected a mapping that JSON can say",
                        "template_arguments") from why
    _refuse_unknown(rest, ("truncate", "stop", "overflow", "template_arguments"))
    return request


def sequence(value: Input, field: str) -> pb.Sequence:
    if isinstance(value, pb.Sequence):
        return value
    try:
        if isinstance(value, (bytes, bytearray)):
            return pb.Sequence(image=bytes(value))
        return pb.Sequence(text=value) if isinstance(value, str) else _numbers(value)
    except (TypeError, ValueError) as why:
        raise Error("INVALID_ARGUMENT", f"{field}: {why}; expected a text, a list of token ids, rows of numbers or the "
                    "bytes of an image", field) from why


def _numbers(value: Any) -> pb.Sequence:
    """Token ids or rows of features; TypeError or ValueError where the value is neither."""
    values = list(value)
    if not values or not isinstance(values[0], Iterable):
        return pb.Sequence(token_ids=pb.TokenIds(values=values))
    if isinstance(values[0], str):
        raise TypeError("found several texts, which predict_many takes")
    rows = [list(row) for row in values]
    if any(len(row) != len(rows[0]) for row in rows):
        raise ValueError("the rows differ in length")
    return pb.Sequence(features=pb.Features(rows=len(rows), columns=len(rows[0]),
                                            values=[number for row in rows for number in row]))


def _fill(request: _Request, paths: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Sets what every request has; the options that are left. An option that is None is left out."""
    rest = {name: value for name, value in options.items() if value is not None}
    if "max_edges" in rest and "max_density" in rest:
        raise Error("INVALID_ARGUMENT", "max_edges and max_density exclude each other", "budget")
    for name in [name for name in rest if name in paths]:
        *folders, field = paths[name].split(".")
        target: Any = request
        for folder in folders:
            target = getattr(target, folder)
        try:
            setattr(target, field, rest[name])
        except (TypeError, ValueError) as why:
            raise Error("INVALID_ARGUMENT", f"{name} is {rest[name]!r}: {why}", paths[name]) from why
        del rest[name]
    if "keep_edges" in rest:
        keep = rest.pop("keep_edges")
        if keep not in _KEEP:
            raise Error("INVALID_ARGUMENT", f'keep_edges is {keep!r}; expected "random" or "probable"', "budget.keep")
        request.budget.keep = _KEEP[keep]
    if rest.pop("dense", False):
        request.attention = pb.DENSE
    if "override" in rest:
        try:
            override = rest.pop("override")
            kind = "block" if "pattern" in override else "ssa"
            request.override.CopyFrom(pb.AttentionOverride(**{"kind": kind, **override}))
        except (TypeError, ValueError) as why:
            raise Error("INVALID_ARGUMENT", f"override: {why}", "override") from why
    return rest


def _truncate(one: pb.Sequence, where: str | None) -> None:
    if where is None:
        return
    if where not in _TRUNCATE:
        raise Error("INVALID_ARGUMENT", f'truncate is {where!r}; expected "head" or "tail"', "truncate")
    one.truncate = _TRUNCATE[where]


def _prompt(one: pb.Sequence, name: str | None) -> None:
    if name is None or one.HasField("prompt_name"):
        return
    try:
        one.prompt_name = name
    except TypeError as why:
        raise Error("INVALID_ARGUMENT", f"prompt_name is {name!r}: {why}", "prompt_name") from why


def _refuse_unknown(rest: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in rest:
        if name not in known:
            raise TypeError(f"unexpected keyword argument {name!r}")
