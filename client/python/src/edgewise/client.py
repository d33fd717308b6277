"""A connection to an Edgewise server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from edgewise import addresses, answers, channel, errors, requests, spread as spreading
from edgewise.v1 import inference_pb2 as pb
from edgewise.v1.service import InferenceServiceStub

if TYPE_CHECKING:
    from typing import Unpack

_Response = TypeVar("_Response")


class Client:
    """Any thread may call any method at any time; calls share one connection to each server, which the first call opens.

    Every call takes `timeout`: seconds after which it ends with DEADLINE_EXCEEDED, in the server too. Other arguments
    are those of the classes of options in edgewise.requests; one that is None counts as left out. Calls that fail raise
    edgewise.Error.
    """

    def __init__(self, address: str | Iterable[str] | None = None, *, tls: bool | channel.Tls = False,
                 token: str | None = None, timeout: float | None = None, wait_for_ready: bool = False,
                 allow_plain_token: bool = False, max_message_bytes: int = 64 << 20) -> None:
        """address: HOST:PORT, HOST or unix:PATH; without one that in EDGEWISE_SERVER, else 127.0.0.1:8001. Several, as
        a list or with commas between, or dns:///HOST:PORT: calls go to each in turn, but for those that are not healthy,
        and one that ends with UNAVAILABLE is made again, up to four times.
        tls: True trusts gRPC's list of roots. token: sent as "authorization: Bearer TOKEN"; on plain text to another
        machine only with allow_plain_token. timeout: of each call that names none; never of generate.
        wait_for_ready: wait, up to the timeout, for a server that cannot be reached."""
        self._address = addresses.parse(address)
        self.address = self._address.text
        self._tls = (channel.Tls() if tls else None) if isinstance(tls, bool) else tls
        self._timeout = timeout
        self._wait_for_ready = wait_for_ready
        self._channels = channel.Channels(self._address, self._tls, token, allow_plain_token, max_message_bytes)
        self._metadata = self._channels.metadata
        self._channel = self._channels.to_all()
        self._service = InferenceServiceStub(self._channel)
        self._lock = threading.Lock()
        self._servers: dict[addresses.Server, grpc.Channel] = {}  # those that were asked by themselves

    def predict(self, model: str, input: requests.Input | pb.Input, *, second: requests.Input | None = None,
                timeout: float | None = None, spread: bool = False,
                **options: Unpack[requests.PredictOptions]) -> answers.Answer:
        """second: the second sequence of a pair. spread: each server of the address computes its part of the samples;
        the prediction has the bytes that one server gives for the same seed."""
        return self.predict_many(model, [input], second=None if second is None else [second], timeout=timeout,
                                 spread=spread, **options)[0]

    def predict_many(self, model: str, inputs: Iterable[requests.Input | pb.Input], *,
                     second: Iterable[requests.Input] | None = None, timeout: float | None = None, spread: bool = False,
                     **options: Unpack[requests.PredictOptions]) -> list[answers.Answer]:
        """Several inputs in one request; an answer for each, in order. Budgets apply to each input on its own."""
        response = self._predict(requests.predict(model, inputs, second, options), timeout, spread)
        return [answers.Answer(prediction, response) for prediction in response.predictions]

    def score(self, model: str, text: requests.Input, *, timeout: float | None = None, spread: bool = False,
              **options: Unpack[requests.PredictOptions]) -> answers.Score:
        """How well a language model predicts a text, which may be longer than its context."""
        response = self._predict(requests.predict(model, [text], None, options), timeout, spread)
        if response.predictions[0].perplexity == 0:  # at least 1 where a text was scored
            raise errors.Error("INVALID_ARGUMENT", f'model "{model}" is not a language model', "model")
        return answers.Score(response.predictions[0], response)

    def generate(self, model: str, prompt: requests.Input | None = None, *,
                 messages: Iterable[Mapping[str, str]] | None = None, timeout: float | None = None,
                 **options: Unpack[requests.GenerateOptions]) -> Generation:
        """The tokens that a language model puts after the prompt, as they come. The budget is that of each token.

        messages: instead of a prompt, what was said: {"role": "user", "content": "..."}. The model's chat template makes
        the prompt.
        """
        request = requests.generate(model, prompt, options, messages)
        self._check_timeout(timeout)
        call = self._service.Generate(request, timeout=timeout, metadata=self._metadata,
                                      wait_for_ready=self._wait_for_ready)
        return Generation(call, self._error)

    def models(self, *, timeout: float | None = None) -> list[answers.Model]:
        """Every version of every model, by name, then version."""
        response = self._call(self._service.ListModels, pb.ListModelsRequest(), timeout)
        return [answers.Model.of(model) for model in response.models]

    def model(self, name: str, version: int = 0, *, timeout: float | None = None) -> answers.Model:
        """version 0: the latest."""
        request = pb.GetModelRequest(model=name, version=version)
        return answers.Model.of(self._call(self._service.GetModel, request, timeout).model)

    def close(self) -> None:
        """Ends the calls under way with CANCELLED."""
        self._channel.close()
        with self._lock:
            for one in self._servers.values():
                one.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def _call(self, method: Callable[..., _Response], request: Any, timeout: float | None) -> _Response:
        timeout = self._timeout if timeout is None else timeout
        self._check_timeout(timeout)
        try:
            return method(request, timeout=timeout, metadata=self._metadata, wait_for_ready=self._wait_for_ready)
        except grpc.RpcError as error:
            raise self._error(error) from None

    def _predict(self, request: pb.PredictRequest, timeout: float | None, spread: bool) -> pb.PredictResponse:
        if not spread:
            return self._call(self._service.Predict, request, timeout)
        timeout = self._timeout if timeout is None else timeout
        self._check_timeout(timeout)
        end = None if timeout is None else time.monotonic() + timeout
        servers = self._address.find_servers()

        def left() -> float | None:
            return None if end is None else max(1e-3, end - time.monotonic())

        def ask(server: int, part: pb.PredictRequest) -> Any:
            return self._server(servers[server]).Predict.future(part, timeout=left(), metadata=self._metadata)

        def labels(answer: pb.PredictResponse) -> list[str]:
            return self.model(answer.model, answer.version, timeout=left()).labels

        return spreading.predict(request, len(servers), ask, self._error, labels)

    def _server(self, server: addresses.Server) -> InferenceServiceStub:
        with self._lock:
            if server not in self._servers:
                self._servers[server] = self._channels.to_server(server)
            return InferenceServiceStub(self._servers[server])

    def _check_timeout(self, timeout: float | None) -> None:
        if timeout is not None and not timeout > 0:
            raise errors.Error("INVALID_ARGUMENT", f"timeout is {timeout}; expected seconds, above 0", "timeout")

    def _error(self, error: grpc.RpcError) -> errors.Error:
        return errors.from_call(error, self.address, self._tls is not None)


class Generation(Iterator[answers.Token]):
    """The tokens of one call of generate. The end's fields are known once they are all read.

    Closing it, leaving its `with` block or dropping it before then cancels the generation in the server. One thread
    reads it; any may close it.
    """

    def __init__(self, call: Any, to_error: Callable[[grpc.RpcError], errors.Error]) -> None:
        self._call = call
        self._to_error = to_error
        self._closed = False
        self.seed: int | None = None  #: from the first token on; with it the text can be had again
        self.device: str | None = None  #: likewise
        self.finish_reason: str | None = None  #: at the end: "length" (max_new_tokens) or "stop" (a stop string)
        self.latency: answers.Latency | None = None  #: at the end
        self.message: pb.GenerateResponse | None = None  #: the last one that came

    def __next__(self) -> answers.Token:
        try:
            message: pb.GenerateResponse = next(self._call)
        except grpc.RpcError as error:
            if self._closed:
                raise StopIteration from None
            raise self._to_error(error) from None
        if self.message is None:
            self.seed, self.device = message.seed, message.device
        if message.done:
            self.finish_reason, self.latency = message.finish_reason, answers.latency(message.timing)
        self.message = message
        return answers.Token(message)

    def close(self) -> None:
        self._closed = True
        self._call.cancel()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()
