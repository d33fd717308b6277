"""Clients of the HTTP front that do harm: bodies that are slow, huge or never whole, thousands of connections, answers
that nobody reads."""

import contextlib
import json
import resource
import socket
import threading
import time

from hostile_others import HOSTILE, MEMORY, beside, repository
from serving import goal

HTTP_RECOVERY = 2  # seconds
SLOW, HELD, UNREAD, LARGE = 100, 10_000, 200, 4  # connections of a case; threads
GENERATIONS = 12  # that nobody reads; 16 run at a time
ADDRESSES = 16  # that those of HELD come from: 127.0.0.2 and on; one may have 512
LARGE_BYTES, SLOW_BYTES = 64 << 20, 4_000_000
PREDICT, GENERATE = "/edgewise/v1/predict", "/edgewise/v1/generate"


def head(path, *fields):
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *fields, "", ""]).encode()


def posted(path, body):
    text = json.dumps(body).encode()
    return head(path, f"Content-Length: {len(text)}") + text


def predict(text="a warm , funny and moving film", inputs=1, **fields):
    return {"model": "sentiment", "inputs": [{"sequence": {"text": text}}] * inputs, **fields}


def connected(port, source=HOSTILE, receives=None):
    """A socket to the server. `receives`: bytes that the kernel takes of what nobody reads."""
    client = socket.socket()
    if receives:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
    client.bind((source, 0))
    client.settimeout(5)
    client.connect(("127.0.0.1", port))
    return client


def until(end, act):
    """Repeats act(), whose connections the server may close, until the event is set."""
    while not end.is_set():
        with contextlib.suppress(OSError):
            act()
        end.wait(0.005)


def slow_bodies(port, end):
    """Bodies of 4 MB, of which 64 bytes come at a time."""
    def act():
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(connected(port)) for _ in range(SLOW)]
            for client in clients:
                client.sendall(head(PREDICT, f"Content-Length: {SLOW_BYTES}") + b'{"model": "')
            while not end.wait(0.05):
                for client in clients:
                    client.sendall(b"a" * 64)

    return [act]


def large_bodies(port, end):
    """Bodies of 64 MiB, as fast as they go: a text that is as long, numbers, or one byte short of the end."""
    text = b'{"model": "sentiment", "inputs": [{"sequence": {"text": "' + b"a " * ((LARGE_BYTES - 128) // 2)
    ids = b'{"model": "sentiment", "inputs": [{"sequence": {"tokenIds": {"values": [' + b"1," * ((LARGE_BYTES - 128) // 2)
    bodies = [text + b'"}}]}', ids + b"1]}}}]}", text]

    def act():
        for body in bodies:
            if end.is_set():
                return
            with connected(port) as client, contextlib.suppress(OSError):
                client.sendall(head(PREDICT, f"Content-Length: {len(body) + (body is text)}"))
                client.sendall(body)
                client.recv(65536)

    return [act] * LARGE


def half_requests(port, end):
    """Requests that end in their head or their body, as fast as they go."""
    whole = posted(PREDICT, predict())
    parts = [whole[:size] for size in (1, 40, 90, len(whole) - 40, len(whole) - 1)]

    def act():
        for part in parts * 20:
            if end.is_set():
                return
            with connected(port) as client:
                client.sendall(part)

    return [act] * 2


def held_connections(port, end):
    """10,000 connections with half a head each, most of which the server does not take."""
    def act():
        with contextlib.ExitStack() as stack:
            for i in range(HELD):
                if end.is_set():
                    return
                with contextlib.suppress(OSError):
                    client = stack.enter_context(connected(port, f"127.0.0.{2 + i % ADDRESSES}"))
                    client.sendall(b"GET /livez HTTP/1.1\r\nHost:")
            end.wait()

    return [act]


def unread_answers(port, end):
    """Generations, and answers of 100 kB, that nobody reads."""
    generate = posted(GENERATE, {"model": "shakespeare-ssa", "prompt": {"text": "ROMEO:"}, "maxNewTokens": 4096})
    large = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 40

    def act():
        with contextlib.ExitStack() as stack:
            for i in range(UNREAD):
                client = stack.enter_context(connected(port, receives=4096))
                client.sendall(generate if i < GENERATIONS else large)
            end.wait()

    return [act]


HTTP = {"slow bodies": slow_bodies, "large bodies": large_bodies, "half requests": half_requests,
        "sockets": held_connections, "unread answers": unread_answers}


def answered(port, patience):
    """Seconds until a small request on a new connection has its 200; None: not within the patience."""
    begun = time.monotonic()
    while time.monotonic() < begun + patience:
        with contextlib.suppress(OSError), connected(port, "127.0.0.1") as client:
            client.sendall(posted(PREDICT, predict()))
            if client.recv(65536).startswith(b"HTTP/1.1 200"):
                return time.monotonic() - begun
        time.sleep(0.02)
    return None


def http_case(run, case):
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the server has as many
    flags = [f"--max_memory={MEMORY}", f"--max_message_bytes={LARGE_BYTES}", "--http_listen=127.0.0.1:0"]
    with run.server(repository(run), flags=flags) as server:
        serving = next(line for line in server.log.read_text().splitlines() if '"event":"serving"' in line)
        port = json.loads(serving)["http_port"]
        first = answered(port, 30)

        def attack(end):
            return [threading.Thread(target=until, args=(end, act), daemon=True) for act in HTTP[case](port, end)]

        figures, goals = beside(run, server, attack)
        begun = time.monotonic()
        recovery = answered(port, 30)
        while server.metric("edgewise_call_memory_bytes") > 0 and time.monotonic() < begun + 30:
            time.sleep(0.02)
        run.row(f"http {case}", {**figures, "first_ms": 1e3 * first, "ended": server.metric("edgewise_http_requests_total")},
                **goals, recovery_s=goal(recovery, "at most", HTTP_RECOVERY),
                memory_free_s=goal(time.monotonic() - begun, "at most", HTTP_RECOVERY))
