#!/usr/bin/python3
"""Walks one Predict: the functions of ours that the server enters for it, and how long the functions of the tree are.

    tools/walk.py --build /tmp/walk [--tree FOLDER] [--list]

Builds the server with -finstrument-functions in a folder of its own (minutes), asks it for the class of some token ids
(model sentiment: SBM, on the CPU, no cap) and prints, by folder, the distinct functions that every one of some requests
entered, with the lines of their bodies. The other work of the server is in some of them, not in all.
Functions of kernels/cpu/simd are not seen: compiled so they take hours. Needs Debian's universal-ctags and the packages
of tools/evaluation/stubs.py.
"""

import argparse
import collections
import json
import mmap
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("server", "kernels", "model", "client", "selfcheck", "base")
SLOTS = 1 << 16
WARM, WALKS = 40, 8
FLAGS = "-finstrument-functions -finstrument-functions-exclude-file-list=/usr/,/opt/,proto/,kernels/cpu/simd/"


class Function(collections.namedtuple("Function", "path name line end")):
    """One body, as ctags sees it."""

    def lines(self) -> int:
        return self.end - self.line + 1


def functions_of(tree: pathlib.Path) -> dict:
    """{path: its functions}"""
    files = [str(path.relative_to(tree)) for folder in FOLDERS for path in sorted((tree / folder).rglob("*"))
             if path.suffix in (".cc", ".h", ".inl", ".cu", ".cuh")]
    tags = subprocess.run(["ctags", "--langmap=C++:+.inl.cu.cuh", "--fields=+neKS", "--kinds-C++=f",
                           "--output-format=json", "-L", "-", "-f", "-"], cwd=tree, input="\n".join(files), text=True,
                          capture_output=True, check=True).stdout
    found = collections.defaultdict(list)
    for tag in map(json.loads, tags.splitlines()):
        if "end" in tag:
            found[tag["path"]].append(Function(tag["path"], tag["name"], tag["line"], tag["end"]))
    return found


def build(tree: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """-> the instrumented server"""
    subprocess.run(["cmake", "-S", tree, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                    "-DEDGEWISE_TESTS=OFF", "-DEDGEWISE_BENCH=OFF", "-DEDGEWISE_CUDA=OFF", f"-DCMAKE_CXX_FLAGS={FLAGS}",
                    "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -g1 -DNDEBUG"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", folder, "bin/edgewise-server"], check=True, stdout=sys.stderr)
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", folder / "recorder.so",
                    ROOT / "tools" / "walk" / "recorder.c"], check=True)
    return folder / "bin" / "edgewise-server"


def walk(tree: pathlib.Path, server: pathlib.Path) -> set:
    """The addresses in the program of the functions that all of the requests entered."""
    sys.path.insert(0, str(ROOT / "tools"))
    from evaluation import stubs
    with tempfile.TemporaryDirectory() as scratch:
        messages = stubs.make(os.path.join(scratch, "stubs"))
        shared = os.path.join(scratch, "walk")
        with open(shared, "wb") as file:
            file.truncate(8 * (2 + SLOTS))
        process = subprocess.Popen(
            [server, f"--model_repository={tree}/examples/models", "--listen=127.0.0.1:0",
             "--metrics_listen=127.0.0.1:0"],
            env={**os.environ, "LD_PRELOAD": str(server.parent.parent / "recorder.so"), "EDGEWISE_WALK": shared},
            stderr=subprocess.PIPE, text=True)
        try:
            serving = next(json.loads(line) for line in process.stderr if '"serving"' in line)
            client = stubs.Client(f"127.0.0.1:{serving['port']}", messages)
            request = messages[0].PredictRequest(model="sentiment")
            request.inputs.add().sequence.token_ids.values.extend([5, 9, 2, 7, 11, 3])
            with open(shared, "r+b") as file:
                memory = mmap.mmap(file.fileno(), 0)
            while True:
                try:
                    client.service.Predict(request, timeout=60)
                    break
                except client.grpc.RpcError:
                    time.sleep(0.2)
            for _ in range(WARM):
                client.service.Predict(request, timeout=60)
            walks = []
            for _ in range(WALKS):
                time.sleep(0.05)
                memory[16:] = bytes(8 * SLOTS)
                memory[0:8] = struct.pack("<Q", 1)
                client.service.Predict(request, timeout=60)
                time.sleep(0.02)  # it is counted and logged after its answer
                memory[0:8] = bytes(8)
                base, *entered = struct.unpack(f"<{1 + SLOTS}Q", memory[8:])
                walks.append({address - base for address in entered if address})
        finally:
            process.terminate()
            process.communicate()
    return set.intersection(*walks)


def named(server: pathlib.Path, tree: pathlib.Path, addresses: set, functions: dict) -> set:
    """The functions of the tree at these addresses; what the compiler made has none."""
    lines = subprocess.run(["addr2line", "-e", server], input="\n".join(hex(a) for a in sorted(addresses)), text=True,
                           capture_output=True, check=True).stdout.splitlines()
    found = set()
    for place in lines:
        path, _, number = place.split(" ")[0].rpartition(":")
        if not path.startswith(f"{tree}/") or not number.isdigit():
            continue
        around = [each for each in functions.get(os.path.relpath(path, tree), ())
                  if each.line <= int(number) <= each.end and not each.name.startswith("__anon")]
        if around:
            found.add(min(around, key=Function.lines))
    return found


def folder_of(path: str) -> str:
    parts = path.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="the folder to build in")
    parser.add_argument("--tree", type=pathlib.Path, default=ROOT, help="the sources; default: these")
    parser.add_argument("--list", action="store_true", help="print the functions too")
    arguments = parser.parse_args()
    tree = arguments.tree.resolve()
    functions = functions_of(tree)
    server = build(tree, arguments.build.resolve())
    walked = named(server, tree, walk(tree, server), functions)
    sums = collections.defaultdict(lambda: [0, 0, set()])
    for function in sorted(walked):
        if arguments.list:
            print(f"{function.lines():4} {function.path}:{function.line} {function.name}")
        for folder in {folder_of(function.path), function.path.split("/")[0], "all"}:
            sums[folder][0] += 1
            sums[folder][1] += function.lines()
            sums[folder][2].add(function.path)
    print(f"{'':24} functions  lines  files")
    for folder, (count, lines, files) in sorted(sums.items()):
        print(f"{folder:24} {count:9} {lines:6} {len(files):6}")
    lengths = sorted(f.lines() for each in functions.values() for f in each if not f.name.startswith("__anon"))
    print(f"lengths of {len(lengths)} functions: median {lengths[len(lengths) // 2]}, "
          f"90th percentile {lengths[len(lengths) * 9 // 10]}, maximum {lengths[-1]}")


if __name__ == "__main__":
    main()
