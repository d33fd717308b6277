#!/usr/bin/env python3
"""Counts the instructions of CUDA kernels, without a GPU.

    bench/gpu/sass.py --tools DIR [--source DIR] [--arch sm_90] [--kernel TEXT] [--memberships]

Compiles the tile kernels, or those of the memberships, as the build does and reads the machine code. DIR holds
cuobjdump, which CUDA's compiler packages lack; the PyPI package triton has it in triton/backends/nvidia/bin. --source
is another working tree, to count that one.

For each kernel whose name holds TEXT: registers and stack of a thread, instructions in all, and those of one tile of
keys. A tile's are the fewest instructions round the loop over tiles that pass all of its products, copies and
exponentials (HMMA, LDGSTS, MUFU.EX2): the way of a full tile without biases. Loops inside are passed once, so kernels
whose numbers of columns are not known before (fp32; 0 steps) show less than they run.

Of the memberships (named by most steps of 16 columns of a head, and tiles of 8 columns of x and y): those of a tile of
16 rows beside its steps of 16 clusters, and those of a step, all of whose tiles are multiplied. From 8 steps on a loop
over a head's columns counts once.
"""

import argparse
import collections
import pathlib
import re
import subprocess
import tempfile

WORK = ("HMMA", "LDGSTS", "MUFU.EX2")
MEMBERSHIP_WORK = ("HMMA", "MUFU.EX2", "FFMA", "LDG.E.128", "STG.E.128")
FLAGS = ["-std=c++20", "-O3", "-fmad=false", "-cubin"]
TILES = "kernels/cuda/attention/tiles.cu"
MEMBERSHIPS = "kernels/cuda/ops/memberships_split.cu"
CLASSES = ("HMMA", "FFMA", "FMUL", "FADD", "MUFU", "LDSM", "LDGSTS", "LDS", "IMAD", "ISETP", "FSETP", "IADD3", "LEA")


def functions(sass):
    """Name -> [(address, text)]."""
    found, name = {}, None
    for line in sass.splitlines():
        if match := re.search(r"Function : (\S+)", line):
            name = match[1]
            found[name] = []
        elif match := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", line):
            found[name].append((int(match[1], 16), match[2].strip()))
    return found


def operation(text):
    return re.sub(r"^@\S+\s+", "", text).split()[0]


def target(text):
    match = re.search(r"\bBRA\S*\s.*?(0x[0-9a-f]+)", text)
    return int(match[1], 16) if match else None


def loops_of(code):
    """An index of the code by address, and the first and last instruction of each loop."""
    index = {address: i for i, (address, _) in enumerate(code)}
    return index, {(index[target(text)], i) for i, (_, text) in enumerate(code) if index.get(target(text), i) < i}


def tile_way(code):
    """The operations of the shortest way round the loop with the most work."""
    index, loops = loops_of(code)
    ways = [shortest(code, index, *loop) for loop in loops]
    return max(ways, key=lambda way: (sum(name.startswith(WORK) for name in way), -len(way)))


def membership_ways(code):
    """The operations of a tile, one step of 16 clusters included, and of that step."""
    index, loops = loops_of(code)
    end = next(i for i, (_, text) in enumerate(code) if text == "EXIT")  # behind it: ways that are rarely taken
    ways = [shortest(code, index, first, last, MEMBERSHIP_WORK) for first, last in loops if last < end]
    ways = [way for way in ways if "MUFU.EX2" in way]
    return max(ways, key=len), min(ways, key=len)


def shortest(code, index, first, last, of_work=WORK):
    """The operations of the shortest way from `first` to `last` with the most work, by jumps forward; none: empty."""
    best = {first: (0, 0, None)}  # (work, -instructions, from)
    for i in range(first, last):
        if i not in best:
            continue
        text = code[i][1]
        work, fewer, _ = best[i]
        here = (work + operation(text).startswith(of_work), fewer - 1)
        conditional, name = text.startswith("@"), operation(text)
        after = []
        if name.startswith("BRA"):
            to = index.get(target(text), -1)
            if i < to <= last:
                after.append(to)
            if conditional or ".DIV" in name or "UP" in text.split("BRA")[1]:
                after.append(i + 1)
        elif not name.startswith("EXIT") or conditional:
            after.append(i + 1)
        for to in after:
            if to not in best or best[to][:2] < here:
                best[to] = (*here, i)
    way, i = [], last if last in best else None
    while i is not None:
        way.append(operation(code[i][1]))
        i = best[i][2]
    return way


def kinds_of(way):
    counts = collections.Counter(word.split(".")[0] for word in way)
    return ", ".join(f"{kind} {counts[kind]}" for kind in CLASSES if counts[kind])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=pathlib.Path, required=True)
    parser.add_argument("--source", type=pathlib.Path, default=pathlib.Path(__file__).parents[2])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--kernel", default="")
    parser.add_argument("--memberships", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cubin = f"{folder}/kernels.cubin"
        source = options.source / (MEMBERSHIPS if options.memberships else TILES)
        subprocess.run(["nvcc", *FLAGS, f"-arch={options.arch}", f"-I{options.source}", source, "-o", cubin], check=True)
        dump = [options.tools / "cuobjdump"]
        sass = subprocess.run([*dump, "-sass", cubin], check=True, capture_output=True, text=True).stdout
        usage = subprocess.run([*dump, "-res-usage", cubin], check=True, capture_output=True, text=True)
    resources = dict(re.findall(r"Function (\S+):\n\s+(REG:\d+ STACK:\d+)", usage.stdout + usage.stderr))
    for name, code in sorted(functions(sass).items()):
        short = re.sub(r"ELi", ",", re.sub(r"^.*AttendTiles(\w+?)INS0_\d+(\w+?)Items(.*?)EEEv.*$", r"\1 \2\3", name))
        short = re.sub(r"^.*MembershipKernelILi(\d+),(\d+)EEEv.*$", r"Memberships \1,\2", short)
        if options.kernel not in short:
            continue
        code_size = f"{short}: {resources.get(name, '')}, {len(code)} instructions"
        if options.memberships:
            way, step = membership_ways(code)
            print(f"{code_size}, {len(way) - len(step)} a tile and {len(step)} a step:", kinds_of(step), "of the step")
        else:
            way = tile_way(code)
            print(f"{code_size}, {len(way)} a tile:", kinds_of(way))


if __name__ == "__main__":
    main()
