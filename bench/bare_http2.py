"""Calls over HTTP/2 on plain sockets, since no library would do what hostile clients do: no kindness, any source
address, and what the server itself sends at a deadline."""

import re
import select
import socket
import struct
import time
import urllib.parse

SERVICE = b"/edgewise.v1.InferenceService/"
PREDICT, STREAM, GENERATE = SERVICE + b"Predict", SERVICE + b"PredictStream", SERVICE + b"Generate"
DATA, HEADERS, RST, SETTINGS, PING, WINDOW = 0, 1, 3, 4, 6, 8
TABLE_SIZE, INITIAL_WINDOW = 1, 4  # settings
PAYLOAD = bytes(16384)


def field(number, value):
    """A length-delimited field of Protobuf; an int: a varint field."""
    def varint(n):
        return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


class Connection:
    """One HTTP/2 connection, without any kindness. `source`: the address that the server sees."""

    def __init__(self, port, reads=True, source="127.0.0.1"):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=5, source_address=(source, 0))
        self.window, self.initial, self.streams, self.next = 65535, 65535, {}, 1
        self.buffer, self.reads, self.statuses, self.texts = b"", reads, {}, {}
        # Streams of a client that does not read have no window at all. Without a table, headers come as they are.
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" +
                            self.frame(SETTINGS, 0, 0, struct.pack(">HIHI", TABLE_SIZE, 0, INITIAL_WINDOW,
                                                                   65535 if reads else 0)))

    def close(self):
        self.socket.close()

    @staticmethod
    def frame(kind, flags, stream, payload=b""):
        return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload

    def open(self, path, flags=4, deadline=None):
        """Starts a call; returns its stream. `deadline`: seconds, for the server."""
        def header(name, value):
            return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value

        stream, self.next = self.next, self.next + 2
        block = (b"\x83\x86" + header(b":path", path) + header(b":authority", b"x") + header(b"te", b"trailers") +
                 header(b"content-type", b"application/grpc"))
        if deadline is not None:
            block += header(b"grpc-timeout", b"%dm" % round(1e3 * deadline))
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

    def call(self, path, message, deadline=None, patience=30):
        """Makes a call; gives its status (None: none came), its message, the seconds from its headers to its end."""
        begun = time.monotonic()
        stream = self.open(path, deadline=deadline)
        self.message(stream, message)
        while stream in self.streams and time.monotonic() < begun + patience:
            self.pump(0.05)
        self.streams.pop(stream, None)
        return self.statuses.pop(stream, None), self.texts.pop(stream, ""), time.monotonic() - begun

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
                if name == INITIAL_WINDOW:
                    self.streams = {one: window + value - self.initial for one, window in self.streams.items()}
                    self.initial = value
            self.socket.sendall(self.frame(SETTINGS, 1, 0))
        elif kind == PING and not flags & 1:
            self.socket.sendall(self.frame(PING, 1, 0, payload))
        elif kind == DATA and self.reads and payload:
            update = struct.pack(">I", len(payload))
            self.socket.sendall(self.frame(WINDOW, 0, 0, update) + self.frame(WINDOW, 0, stream, update))
        elif kind == HEADERS:
            found = re.search(rb"grpc-status.(\d+)", payload, re.DOTALL)
            if found:
                self.statuses[stream] = int(found[1])
            found = re.search(rb"grpc-message[\x00-\x7f](?:[\x80-\xff]*.)??([ -~]+)", payload, re.DOTALL)
            if found:
                self.texts[stream] = urllib.parse.unquote(found[1].decode("ascii"))
        if kind == RST or (kind in (DATA, HEADERS) and flags & 1):
            self.streams.pop(stream, None)
