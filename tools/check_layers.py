#!/usr/bin/env python3
"""Fails on an include against the arrows client -> proto <- server -> model -> kernels -> cpu | cuda. Every folder may
use base. Inside a folder, includes run one way too: ORDER lists its rooms from the lowest to the highest."""
import os
import pathlib
import re
import sys

# Folder: what its files may include, besides itself. "proto" stands for generated messages and stubs, "rpc" for gRPC
# and Protobuf themselves.
ALLOWED = {
    "base": set(),
    "kernels": {"base"},
    "model": {"base", "kernels"},
    "server": {"base", "proto", "rpc", "model", "kernels"},
    "client": {"base", "proto", "rpc"},
    "selfcheck": {"base", "model", "kernels"},
    "bench": {"base", "model", "kernels", "selfcheck", "proto", "rpc"},
}
# A file includes from its own room and from rooms before it in this list. A file's room is the folder that it lies in.
ORDER = {
    "kernels": ["kernels/draw", "kernels", "kernels/host", "kernels/reference",
                "kernels/cpu/runtime", "kernels/cpu/simd", "kernels/cpu/ops", "kernels/cpu/attention", "kernels/cpu",
                "kernels/cuda/device", "kernels/cuda/ops", "kernels/cuda/attention", "kernels/cuda/decode",
                "kernels/cuda", "kernels/devices"],
    "model": ["model/chat", "model/image", "model/config", "model/tokenizers", "model/input", "model/kinds",
              "model/checkpoint", "model/checkpoint/hugging_face", "model", "model/forward", "model/load"],
    "server": ["server/base", "server/image", "server/request", "server/observe", "server/models", "server/validate",
               "server/schedule", "server/handler", "server/guard", "server/wire", "server/http", "server/oip", "server"],
}
# The only room that looks into every device.
DEVICES = "kernels/devices"
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


def climbs(folder, name, includes):
    """The includes of a file that climb to a higher room of its own folder."""
    order, room = ORDER[folder], os.path.dirname(name)
    if room not in order:
        yield f"{name}: {room} is no room of {folder}; tools/check_layers.py lists them"
        return
    for include in includes:
        target = os.path.dirname(include)
        if target in order and order.index(target) > order.index(room):
            yield f"{name}: includes {include}, but {room} may not use {target}"


def violations(root):
    for folder, allowed in ALLOWED.items():
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".h", ".cc", ".inl", ".cu", ".cuh"):
                continue
            name = path.relative_to(root).as_posix()
            includes = INCLUDE.findall(path.read_text())
            if folder in ORDER:
                yield from climbs(folder, name, includes)
            for include in includes:
                target = target_of(include)
                if target is not None and target != folder and target not in allowed:
                    yield f"{name}: includes {include}, but {folder} may not use {target}"
                device = re.match(r"kernels/(cpu|cuda)/", include)
                inside = re.match(r"kernels/(cpu|cuda)/", name)
                if device and folder == "kernels" and os.path.dirname(name) != DEVICES and (
                        not inside or inside.group(1) != device.group(1)):
                    yield f"{name}: includes {include}, but only {DEVICES} looks into every device"
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
