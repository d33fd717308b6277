"""Clocks, turns, and what the device does at most."""

import statistics
import time

import torch

TURN_MS = 2.0  # about how long a turn is
MAX_REPEATS = 50
MAX_CONTENDER_MS = 4000.0  # of all rounds together; slower contenders have fewer


class GpuClock:
    def __init__(self):
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def time(self, enqueue):
        torch.cuda.synchronize()
        self._start.record()
        enqueue()
        self._end.record()
        self._end.synchronize()
        return self._start.elapsed_time(self._end)

    def peak_bytes(self, enqueue):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        enqueue()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    def settle(self):
        """Whether the device still answers after an error."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


class DryClock:
    def time(self, enqueue):
        start = time.perf_counter()
        enqueue()
        return 1e3 * (time.perf_counter() - start)

    def peak_bytes(self, enqueue):
        enqueue()

    def settle(self):
        pass


def measure(contenders, rounds, clock, failures):
    """{name: median milliseconds}; what fails is left out, with its reason in `failures`."""
    repeats, turns, times, first = {}, {}, {}, {}

    def turn(contender):
        name = contender.name
        try:
            milliseconds = contender.time(first[name], repeats[name])
        except Exception as error:  # noqa: BLE001  a peer's failure is a result
            failures[name] = str(error).strip().split("\n")[0][:200]
            clock.settle()
            return None
        first[name] += repeats[name]
        return milliseconds

    for contender in contenders:
        name = contender.name
        repeats[name], first[name] = 1, 0
        if turn(contender) is None:  # warms up
            continue
        pilot = turn(contender)
        if pilot is None:
            continue
        repeats[name] = max(1, min(MAX_REPEATS, round(TURN_MS / max(pilot, 1e-3))))
        turns[name] = max(3, min(rounds, int(MAX_CONTENDER_MS / max(pilot * repeats[name], 1e-3))))
        if turn(contender) is None:  # a turn as they all will be: what it pins and allocates is there afterwards
            continue
        times[name] = []
    for r in range(rounds):
        for contender in contenders:
            if contender.name in failures or r >= turns.get(contender.name, 0):
                continue
            milliseconds = turn(contender)
            if milliseconds is not None:
                times[contender.name].append(milliseconds)
    return {name: statistics.median(values) for name, values in times.items() if values and name not in failures}


def ceilings(clock, precisions, dry_run):
    """Copy bandwidth, bytes/s, and rates of large matrix products, FLOP/s, measured on this device."""
    size, side = (1 << 20, 64) if dry_run else (1 << 30, 8192)
    device = "cpu" if dry_run else "cuda"
    source = torch.randn(size // 2, device=device)
    target = torch.empty_like(source)

    def best(enqueue):
        clock.time(enqueue)
        return min(clock.time(enqueue) for _ in range(5)) / 1e3

    found = {"copy_bytes_per_second": 2 * 4 * source.numel() / best(lambda: target.copy_(source))}
    for name, dtype in precisions.items():
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        found[f"matmul_{name}_flops"] = 2 * side**3 / best(lambda a=a, b=b: a @ b)
    return found
