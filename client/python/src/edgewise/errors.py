"""The one exception of the package."""

from __future__ import annotations

import re

import grpc

from edgewise import status_details_pb2 as details_pb

_BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"


class Error(Exception):
    """A call that failed, or that cannot be sent as it is."""

    def __init__(self, code: str, message: str, field: str | None = None, retry_delay: float | None = None) -> None:
        super().__init__(code, message, field, retry_delay)
        self.code = code  #: the name of the gRPC status code: "INVALID_ARGUMENT", "NOT_FOUND", "UNAVAILABLE", ...
        self.message = message
        self.field = field  #: what is wrong in the request, as "inputs[0].sequence.text"; None where no field is
        self.retry_delay = retry_delay  #: seconds after which the server expects to take the call; None: it did not say

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


def from_call(call: grpc.RpcError, address: str, tls: bool) -> Error:
    """The error of a call to a server; `call` is what grpc raised."""
    assert isinstance(call, grpc.Call)
    code, message = call.code().name, call.details() or ""
    attached = dict(call.trailing_metadata() or ()).get("grpc-status-details-bin")
    if attached is None:
        return Error(code, _unreachable(message, address, tls) if code == "UNAVAILABLE" else message)
    field, retry_delay = None, None
    for detail in details_pb.Status.FromString(attached if isinstance(attached, bytes) else attached.encode()).details:
        if detail.type_url == _BAD_REQUEST:
            field = next((one.field for one in details_pb.BadRequest.FromString(detail.value).field_violations), None)
        elif detail.type_url == _RETRY_INFO:
            delay = details_pb.RetryInfo.FromString(detail.value).retry_delay
            retry_delay = delay.seconds + delay.nanos / 1e9
    return Error(code, message, field, retry_delay)


#: gRPC's messages (1.51 and later) where no connection comes about, and how to read them.
_READINGS = (
    ("wrong.version.number", "the server there does not encrypt; leave out tls"),
    ("certificate.verify.failed", "nobody that tls trusts signed the server's certificate; Tls(ca_file=...) names who "
     "may have"),
    ("not in peer certificate|hostname verification", "the server's certificate is for another name; "
     "Tls(server_name=...) names the one to expect"),
    ("health check|unhealthy", "no server there says that it is healthy; are models loading, or is a token wanted?"),
    ("resol", "the name of the host is not known"),
)


def _unreachable(said: str, address: str, tls: bool) -> str:
    """UNAVAILABLE without details comes from gRPC, not from the server."""
    for sign, reading in _READINGS:
        if re.search(sign, said, re.IGNORECASE):
            return f"cannot connect to {address}: {reading} ({said})"
    if "failed to connect" not in said:
        return f"no answer from {address}: {said}"
    if "Socket closed" not in said:
        reading = "is edgewise-server running there?"
    elif tls:
        reading = "the server hung up; does it want a client's certificate, Tls(cert_file=..., key_file=...)?"
    else:
        reading = "the server hung up; does it want TLS, tls=True or Tls(...)?"
    return f"cannot connect to {address}: {reading} ({said})"
