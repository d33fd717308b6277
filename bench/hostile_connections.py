"""Strangers that take connections of both ports: they hold idle ones and open them again, or send a body and leave. The
others come from another address, each call on a connection of its own."""

import contextlib
import json
import multiprocessing
import threading
import time

from bare_http2 import PREDICT as GRPC_PREDICT, Connection, field
from hostile_http import PREDICT, connected, head, posted, predict
from hostile_others import MEMORY, port_of, repository
from serving import goal

FEW = 496  # connections that a port takes with `ulimit -n 1024`
ALL, OF_ONE = 4096, 512  # the default, and of one address
LEFT_BYTES = 600_000
OPENED_AT_ONCE = 20
PATIENCE, MOST_WAIT = 10, 1  # seconds
PAUSE = 0.02  # between two calls of one kind
HEALTH = b"/grpc.health.v1.Health/Check"


def is_open(client):
    try:
        return bool(client.recv(4096))
    except BlockingIOError:
        return True
    except OSError:
        return False


def hold(port, sources, each):
    """Idle connections of these addresses, opened again as soon as the server has closed them."""
    clients = {source: [] for source in sources}
    while True:
        for source, own in clients.items():
            for client in own:
                if not is_open(client):
                    client.close()
            own[:] = [client for client in own if client.fileno() >= 0]
            for _ in range(min(OPENED_AT_ONCE, each - len(own))):
                with contextlib.suppress(OSError):
                    own.append(connected(port, source))
                    own[-1].setblocking(False)
        time.sleep(0.001)


def leave(port, source):
    """Sends a long body and leaves."""
    body = head(PREDICT, f"Content-Length: {LEFT_BYTES}") + bytes(LEFT_BYTES)
    while True:
        with contextlib.suppress(OSError), connected(port, source) as client:
            client.sendall(body)


def addresses(count):
    return [f"127.0.0.{2 + i}" for i in range(count)]


# The connections that a port takes, and functions that run in a process each for each port, with their arguments.
STRANGERS = {
    "idle few": (FEW, [(hold, addresses(1), FEW)]),
    "idle many": (ALL, [(hold, addresses(2 * ALL // OF_ONE), OF_ONE)]),
    "leaving": (ALL, [(leave, addresses(1)[0])]),
}


def ask_http(port, request):
    with connected(port, "127.0.0.1") as client:
        client.settimeout(PATIENCE)
        client.sendall(request)
        return client.recv(65536).startswith(b"HTTP/1.1 200")


def ask_grpc(port, path, message):
    with contextlib.closing(Connection(port)) as connection:
        return connection.call(path, message, patience=PATIENCE)[0] == 0


def strangers(run, case):
    in_all, attack = STRANGERS[case]
    flags = [f"--max_memory={MEMORY}", "--http_listen=127.0.0.1:0", f"--max_connections={in_all}"]
    with run.server(repository(run), flags=flags) as server:
        serving = next(line for line in server.log.read_text().splitlines() if '"event":"serving"' in line)
        grpc, http = port_of(server), json.loads(serving)["http_port"]
        message = field(1, b"sentiment") + field(3, field(1, field(1, b"a warm , funny and moving film")))
        asks = {"livez": (ask_http, http, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"),
                "predict_http": (ask_http, http, posted(PREDICT, predict())),
                "health": (ask_grpc, grpc, HEALTH, b""), "predict": (ask_grpc, grpc, GRPC_PREDICT, message)}
        waits, unanswered = {name: [] for name in asks}, dict.fromkeys(asks, 0)
        end = threading.Event()

        def others(name, ask, *arguments):
            while not end.is_set():
                begun, answered = time.monotonic(), False
                with contextlib.suppress(OSError):
                    answered = ask(*arguments)
                waits[name].append(time.monotonic() - begun)
                unanswered[name] += not answered
                end.wait(PAUSE)

        fork = multiprocessing.get_context("fork")
        processes = [fork.Process(target=act, args=(port, *arguments), daemon=True)
                     for act, *arguments in attack for port in (grpc, http)]
        for process in processes:
            process.start()
        try:
            time.sleep(1)  # until they have what they want
            threads = [threading.Thread(target=others, args=(name, *ask), daemon=True) for name, ask in asks.items()]
            for thread in threads:
                thread.start()
            time.sleep(run.seconds)
            end.set()
            for thread in threads:
                thread.join()
        finally:
            for process in processes:
                process.kill()
                process.join()
        run.row(f"strangers {case}", {f"{name}_calls": len(found) for name, found in waits.items()},
                **{f"{name}_unanswered": goal(unanswered[name], "at most", 0) for name in asks},
                **{f"{name}_worst_s": goal(max(waits[name], default=None), "at most", MOST_WAIT) for name in asks})
