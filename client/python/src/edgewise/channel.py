"""How to talk to servers: encryption, token, and what becomes of calls to several."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Sequence

import grpc

from edgewise.addresses import Address, Server
from edgewise.errors import Error

_LARGEST_MESSAGE = 0x7FFFFFFF  # gRPC's own limit: the size is an int
#: Several servers take calls in turn. A request whose server goes away is sent again, to another; what is asked for can be
#: computed twice. A token bucket ends that where most calls fail.
_BALANCED = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "methodConfig": [{"name": [{"service": "edgewise.v1.InferenceService"}], "retryPolicy": {
        "maxAttempts": 5, "initialBackoff": "0.05s", "maxBackoff": "1s", "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"]}}],
    "retryThrottling": {"maxTokens": 1000, "tokenRatio": 1}}
_HEALTH_CHECKS = {"healthCheckConfig": {"serviceName": ""}}  # "": a server as a whole


@dataclasses.dataclass(frozen=True)
class Tls:
    """How to encrypt. The files are in PEM form, and are read once, when a client is made."""

    ca_file: str | os.PathLike[str] | None = None  #: who may sign the server's certificate; None: gRPC's list of roots
    cert_file: str | os.PathLike[str] | None = None  #: our certificate, for a server that asks for one; with key_file
    key_file: str | os.PathLike[str] | None = None  #: its private key
    server_name: str | None = None  #: the name in the server's certificate; None: the host of the address


class Channels:
    """The channels of one client: the one of its address, and those of single servers."""

    def __init__(self, address: Address, tls: Tls | None, token: str | None, allow_plain_token: bool,
                 max_message_bytes: int) -> None:
        if token is not None:
            _check_token(token, address, tls is not None or allow_plain_token)
        if not 0 < max_message_bytes <= _LARGEST_MESSAGE:
            raise Error("INVALID_ARGUMENT", f"max_message_bytes is {max_message_bytes}; expected 1 to "
                        f"{_LARGEST_MESSAGE}", "max_message_bytes")
        self._address, self._tls = address, tls
        self._max_message_bytes = max_message_bytes
        self._credentials = None if tls is None else _credentials(tls)
        self._health_checks = token is None  # no server that wants a token answers gRPC's checks on plain text
        #: Sent with every call.
        self.metadata: Sequence[tuple[str, str]] = (("authorization", f"Bearer {token}"),) if token is not None else ()
        if address.balanced and self._credentials is not None and token is not None:
            self._credentials = grpc.composite_channel_credentials(self._credentials,
                                                                   grpc.access_token_call_credentials(token))
            self._health_checks, self.metadata = True, ()
        hosts = {server.host for server in address.servers}
        if tls is not None and not tls.server_name and len(hosts) > 1:
            raise Error("INVALID_ARGUMENT", "tls: server_name is missing; expected the name that the certificates of all "
                        f"servers have, since address has several hosts ({', '.join(sorted(hosts))})", "tls")

    def to_all(self) -> grpc.Channel:
        """To all servers. Several get calls in turn, but for those that are not healthy."""
        name = self._tls.server_name if self._tls is not None else None
        options: list[tuple[str, str | int]] = []
        if self._address.balanced:
            config = {**_BALANCED, **_HEALTH_CHECKS} if self._health_checks else _BALANCED
            options = [("grpc.service_config", json.dumps(config)),
                       ("grpc.per_rpc_retry_buffer_size", self._max_message_bytes),
                       ("grpc.dns_min_time_between_resolutions_ms", 1000)]  # replicas come and go by the second
            if self._tls is not None:
                name = name or self._address.servers[0].host
            elif self._address.authority:
                options.append(("grpc.default_authority", self._address.authority))
        return self._open(self._address.target, name, options)

    def to_server(self, server: Server) -> grpc.Channel:
        """To one, which gets every call once."""
        return self._open(server.target, (self._tls.server_name or server.host) if self._tls is not None else None, [])

    def _open(self, target: str, name: str | None, options: list[tuple[str, str | int]]) -> grpc.Channel:
        options = [("grpc.max_receive_message_length", self._max_message_bytes),
                   ("grpc.max_send_message_length", self._max_message_bytes),
                   ("grpc.max_reconnect_backoff_ms", 5000), *options]  # a restarted server is found again soon
        if self._address.local:
            options.append(("grpc.enable_http_proxy", 0))
        if self._credentials is None:
            return grpc.insecure_channel(target, options)
        if name:
            options.append(("grpc.ssl_target_name_override", name))
        return grpc.secure_channel(target, self._credentials, options)


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    if (tls.cert_file is None) != (tls.key_file is None):
        raise Error("INVALID_ARGUMENT", "tls: cert_file and key_file go together", "tls")
    return grpc.ssl_channel_credentials(_read("tls.ca_file", tls.ca_file), _read("tls.key_file", tls.key_file),
                                        _read("tls.cert_file", tls.cert_file))


def _read(field: str, path: str | os.PathLike[str] | None) -> bytes | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as why:
        raise Error("NOT_FOUND", f'{field}: cannot read "{os.fspath(path)}": {why.strerror}', field) from why


def _check_token(token: str, address: Address, may_travel: bool) -> None:
    if not re.fullmatch(r"[!-~]+", token):
        raise Error("INVALID_ARGUMENT", "token is empty or holds a character that is not printable ASCII", "token")
    if not may_travel and not address.local:
        raise Error("INVALID_ARGUMENT", f"token would travel unencrypted to {address.text}; use tls, or set "
                    "allow_plain_token", "token")
