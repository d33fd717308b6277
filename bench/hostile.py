#!/usr/bin/env python3
"""Clients that want the server's memory or its port.

    ./dev bench hostile [--seconds 5] [--only CASE] [--json FILE]

Each case starts a server with --max_memory of 256 MiB and 64 file descriptors, lets the clients of one kind, or of all
kinds at once, do their worst for a while, and ends them at once. Measured are the resident memory at its highest and
the time from the end of the clients to the answer of a small request on a new connection. The clients speak HTTP/2 on
plain sockets, since no library would do what they do.
"""

import contextlib
import pathlib
import re
import resource
import select
import socket
import struct
import sys
import threading
import time

from serving import goal, main

MEMORY = 256 << 20
SLACK = 64 << 20
DESCRIPTORS = 64
RECOVERY = 2  # seconds
PREDICT, STREAM = b"/edgewise.v1.InferenceService/Predict", b"/edgewise.v1.InferenceService/PredictStream"
DATA, HEADERS, RST, SETTINGS, PING, WINDOW = 0, 1, 3, 4, 6, 8
PAYLOAD = bytes(16384)


def field(number, value):
    """A length-delimited field of Protobuf; an int: a varint field."""
    def varint(n):
        return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def predict(inputs=1, samples=1):
    """A PredictRequest for `sentiment`; of more than one sample it asks for each."""
    text = field(3, field(1, field(1, b"a warm , funny and moving film")))
    ensemble = field(5, field(1, samples)) + (field(7, field(1, 1) + field(5, 1)) if samples > 1 else b"")
    return field(1, b"sentiment") + text * inputs + ensemble


class Connection:
    """One HTTP/2 connection, without any kindness."""

    def __init__(self, port, reads=True):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self.window, self.initial, self.streams, self.next = 65535, 65535, {}, 1
        self.buffer, self.reads, self.statuses = b"", reads, {}
        # Streams of a client that does not read have no window at all.
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" +
                            self.frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65535 if reads else 0)))

    def close(self):
        self.socket.close()

    @staticmethod
    def frame(kind, flags, stream, payload=b""):
        return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload

    def open(self, path, flags=4):
        """Starts a call; returns its stream."""
        def header(name, value):
            return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value

        stream, self.next = self.next, self.next + 2
        block = (b"\x83\x86" + header(b":path", path) + header(b":authority", b"x") + header(b"te", b"trailers") +
                 header(b"content-type", b"application/grpc"))
        self.socket.sendall(self.frame(HEADERS, flags, stream, block))
        self.streams[stream] = self.initial
        return stream

    def send(self, stream, payload, last=False):
        """As much of the payload as the windows allow; returns the rest."""
        while payload:
            size = min(len(PAYLOAD), len(payload), self.window, self.streams.get(stream, 0))
            if size <= 0:
                break
            end = last and size == len(payload)
            self.socket.sendall(self.frame(DATA, 1 if end else 0, stream, payload[:size]))
            self.window -= size
            self.streams[stream] -= size
            payload = payload[size:]
        return payload

    def message(self, stream, message, last=True):
        rest = self.send(stream, b"\0" + struct.pack(">I", len(message)) + message, last)
        end = time.monotonic() + 5
        while rest and time.monotonic() < end and stream in self.streams:
            self.pump(0.05)
            rest = self.send(stream, rest, last)

    def pump(self, wait=0.0):
        """Takes what the server sent."""
        while select.select([self.socket], [], [], wait)[0]:
            received = self.socket.recv(1 << 16)
            if not received:
                raise ConnectionError("closed by the server")
            self.buffer += received
            while len(self.buffer) >= 9:
                size = int.from_bytes(self.buffer[:3], "big")
                if len(self.buffer) < 9 + size:
                    break
                kind, flags, stream = self.buffer[3], self.buffer[4], int.from_bytes(self.buffer[5:9], "big")
                payload, self.buffer = self.buffer[9:9 + size], self.buffer[9 + size:]
                self.take(kind, flags, stream, payload)
            wait = 0.0

    def take(self, kind, flags, stream, payload):
        if kind == WINDOW:
            increment = int.from_bytes(payload, "big")
            if stream == 0:
                self.window += increment
            elif stream in self.streams:
                self.streams[stream] += increment
        elif kind == SETTINGS and not flags & 1:
            for i in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[i:i + 6])
                if name == 4:
                    self.streams = {one: window + value - self.initial for one, window in self.streams.items()}
                    self.initial = value
            self.socket.sendall(self.frame(SETTINGS, 1, 0))
        elif kind == PING and not flags & 1:
            self.socket.sendall(self.frame(PING, 1, 0, payload))
        elif kind == DATA and self.reads and payload:
            update = struct.pack(">I", len(payload))
            self.socket.sendall(self.frame(WINDOW, 0, 0, update) + self.frame(WINDOW, 0, stream, update))
        elif kind == HEADERS:
            found = re.search(rb"grpc-status.(\d+)", payload)
            if found:
                self.statuses[stream] = int(found[1])
        if kind == RST or (kind in (DATA, HEADERS) and flags & 1):
            self.streams.pop(stream, None)


def until(end, act):
    """Repeats act(), whose connections the server may close, until the event is set."""
    while not end.is_set():
        with contextlib.suppress(OSError):
            act(end)
        end.wait(0.01)


def slow_senders(port):
    """Messages of 64 MiB, as fast as they go, whose last byte never comes."""
    def act(end):
        with contextlib.closing(Connection(port)) as connection:
            connection.pump(0.05)
            for _ in range(30):
                connection.send(connection.open(PREDICT), b"\0" + struct.pack(">I", 64 << 20))
            while not end.is_set() and connection.streams:
                connection.pump(0.001)
                for stream in list(connection.streams):
                    connection.send(stream, PAYLOAD)

    return [act] * 4


def unread_streams(port):
    """Many large answers, on streams and alone, that nobody reads."""
    def act(end):
        with contextlib.closing(Connection(port, reads=False)) as connection:
            connection.pump(0.05)
            streams = [connection.open(STREAM) for _ in range(8)]
            for i in range(200):
                for stream in streams:
                    connection.message(stream, predict(64, 256) + field(9, str(i).encode()), last=False)
                connection.message(connection.open(PREDICT), predict(64, 256))
                connection.pump()
                if end.is_set() or len(connection.streams) > 90:
                    break
            end.wait()

    return [act] * 2


def empty_parts(port):
    """Messages of 4 MB of empty inputs."""
    message = field(1, b"sentiment") + field(3, b"") * (1 << 21)

    def act(end):
        with contextlib.closing(Connection(port)) as connection:
            connection.pump(0.05)
            while not end.is_set():
                connection.message(connection.open(PREDICT), message)
                connection.pump()

    return [act] * 4


def resets(port):
    """Calls that are reset as soon as they are begun."""
    def act(end):
        with contextlib.closing(Connection(port)) as connection:
            while not end.is_set():
                for _ in range(50):
                    connection.socket.sendall(connection.frame(RST, 0, connection.open(PREDICT), bytes([0, 0, 0, 8])))
                connection.streams.clear()
                connection.pump()

    return [act] * 2


def connections(port):
    """200 connections, most of which the server has no descriptor for."""
    def act(end):
        with contextlib.ExitStack() as stack:
            for _ in range(50):
                with contextlib.suppress(OSError):
                    connection = stack.enter_context(contextlib.closing(Connection(port)))
                    connection.open(STREAM)
                if end.is_set():
                    return
            end.wait()

    return [act] * 4


CLIENTS = {"slow senders": slow_senders, "unread streams": unread_streams, "empty parts": empty_parts,
           "resets": resets, "connections": connections}


def resident(server, name):
    return 1024 * int(re.search(rf"{name}:\s+(\d+)", pathlib.Path(f"/proc/{server.process.pid}/status").read_text())[1])


def answered(port, patience):
    """Seconds until a small request on a new connection is answered; None: not within the patience."""
    begun = time.monotonic()
    while time.monotonic() < begun + patience:
        with contextlib.suppress(OSError), contextlib.closing(Connection(port)) as connection:
            stream = connection.open(PREDICT)
            connection.message(stream, predict())
            end = time.monotonic() + 1
            while time.monotonic() < end and stream in connection.streams:
                connection.pump(0.02)
            if connection.statuses.get(stream) == 0:
                return time.monotonic() - begun
        time.sleep(0.02)
    return None


def scenario(run):
    for case in [*CLIENTS, "all at once"]:
        if not run.wants(case):
            continue
        with run.server(flags=[f"--max_memory={MEMORY}"]) as server:
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
            port = int(server.address.rsplit(":", 1)[1])
            first = answered(port, 30)
            idle = resident(server, "VmRSS")
            end = threading.Event()
            kinds = CLIENTS.values() if case == "all at once" else [CLIENTS[case]]
            clients = [threading.Thread(target=until, args=(end, act)) for kind in kinds for act in kind(port)]
            for client in clients:
                client.start()
            time.sleep(run.seconds)
            end.set()
            recovery = answered(port, 30)
            for client in clients:
                client.join()
            peak = resident(server, "VmHWM")
            run.row(case, {"idle_mib": idle / 2**20, "peak_mib": peak / 2**20, "first_ms": 1e3 * first,
                           "clients": len(clients)},
                    resident_over_idle_mib=goal((peak - idle) / 2**20, "at most", (MEMORY + SLACK) / 2**20),
                    recovery_s=goal(recovery, "at most", RECOVERY))


if __name__ == "__main__":
    sys.exit(main("hostile", __doc__, scenario, seconds=5))
