#!/usr/bin/env python3
"""Counts the instructions of CUDA kernels in their machine code, without a GPU.

    bench/gpu/sass.py --tools DIR [--objects DIR] [--compare FILE...] [--arch sm_90]
    bench/gpu/sass.py --tools DIR [--source DIR] --tiles [--kernel TEXT]
    bench/gpu/sass.py --tools DIR [--objects DIR] --waits

DIR holds cuobjdump, which CUDA's compiler packages lack; the PyPI package triton has it in triton/backends/nvidia/bin.

The first form prints a table: what a warp executes to draw by events, to draw pairs, to attend over rows and to compute
memberships; then a row of 4,096 tokens at a density of 1 %. It reads the objects of the build (--objects, by default
build/kernels/cuda/CMakeFiles/edgewise_cuda.dir), and with --compare other kernels that do the same: a .cu, which is
compiled, a .cubin or an object.

Nothing is known of a kernel but what its loops do. A loop is where the control flow goes back; those inside are rows of
their own, and so are those of functions that are called. The ways beside BRA.DIV, of warps whose threads have parted,
are left out. Two ways to count:

    least  the fewest instructions round the loop that pass its work (products, loads, loops inside): where all threads
           of a warp go the same way, so everywhere but
    all    the loop's instructions, where the threads part and a warp goes all ways: of events, and of loops of a row

The second form prints what one tile of keys takes in the tile kernels of the working tree --source. The third prints
how many loads of 16 bytes the kernels of a decoder's step begin before they wait for the kernel before
(griddepcontrol.wait is ACQBULK).
"""

import argparse
import collections
import datetime
import math
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
OBJECTS = ROOT / "build/kernels/cuda/CMakeFiles/edgewise_cuda.dir"
FILES = ["attention/draw_events.cu", "attention/draw_pairs.cu", "attention/rows.cu", "ops/memberships_split.cu"]
TILES = "kernels/cuda/attention/tiles.cu"
STEP = "decode/step.cu"
FLAGS = ["-std=c++20", "-O3", "-fmad=false", "-cubin"]
TILE_WORK = ("HMMA", "LDGSTS", "MUFU.EX2")
MEMBERSHIP_WORK = ("HMMA", "MUFU.EX2", "FFMA", "LDG.E.128", "STG.E.128")

WARP = 32
PHILOX = 20  # wide products of a block of random numbers
# The row of the last column: 1 % of 4,096 keys. Nine events in ten are edges. The threads of a warp list 1,024
# keys, and the one with most edges has this many.
TOKENS, EDGES, EVENTS_OF_EDGE, COLUMNS, CLUSTERS = 4096, 41, 1.11, 64, 128
MOST_OF_A_THREAD = 1.9
ROWS_OF_A_WARP = 8  # that attend on tensor cores

CLASSES = {
    "mma": "HMMA IMMA DMMA",
    "float": "FADD FMUL FFMA FMNMX FSETP FSEL FSET FCHK FRND FSWZADD HADD2 HFMA2 HMUL2 HMNMX2 HSETP2 F2F F2FP F2I I2F "
             "I2FP MUFU DADD DMUL DFMA DSETP DMNMX",
    "integer": "IADD3 IADD IMAD IMUL LEA LOP3 LOP SHF SHL SHR ISETP IMNMX VIMNMX PRMT SEL BMSK BREV FLO POPC IDP IABS SGXT "
               "PLOP3 P2R R2P UIADD3 UIMAD ULEA ULOP3 USHF UISETP UPRMT USEL UPOPC UFLO UPLOP3 USGXT UBMSK",
    "loads": "LDG LDS LDSM LD LDL LDGSTS",
    "stores": "STG STS ST STL ATOM ATOMS ATOMG RED",
    "shuffles": "SHFL VOTE VOTEU MATCH REDUX MOVM",
}  # fmt: skip
CLASS_OF = {name: kind for kind, names in CLASSES.items() for name in names.split()}


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


class Loop:
    """The instructions that go round, by index; `own`: those of no loop inside."""

    def __init__(self, kernel, head, body):
        self.kernel, self.head, self.body, self.own = kernel, head, body, set(body)
        self.parent, self.inner = None, []

    def count(self, prefix, nested=False):
        return sum(self.kernel.names[i].startswith(prefix) for i in (self.body if nested else self.own))

    def all(self):
        return [self.kernel.names[i] for i in sorted(self.own)]

    def least(self, work, inside=False, worth=lambda loop: 1):
        """The operations of the way round with the most work, and of those the shortest; and the loops inside that it
        passes, each of which is worth so much work. Their instructions count only where they are asked for."""
        node_of = {i: i for i in self.body}  # a loop inside is one node
        loops = {} if inside else {-1 - loop.head: loop for loop in self.inner}
        for node, loop in loops.items():
            node_of.update((i, node) for i in loop.body)
        after, ends = collections.defaultdict(set), set()
        for i in self.body:
            for to in self.kernel.after[i]:
                if to == self.head:
                    ends.add(node_of[i])
                elif to in self.body and node_of[to] != node_of[i] and (i, to) not in self.kernel.back:
                    after[node_of[i]].add(node_of[to])
        best = {}  # node: (work, -instructions, the node behind it), from there to where the loop goes back
        stack = [node_of[self.head]]
        while stack:
            node = stack[-1]
            rest = [to for to in after[node] if to not in best]
            if rest:
                stack += rest
                continue
            stack.pop()
            ways = [(0, 0, None)] if node in ends else []
            ways += [(*best[to][:2], to) for to in after[node] if best[to]]
            if not ways:
                best[node] = None  # out of the loop
                continue
            more, fewer, to = max(ways, key=lambda way: way[:2])
            own = (worth(loops[node]), 0) if node < 0 else (int(self.kernel.names[node].startswith(work)), -1)
            best[node] = (own[0] + more, own[1] + fewer, to)
        way, node = [], node_of[self.head]
        while node is not None:
            way.append(node)
            node = best[node][2]
        return [self.kernel.names[i] for i in way if i >= 0], [loops[node] for node in way if node < 0]


class Kernel:
    """The control flow of a function, instruction by instruction."""

    def __init__(self, code):
        self.names = [operation(text) for _, text in code]
        index = {address: i for i, (address, _) in enumerate(code)}
        self.after = [self._after(i, text, index) for i, (_, text) in enumerate(code)]
        calls = [re.search(r"^(?:@\S+ +)?CALL\S* .*?(0x[0-9a-f]+)", text) for _, text in code]
        self.entries = [0] + sorted({index[int(call[1], 16)] for call in calls if call and int(call[1], 16) in index})
        self.loops = self._loops()

    def _after(self, i, text, index):
        name, following = self.names[i], [i + 1] if i + 1 < len(self.names) else []
        if name.startswith("BRA") and ".DIV" not in name:
            target = re.search(r"(0x[0-9a-f]+)", text)
            to = [index[int(target[1], 16)]] if target and int(target[1], 16) in index else []
            conditional = text.startswith("@") or re.search(r"BRA\S*\s+!?U?P", text)
            return to + (following if conditional else [])
        if name.startswith(("EXIT", "RET")):
            return following if text.startswith("@") else []
        return following  # also of BRX, whose first case comes next

    def _loops(self):
        """By the addresses of their heads; outer ones before those inside."""
        state, back, before = {}, collections.defaultdict(set), collections.defaultdict(set)
        for entry in self.entries:
            stack = [(entry, iter(self.after[entry]))] if entry not in state else []
            state.setdefault(entry, "open")
            while stack:
                node, rest = stack[-1]
                for to in rest:
                    before[to].add(node)
                    if state.get(to) == "open":
                        back[to].add(node)
                    elif to not in state:
                        state[to] = "open"
                        stack.append((to, iter(self.after[to])))
                        break
                else:
                    state[node] = "done"
                    stack.pop()
        self.back = {(tail, head) for head, tails in back.items() for tail in tails}
        loops = []
        for head, tails in back.items():
            body, rest = {head}, list(tails)
            while rest:
                node = rest.pop()
                if node not in body:
                    body.add(node)
                    rest += before[node]
            loops.append(Loop(self, head, body))
        loops.sort(key=lambda loop: (-len(loop.body), loop.head))
        for n, loop in enumerate(loops):
            outer = [other for other in loops[:n] if loop.head in other.body and loop.body < other.body]
            if outer:
                loop.parent = outer[-1]
                outer[-1].inner.append(loop)
        for loop in loops:
            for inner in loop.inner:
                loop.own -= inner.body
        return sorted(loops, key=lambda loop: (loop.head, -len(loop.body)))


class Count:
    """Instructions of `what`, and how often a row of the last column has them."""

    def __init__(self, what, names, passes=0.0):
        self.what, self.total, self.passes = what, len(names), passes
        self.classes = collections.Counter(CLASS_OF.get(name.split(".")[0], "other") for name in names)


def loaded_bytes(loop):
    """Bytes that a warp reads from device memory by loads of 8 and 16 bytes a thread."""
    return WARP * (16 * loop.count("LDG.E.128") + 8 * loop.count("LDG.E.64"))


def draw_by_events(kernel, share):
    steps = [loop for loop in kernel.loops if loop.count("IMAD.WIDE.U32") >= PHILOX and loop.count("SHFL.UP") >= 3]
    if not steps:
        return []
    row = steps[0].parent
    while not row.count("STG", nested=True):
        row = row.parent
    events = 2 * WARP * (steps[0].count("IMAD.WIDE.U32") // PHILOX)
    counts = [Count(f"a step of {events} events", steps[0].all(), math.ceil(EDGES * EVENTS_OF_EDGE / events))]
    settle = max(steps[0].inner, key=lambda loop: len(loop.body))
    counts.append(Count("a round of events that steps leave open", settle.all()))
    counts += [Count("  and once round the loop in it", inner.all()) for inner in settle.inner]

    def worth(loop):  # rare: forced and heavy pairs, and events once more, for their ages
        rare = loop.count(("IMAD.WIDE.U32", "IDP", "ATOMS"), nested=True)
        return 1 if steps[0].body <= loop.body or not rare else -100

    besides, loops = row.least(("BAR", "SHFL", "STG"), worth=worth)
    counts.append(Count("a row besides", besides, 1))
    for loop in loops:
        if steps[0].body <= loop.body:
            continue
        listing = [inner for inner in loop.inner if inner.count("STG")]
        if listing:  # by words of bits; loops beside it are unrolled ones for more words than there are
            words = loop.least(("STG",), worth=lambda inner: 1 if inner in listing else -100)[0]
            passes = TOKENS // 32 // WARP
            counts.append(Count("  and for a word of bits of each thread", words, passes))
            counts.append(Count("    an edge that a thread lists", listing[0].all(), passes * MOST_OF_A_THREAD))
        else:
            counts.append(Count("  and once round a loop", loop.all(),
                                math.ceil(EDGES / WARP) if loop.count("STG") else 1))
    for each in counts if share else []:
        each.passes = 0  # several rows, or warps, may go round together
    return counts


def draw_pairs(kernel, share):
    tile = next(loop for loop in kernel.loops if loop.count("IMAD.WIDE.U32") > PHILOX and loop.count("HMMA", nested=True))
    counts = [Count("16 queries and 64 keys", tile.least(("LDG", "SHFL", "IMAD.WIDE.U32", "HMMA"))[0])]
    counts += [Count("  products, for 16 of the rank", loop.all()) for loop in tile.inner if loop.count("HMMA")]
    writes = [loop for loop in kernel.loops if loop.count("STG") and loop.count("SHFL") and not loop.count("HMMA", True)]
    return counts + [Count("  and to write their bits", loop.least(("STG", "SHFL"), worth=lambda inner: -100)[0])
                     for loop in writes[:1]]


def attention(kernel, share):
    work = ("HMMA", "FFMA", "LDG.E.128", "LDG.E.64")
    loop = [loop for loop in kernel.loops if loaded_bytes(loop) and loop.count("MUFU.EX2") and not loop.count("STG")][-1]
    width = 2 if loop.count("HMMA") else 4
    names, size = loop.least(work)[0], loaded_bytes(loop)
    for inner in loop.inner:  # as often as makes the bytes of values those of keys
        if loaded_bytes(inner):
            passes = loaded_bytes(loop) // loaded_bytes(inner)
            names, size = names + passes * inner.least(work)[0], size + passes * loaded_bytes(inner)
    edges = size // (2 * COLUMNS * width)
    counts = [Count(f"{edges} edges", names, EDGES / edges if share else math.ceil(EDGES / edges))]
    while (loop := loop.parent) is not None:
        rows = ROWS_OF_A_WARP if width == 2 and loop.parent is None else 1
        counts.append(Count("  round it" if rows == 1 else f"  round it, for {rows} rows",
                            loop.least(("STG", "SHFL.BFLY"))[0], 1 / rows))
    return counts


def memberships(kernel, share):
    tile = next(loop for loop in kernel.loops if loop.count("HMMA", nested=True) and loop.count("MUFU.EX2", nested=True))
    counts = [Count("16 rows", tile.least(MEMBERSHIP_WORK)[0], 1 / 16)]
    for run in (loop for loop in tile.inner if loop.count("HMMA", nested=True)):
        counts.append(Count("  and for x or y", run.least(MEMBERSHIP_WORK)[0], 1 / 16))
        counts += [Count("  and for 16 clusters", step.least(MEMBERSHIP_WORK)[0], CLUSTERS / 16 / 16) for step in run.inner]
    return counts


# What is counted, the names of kernels for it, and how.
TABLE = [
    ("draw by events", r"DrawLists|4DrawILi4096", draw_by_events),
    ("draw of pairs", r"DrawBits|DrawPairs", draw_pairs),
    ("attention in bf16", r"RowsMmaILi2ELi1ELb0|RowGroupsILi2ELi1ELb0|AttendDirect", attention),
    ("attention in float32", r"RowGatherILi64ELb0|RowItemsIfLi64|AttendFloat", attention),
    ("memberships, rank 32", r"MembershipKernelILi4ELi4E|MembershipsILi32ELb1E", memberships),
    ("memberships, rank 128", r"MembershipKernelILi4ELi16E|MembershipsILi128ELb1E", memberships),
]


def dump_of(file, options, folder):
    """The machine code of a source, or of what was compiled."""
    if file.suffix == ".cu":
        binary = pathlib.Path(folder) / f"{file.stem}.cubin"
        subprocess.run(["nvcc", *FLAGS, f"-arch={options.arch}", f"-I{options.source}", f"-I{file.parent}", file, "-o",
                        binary], check=True)  # fmt: skip
        file = binary
    of_arch = [] if file.suffix == ".cubin" else ["-arch", re.match(r"sm_\d+", options.arch)[0]]
    done = subprocess.run([options.tools / "cuobjdump", "-sass", *of_arch, file], capture_output=True, text=True)
    if done.returncode != 0 or "Function :" not in done.stdout:
        sys.exit(f"sass.py: no code for {options.arch} in {file}: {done.stderr.strip()}")
    return done.stdout


def short_name(name):
    for digits, rest in re.findall(r"(\d+)((?:Draw|Attend|Split|Memberships)\w+)", name):
        for length in (int(digits[-2:]), int(digits[-1:])):
            if length <= len(rest) and re.fullmatch(r"[A-Za-z]+", rest[:length]) and rest[length] in "IE":
                arguments = re.match(r"I(\w+?E)E*v", rest[length:])
                found = re.findall(r"^f|\d([A-Z][a-z]\w+?)I|L[ib](\d+)E", arguments[1] if arguments else "")
                values = ["".join(value) or "float" for value in found]
                return rest[:length] + (f"<{', '.join(values)}>" if values else "")
    return name


def print_table(kernels, share=False):
    """Whether something was found of each of the table's lines."""
    print(f"{'':<44} {'all':>6} {' '.join(f'{kind:>8}' for kind in [*CLASSES, 'other'])}   {'a row':>6}")
    found = set()
    for what, pattern, count in TABLE:
        for name, code in kernels.items():
            if not re.search(pattern, name):
                continue
            counts = count(Kernel(code), share)
            if not counts:
                continue
            found.add(what)
            total = sum(each.total * each.passes for each in counts)
            print(f"{what}: {short_name(name)}")
            for each in counts:
                kinds = " ".join(f"{each.classes[kind]:>8}" for kind in [*CLASSES, "other"])
                row = f"{each.total * each.passes:>6.0f}" if each.passes else ""
                print(f"  {each.what:<42} {each.total:>6} {kinds}   {row}")
            if total:
                print(f"  {'a row in all':<116}   {total:>6.0f}")
    return [what for what, _, _ in TABLE if what not in found]


def print_tiles(options, folder):
    kernels = functions(dump_of(options.source / TILES, options, folder))
    for name, code in sorted(kernels.items()):
        short = re.sub(r"ELi", ",", re.sub(r"^.*AttendTiles(\w+?)INS0_\d+(\w+?)Items(.*?)EEEv.*$", r"\1 \2\3", name))
        if options.kernel not in short or "AttendTiles" not in name:
            continue
        ways = [loop.least(TILE_WORK, inside=True)[0] for loop in Kernel(code).loops]
        way = max(ways, key=lambda way: (sum(name.startswith(TILE_WORK) for name in way), -len(way)))
        print(f"{short}: {len(code)} instructions, {len(way)} a tile:",
              ", ".join(f"{kind} {number}" for kind, number in Count("", way).classes.items()))


def loads_before_wait(code):
    """None: the kernel does not wait."""
    names = [operation(text) for _, text in code]
    wait = next((i for i, name in enumerate(names) if name == "ACQBULK"), None)
    return None if wait is None else sum(name.startswith("LDG.E.128") for name in names[:wait])


def print_waits(options, folder):
    for name, code in sorted(functions(dump_of(options.objects / f"{STEP}.o", options, folder)).items()):
        loads = loads_before_wait(code)
        if loads is not None:
            short = re.search(r"([A-Z][a-z]+Kernel)(?:I(?:L[ib](\d+)E)?)?(?:\w*?(Halves|Neighbours))?", name)
            print(f"{' '.join(filter(None, short.groups()))}: {loads}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=pathlib.Path, required=True)
    parser.add_argument("--objects", type=pathlib.Path, default=OBJECTS)
    parser.add_argument("--compare", type=pathlib.Path, nargs="+", default=[])
    parser.add_argument("--source", type=pathlib.Path, default=ROOT)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--kernel", default="")
    parser.add_argument("--waits", action="store_true")
    options = parser.parse_args()
    if not (options.tools / "cuobjdump").exists():
        sys.exit(f"sass.py: no cuobjdump in {options.tools}; pip install triton brings one")
    if (options.tiles or any(file.suffix == ".cu" for file in options.compare)) and not shutil.which("nvcc"):
        sys.exit("sass.py: nothing is compiled: there is no nvcc on the path; CUDA's bin folder has it")
    with tempfile.TemporaryDirectory() as folder:
        if options.tiles:
            print_tiles(options, folder)
            return
        if options.waits:
            print_waits(options, folder)
            return
        objects = [options.objects / f"{file}.o" for file in FILES]
        for file in [*objects, *options.compare]:
            if not file.exists():
                sys.exit(f"sass.py: {file} is not there; ./dev build makes the objects where there is nvcc")
        print(f"{datetime.date.today()}: {shlex.join(['bench/gpu/sass.py', *sys.argv[1:]])}")
        print(f"Instructions of a warp, {options.arch}. A row: of {TOKENS:,} tokens, {EDGES} edges, heads of {COLUMNS} columns,"
              f" {CLUSTERS} clusters.\n")
        missing = print_table({name: code for file in objects for name, code in functions(dump_of(file, options, folder)).items()})
        for file in options.compare:
            print(f"\n{file.name}")
            print_table(functions(dump_of(file, options, folder)), share=True)
    if missing:
        sys.exit(f"sass.py: no kernel was found for: {', '.join(missing)}; TABLE names kernels that are no more")


if __name__ == "__main__":
    main()
