#!/usr/bin/env python3
"""Clients that want the server's memory or its port.

    ./dev bench hostile [--seconds 5] [--only CASE] [--json FILE]

Each case starts a server with --max_memory of 256 MiB. Hostile clients speak HTTP/2 on plain sockets, since no library
would do what they do.

clients       share 64 file descriptors of the server. Those of one kind, or of all kinds at once, do their worst for a
              while and end at once. Measured are the resident memory at its highest and the time from the end of the
              clients to the answer of a small request on a new connection.
silent        one client opens 3,000 streams, sends a request on each, and is silent
texts KIND    one client sends texts of 4,000,000 characters, for each kind of tokenizer, by each method that takes them
files CASE    a tokenizer that asks for too much comes into the repository, and one client uses it
http CASE     clients of the HTTP front: slow bodies, bodies of 64 MiB, half requests, 10,000 connections, answers that
              nobody reads; the others ask over gRPC
strangers CASE
              hold all connections that they get of both ports, from one address or sixteen, or send 600 kB and leave.
              The others come from another address and ask on new connections: each has an answer within a second

For the four before the last, the figures are what others get meanwhile: 1,000 short requests, whose p99 is compared with that beside a
process that is busy on the server's core; health checks; the tokens of a generation. A long text with a deadline of
0.3 s ends in time, and so does its work. The hostile files' own requests, or their load, end in a clear error. After the clients of HTTP its port answers and the
memory for calls is free within 2 s.
"""

import contextlib
import resource
import struct
import sys
import threading
import time

from bare_http2 import PAYLOAD, PREDICT, RST, STREAM, Connection, field
from hostile_connections import STRANGERS, strangers
from hostile_files import FILES, files
from hostile_others import HOSTILE, MEMORY, SLACK, beside, port_of, repository, resident
from hostile_http import HTTP, http_case
from hostile_texts import KINDS, texts
from serving import goal, main

DESCRIPTORS = 64
RECOVERY = 2  # seconds
SILENT, STREAMS_OF_ONE = 3000, 100  # calls, and those of one connection


def predict(inputs=1, samples=1):
    """A PredictRequest for `sentiment`; of more than one sample it asks for each."""
    text = field(3, field(1, field(1, b"a warm , funny and moving film")))
    ensemble = field(5, field(1, samples)) + (field(7, field(1, 1) + field(5, 1)) if samples > 1 else b"")
    return field(1, b"sentiment") + text * inputs + ensemble


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


def silent(run):
    with run.server(repository(run), flags=[f"--max_memory={MEMORY}"]) as server, contextlib.ExitStack() as stack:
        connections, statuses, idle = [], [], resident(server, "VmRSS")

        def keep_open(end):
            while not end.is_set():
                for connection in connections:
                    with contextlib.suppress(OSError):
                        connection.pump()
                end.wait(0.1)
            statuses.extend(status for connection in connections for status in connection.statuses.values())

        for _ in range(SILENT // STREAMS_OF_ONE):
            with contextlib.suppress(OSError):
                connection = Connection(port_of(server), source=HOSTILE)
                connections.append(stack.enter_context(contextlib.closing(connection)))
                connection.pump(0.05)
                for _ in range(STREAMS_OF_ONE):
                    connection.message(connection.open(STREAM), predict(), last=False)
                connection.pump()
        figures, goals = beside(run, server, lambda end: [threading.Thread(target=keep_open, args=(end,), daemon=True)],
                                idle)
        open_ones = sum(len(connection.streams) for connection in connections)
        run.row("silent", {**figures, "opened": SILENT, "still_open": open_ones, "ended": len(statuses)}, **goals)


def clients(run):
    for case in [*CLIENTS, "all at once"]:
        if not run.wants(case):
            continue
        with run.server(flags=[f"--max_memory={MEMORY}"]) as server:
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
            port = port_of(server)
            first = answered(port, 30)
            idle = resident(server, "VmRSS")
            end = threading.Event()
            kinds = CLIENTS.values() if case == "all at once" else [CLIENTS[case]]
            threads = [threading.Thread(target=until, args=(end, act)) for kind in kinds for act in kind(port)]
            for client in threads:
                client.start()
            time.sleep(run.seconds)
            end.set()
            recovery = answered(port, 30)
            for client in threads:
                client.join()
            peak = resident(server, "VmHWM")
            run.row(case, {"idle_mib": idle / 2**20, "peak_mib": peak / 2**20, "first_ms": 1e3 * first,
                           "clients": len(threads)},
                    resident_over_idle_mib=goal((peak - idle) / 2**20, "at most", (MEMORY + SLACK) / 2**20),
                    recovery_s=goal(recovery, "at most", RECOVERY))


def scenario(run):
    clients(run)
    if run.wants("silent"):
        silent(run)
    for kind in KINDS:
        if run.wants(f"texts {kind}"):
            texts(run, kind)
    for case in FILES:
        if run.wants(f"files {case}"):
            files(run, case)
    for case in HTTP:
        if run.wants(f"http {case}"):
            http_case(run, case)
    for case in STRANGERS:
        if run.wants(f"strangers {case}"):
            strangers(run, case)


if __name__ == "__main__":
    sys.exit(main("hostile", __doc__, scenario, seconds=5))
