"""Where the server is, and how to talk to it: address, encryption, token."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re

import grpc

from edgewise.errors import Error

DEFAULT_ADDRESS = "127.0.0.1:8001"
DEFAULT_PORT = 8001
_LARGEST_MESSAGE = 0x7FFFFFFF  # gRPC's own limit: the size is an int


@dataclasses.dataclass(frozen=True)
class Tls:
    """How to encrypt. The files are in PEM form, and are read once, when a client is made."""

    ca_file: str | os.PathLike[str] | None = None  #: who may sign the server's certificate; None: gRPC's list of roots
    cert_file: str | os.PathLike[str] | None = None  #: our certificate, for a server that asks for one; with key_file
    key_file: str | os.PathLike[str] | None = None  #: its private key
    server_name: str | None = None  #: the name in the server's certificate; None: the host of the address


def resolve(address: str | None) -> str:
    """HOST:PORT or unix:PATH: the address given, else EDGEWISE_SERVER, else the server's default. A host alone gets
    port 8001."""
    address = address or os.environ.get("EDGEWISE_SERVER") or DEFAULT_ADDRESS
    if "/" in address or address.startswith("unix:") or re.search(r":\d+$", address) and (
            address.count(":") == 1 or address.startswith("[")):
        return address
    if ":" in address and not address.startswith("["):
        try:
            return f"[{ipaddress.IPv6Address(address)}]:{DEFAULT_PORT}"
        except ValueError:
            raise Error("INVALID_ARGUMENT", f'address is "{address}"; expected HOST:PORT', "address") from None
    return f"{address}:{DEFAULT_PORT}"


def connect(address: str, tls: Tls | None, token: str | None, allow_plain_token: bool,
            max_message_bytes: int) -> grpc.Channel:
    """A channel, which connects when it is first used."""
    if token is not None:
        _check_token(token, address, tls is not None or allow_plain_token)
    if not 0 < max_message_bytes <= _LARGEST_MESSAGE:
        raise Error("INVALID_ARGUMENT", f"max_message_bytes is {max_message_bytes}; expected 1 to {_LARGEST_MESSAGE}",
                    "max_message_bytes")
    options: list[tuple[str, str | int]] = [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_reconnect_backoff_ms", 5000),  # a restarted server is found again soon
    ]
    if _is_local(address):
        options.append(("grpc.enable_http_proxy", 0))
    if tls is None:
        return grpc.insecure_channel(address, options)
    if (tls.cert_file is None) != (tls.key_file is None):
        raise Error("INVALID_ARGUMENT", "tls: cert_file and key_file go together", "tls")
    if tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    credentials = grpc.ssl_channel_credentials(
        _read("tls.ca_file", tls.ca_file), _read("tls.key_file", tls.key_file), _read("tls.cert_file", tls.cert_file))
    return grpc.secure_channel(address, credentials, options)


def _read(field: str, path: str | os.PathLike[str] | None) -> bytes | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as why:
        raise Error("NOT_FOUND", f'{field}: cannot read "{os.fspath(path)}": {why.strerror}', field) from why


def _is_local(address: str) -> bool:
    """A socket file, an IPv4 address in 127/8, ::1 or localhost; a name that only begins like one is not."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0]
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _check_token(token: str, address: str, may_travel: bool) -> None:
    if not re.fullmatch(r"[!-~]+", token):
        raise Error("INVALID_ARGUMENT", "token is empty or holds a character that is not printable ASCII", "token")
    if not may_travel and not _is_local(address):
        raise Error("INVALID_ARGUMENT", f"token would travel unencrypted to {address}; use tls, or set "
                    "allow_plain_token", "token")
