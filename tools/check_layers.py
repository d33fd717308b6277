#!/usr/bin/env python3
"""Fails on an include against the arrows client -> proto <- server -> model -> kernels -> cpu | cuda. Every folder
except kernels may use text. Inside a folder, includes run one way too: FLOORS lists the order."""
import pathlib
import re
import sys

# Folder: what its files may include, besides itself. "proto" stands for generated messages and stubs, "rpc" for gRPC
# and Protobuf themselves.
ALLOWED = {
    "kernels": set(),
    "text": set(),
    "model": {"text", "kernels"},
    "server": {"text", "proto", "rpc", "model", "kernels"},
    "client": {"text", "proto", "rpc"},
    "selfcheck": {"text", "model", "kernels"},
    "bench": {"text", "model", "kernels", "selfcheck", "proto", "rpc"},
}
# Inside a folder includes run one way too: a file includes only from its own floor and from floors above it in this
# list. A floor is every file whose path begins so; the longest match counts.
FLOORS = {
    "kernels": ["kernels/", "kernels/cpu/thread_pool", "kernels/cpu/simd/", "kernels/cpu/linear",
                "kernels/cpu/memberships", "kernels/cpu/attention/", "kernels/cpu/cpu_backend",
                "kernels/cuda/device/", "kernels/cuda/ops/", "kernels/cuda/attention/", "kernels/cuda/decode/",
                "kernels/cuda/cuda_backend",
                "kernels/backend.cc"],
    "model": ["model/tokenizers/utf8", "model/checkpoint/json_", "model/input/work_bounds", "model/tokenizers/", "model/chat/", "model/image/",
              "model/kinds/override.h",
              "model/checkpoint/profiles.h",
              "model/checkpoint/config.h", "model/input/", "model/kinds/", "model/checkpoint/", "model/model.", "model/forward/", "model/reserve",
              "model/load"],
    "server": ["server/options", "server/status_details", "server/address", "server/build_id", "server/cost_model", "server/forecast", "server/memory",
               "server/image/", "server/request", "server/observe/", "server/models/", "server/validate/", "server/schedule/",
               "server/calls/", "server/rpc/", "server/server.", "server/main"],
}
# kernels/ itself does not look into its devices; only the one file that makes backends does.
DEVICE_INCLUDERS = {"kernels/backend.cc"}
# bench/ may time what lies below the interface.
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def target_of(include):
    """The folder that an include belongs to, or None for the standard library and outside libraries."""
    first = include.split("/")[0]
    if include.startswith(("edgewise/v1/", "edgewise/status_details.")):
        return "proto"
    if include.startswith("edgewise/client/"):
        return "client"
    if first in ("grpc", "grpcpp", "google"):
        return "rpc"
    return first if first in ALLOWED else None


def floor_of(folder, name):
    """The index in FLOORS of the floor that a file stands on, or None."""
    matches = [i for i, floor in enumerate(FLOORS[folder]) if name.startswith(floor)]
    return max(matches, key=lambda i: len(FLOORS[folder][i]), default=None)


def climbs(folder, name, includes):
    """The includes of a file that climb to a higher floor of its own folder."""
    floor = floor_of(folder, name)
    if floor is None:
        yield f"{name}: is on no floor of {folder}; tools/check_layers.py lists them"
        return
    for include in includes:
        target = floor_of(folder, include) if include.startswith(folder + "/") else None
        if target is not None and target > floor:
            yield f"{name}: includes {include}, but {FLOORS[folder][floor]} may not use {FLOORS[folder][target]}"


def violations(root):
    for folder, allowed in ALLOWED.items():
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".h", ".cc", ".inl", ".cu", ".cuh"):
                continue
            name = path.relative_to(root).as_posix()
            includes = INCLUDE.findall(path.read_text())
            if folder in FLOORS:
                yield from climbs(folder, name, includes)
            for include in includes:
                target = target_of(include)
                if target is not None and target != folder and target not in allowed:
                    yield f"{name}: includes {include}, but {folder} may not use {target}"
                device = re.match(r"kernels/(cpu|cuda)/", include)
                inside = re.match(r"kernels/(cpu|cuda)/", name)
                if device and folder == "kernels" and name not in DEVICE_INCLUDERS and (
                        not inside or inside.group(1) != device.group(1)):
                    yield f"{name}: includes {include}, but only {', '.join(DEVICE_INCLUDERS)} looks into a device"
                if device and folder not in ("kernels", "bench"):
                    yield f"{name}: includes {include}; devices are reached through kernels/backend.h"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = list(violations(root))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
