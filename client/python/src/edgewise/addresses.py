"""Where servers are: what a client is given, as gRPC takes it."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
import socket
from collections.abc import Iterable
from typing import NamedTuple

from edgewise.errors import Error

DEFAULT_ADDRESS = "127.0.0.1:8001"
DEFAULT_PORT = 8001
_ALONE = ("unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:", "xds:")


class Server(NamedTuple):
    """One server."""

    target: str  #: as gRPC takes it
    host: str  #: the name that its certificate has; "": a socket file, or a name of another resolver


@dataclasses.dataclass(frozen=True)
class Address:
    """One server, or several."""

    text: str  #: as people read it
    target: str  #: of all servers, as gRPC takes it
    servers: tuple[Server, ...]  #: each by itself; one with the target of all where they are found by a name
    balanced: bool = False  #: several, or a name (dns:) that may stand for several: each gets its share of calls
    local: bool = False  #: nothing leaves this machine
    authority: str = ""  #: of calls to several; "": what gRPC makes of the target

    def find_servers(self) -> tuple[Server, ...]:
        """Those that a name leads to at the time of the call, else `servers`."""
        if not self.target.startswith("dns:"):
            return self.servers
        host, port = _host_port(self.target.rpartition("/")[2])
        return tuple(Server(_join(found, port), host) for found in _look_up(host))


def parse(given: str | Iterable[str] | None) -> Address:
    """The given address, else EDGEWISE_SERVER, else the server's default.

    HOST[:PORT]; several with commas between, or a list of them; dns:///HOST[:PORT]; ipv4: and ipv6: with a list;
    unix:PATH. gRPC takes numbers only for several servers, so the names of several hosts are looked up here, once.
    """
    if given is not None and not isinstance(given, str):
        listed = list(given)
        if not listed or not all(isinstance(one, str) for one in listed):
            raise _wrong(given, "HOST:PORT, or a list of them")
        if len(listed) > 1:
            for one in listed:
                if one.startswith(_ALONE) or "," in one or not one.strip():
                    raise _wrong(one, "HOST:PORT in each place of a list")
        given = ",".join(listed)
    text = given or os.environ.get("EDGEWISE_SERVER") or DEFAULT_ADDRESS
    if text.startswith(("unix:", "unix-abstract:")):
        return Address(text, text, (Server(text, ""),), local=True)
    if text.startswith("xds:"):
        return Address(text, text, (Server(text, ""),))
    if text.startswith("dns:"):
        return _named(text)
    if text.startswith(("ipv4:", "ipv6:")):
        return _listed(text[5:], 4 if text[3] == "4" else 6)
    return _listed(text, None)


def _named(text: str) -> Address:
    match = re.fullmatch(r"dns:(?://([^/]*)/)?([^/,]+)", text)
    try:
        host, port = _host_port(match[2]) if match else ("", 0)
    except Error:
        match = None
    if not match:
        raise _wrong(text, "dns:///HOST:PORT, with one name")
    target = f"dns://{match[1] or ''}/{_join(host, port)}"
    return Address(target, target, (Server(target, host),), balanced=True, local=_is_local(host))


def _listed(text: str, family: int | None) -> Address:
    pairs = []
    for part in text.split(","):
        part = part.strip()
        if part.startswith(_ALONE):
            raise _wrong(part, f"{part.partition(':')[0]}: to stand alone")
        host, port = _host_port(part)
        if family is not None and _family(host) != family:
            raise _wrong(part, f"an IPv{family} address, such as {'127.0.0.1:8001' if family == 4 else '[::1]:8001'}")
        pairs.append((host, port))
    servers = tuple(Server(_join(host, port), host) for host, port in pairs)
    local = all(_is_local(host) for host, _ in pairs)
    text = ",".join(server.target for server in servers)
    if family is None and len(servers) == 1:
        return Address(text, text, servers, local=local)
    numbers = [(number, port) for host, port in pairs for number in _look_up(host)]
    # A target has one family, and IPv6 can write the addresses of IPv4.
    all_ipv4 = all(_family(number) == 4 for number, _ in numbers)
    written = dict.fromkeys(_join(number if all_ipv4 or _family(number) == 6 else f"::ffff:{number}", port)
                            for number, port in numbers)
    target = ("ipv4:" if all_ipv4 else "ipv6:") + ",".join(written)
    return Address(text, target, servers, balanced=True, local=local, authority=servers[0].target)


def _host_port(text: str) -> tuple[str, int]:
    """The parts of HOST, HOST:PORT, [IPV6], [IPV6]:PORT or IPV6."""
    if _family(text) == 6:
        return text, DEFAULT_PORT
    match = re.fullmatch(r"(?:\[([^\]]*)\]|([^\s/,@:\[\]]+))(?::([0-9]{1,5}))?", text)
    if not match or not 1 <= int(match[3] or DEFAULT_PORT) <= 65535:
        raise _wrong(text, "HOST:PORT, such as localhost:8001")
    if match[1] is not None and _family(match[1]) != 6:
        raise _wrong(text, "an IPv6 address in the brackets, such as [::1]:8001")
    return match[1] or match[2], int(match[3] or DEFAULT_PORT)


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _family(host: str) -> int:
    """4, 6, or 0 of a name."""
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 0


def _is_local(host: str) -> bool:
    """An IPv4 address in 127/8, ::1 or localhost; a name that only begins like one is not."""
    return ipaddress.ip_address(host).is_loopback if _family(host) else host == "localhost"


def _look_up(host: str) -> list[str]:
    """The IPv4 addresses of a host; those of IPv6 where it has no other. One family, so that a host with both gets no
    double share."""
    if _family(host):
        return [host]
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as why:
        raise Error("UNAVAILABLE", f'address: the host "{host}" is not known: {why.strerror or why}', "address") from why
    wanted = socket.AF_INET if any(one[0] == socket.AF_INET for one in found) else socket.AF_INET6
    return list(dict.fromkeys(str(one[4][0]) for one in found if one[0] == wanted))


def _wrong(found: object, expected: str) -> Error:
    return Error("INVALID_ARGUMENT", f'address has "{found}"; expected {expected}', "address")
