#!/usr/bin/env python3
"""Fails on an include against the arrows client -> proto <- server -> model -> kernels -> cpu | cuda. All but kernels may
use text."""
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
    "selfcheck": {"model", "kernels"},
    "bench": {"model", "kernels", "selfcheck"},
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


def violations(root):
    for folder, allowed in ALLOWED.items():
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".h", ".cc", ".inl", ".cu", ".cuh"):
                continue
            name = path.relative_to(root).as_posix()
            for include in INCLUDE.findall(path.read_text()):
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
