"""Configures a second build folder as a machine without nvcc would, and builds there what differs from the first.

usage: without_cuda.py CMAKE SOURCE_FOLDER BUILD_FOLDER

Steps that both folders share, to the letter but for the folder's name, are those that the first has built and tested
already. The second folder may lack only steps that need CUDA; each of its own is run.
"""

import os
import shutil
import subprocess
import sys

KEPT = ("CMAKE_BUILD_TYPE", "CMAKE_CXX_FLAGS", "CMAKE_EXE_LINKER_FLAGS", "EDGEWISE_BENCH", "EDGEWISE_TESTS",
        "EDGEWISE_UNITY", "EDGEWISE_WERROR")
NEED_CUDA = ("nvcc", "edgewise_cuda.dir", "libedgewise_gpu_bench.so", "edgewise_gpu_bench.dir", "edgewise_cusparse.dir")


def run(*command: str) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def cache(folder: str) -> dict:
    with open(os.path.join(folder, "CMakeCache.txt"), encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file if ":" in line and not line.startswith(("#", "//"))]
    return {line.split(":", 1)[0]: line.split("=", 1)[1] for line in lines}


def steps(folder: str) -> dict:
    """{a build step, the folder's name taken out: the step as ninja runs it}"""
    lines = run("ninja", "-C", folder, "-t", "commands").splitlines()
    return {line.replace(folder, "BUILD"): line for line in lines if not line.startswith("ninja: ")}


def output(step: str) -> str:
    words = step.split()
    return words[words.index("-o") + 1]


def main(cmake: str, source: str, build: str) -> None:
    bare = os.path.join(build, "without-cuda")
    known = cache(build)
    if os.path.isdir(os.path.join(build, "unity")):  # the same batches (cmake/unity.cmake)
        shutil.copytree(os.path.join(build, "unity"), os.path.join(bare, "unity"), dirs_exist_ok=True)
    run(cmake, "-S", source, "-B", bare, "-G", "Ninja", "-DEDGEWISE_CUDA=OFF",
        *(f"-D{name}={known[name]}" for name in KEPT if name in known))
    with_cuda, without = steps(build), steps(bare)
    missing = [step for key, step in with_cuda.items() if key not in without]
    other = [step for key, step in without.items() if key not in with_cuda]
    others = {output(step) for step in other}
    for step in missing:
        if output(step) not in others and not any(word in step for word in NEED_CUDA):
            sys.exit(f"a step is lost without CUDA, though it needs none: {step}")
    # Headers that are generated come first; ninja builds them with any object that includes them.
    if others:
        run("ninja", "-C", bare, *sorted(others))
    print(f"{len(without)} steps without CUDA; built the {len(others)} that differ: {', '.join(sorted(others)) or 'none'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
