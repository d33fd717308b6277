"""Compiles the protos for the package `edgewise`: descriptors (edgewise/protos.binpb), and types for checkers (.pyi).

The package makes its messages from the descriptors (edgewise/descriptors.py). The Python that protoc would write works
only with a protobuf at least as new as that protoc.
"""

import pathlib
import shutil
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
SOURCES = FOLDER / "src"
PROTOS = ("edgewise/v1/inference.proto", "edgewise/status_details.proto")


class Missing(Exception):
    """Why the protos cannot be compiled."""


def root_of_protos() -> pathlib.Path:
    """The folder that PROTOS are in: a copy in a source distribution, else the repository's."""
    for root in (FOLDER / "proto", FOLDER.parents[1] / "proto"):
        if all((root / proto).is_file() for proto in PROTOS):
            return root
    raise Missing(f"{' and '.join(PROTOS)} are neither in {FOLDER}/proto nor in the repository around {FOLDER}")


def compiler() -> list:
    """The command of grpcio-tools where it is installed, else Debian's."""
    try:
        import grpc_tools.protoc  # noqa: F401
        return [sys.executable, "-m", "grpc_tools.protoc"]
    except ImportError:
        if shutil.which("protoc") is None:
            raise Missing("no compiler for protos: pip install grpcio-tools, or apt-get install "
                          "protobuf-compiler") from None
        return ["protoc"]


def write(folder: pathlib.Path) -> None:
    """Into folder/edgewise."""
    (folder / "edgewise").mkdir(exist_ok=True)
    subprocess.run([*compiler(), f"-I{root_of_protos()}", f"--pyi_out={folder}",
                    f"--descriptor_set_out={folder / 'edgewise' / 'protos.binpb'}", *PROTOS], check=True)


def stage(folder: pathlib.Path) -> None:
    """The whole package, for PYTHONPATH: what pip would install, where there is no pip."""
    shutil.copytree(SOURCES / "edgewise", folder / "edgewise", ignore=shutil.ignore_patterns("__pycache__"))
    write(folder)
