"""Chooses faults: one line of a C++ source each, changed so that the code that is compiled means something else.

Nothing is parsed: the sources are formatted by clang-format, so a comparison has a space on both sides, brackets of
templates have none, and a statement that fits in a line stands in one. A fault that does not compile, or compiles to the same
instructions, is found later and replaced (run.py).
"""

import dataclasses
import hashlib
import pathlib
import re

COMPARISON, OFF_BY_ONE, DROPPED_LINE = KINDS = ("swapped comparison", "off by one", "dropped line")

_SIMD = "kernels/cpu/simd/"
_PORTABLE = (_SIMD + "*.inl", _SIMD + "vector_portable.h", "!*_avx512.inl", "!*/amx.inl")
# Where faults are planted: what is planted together, and the files of it; "!" takes files out again. AMX is left out:
# few machines that run the tests have it.
STRATA = {
    "simd/generic": _PORTABLE,
    "simd/avx2": _PORTABLE,
    "simd/avx512": (_SIMD + "*.inl", _SIMD + "vector_avx512.h", "!*_portable.inl", "!*/amx.inl"),
    "kernels/cuda": ("kernels/cuda/**/*.cu", "kernels/cuda/**/*.cuh", "kernels/cuda/**/*.cc", "kernels/cuda/**/*.h",
                     "!*/gemm_cublaslt.cc"),  # no test compiles it without nvcc
    "model/forward": ("model/forward/*.cc", "model/forward/*.h"),
    "model/tokenizers": ("model/tokenizers/*.cc", "model/tokenizers/*.h", "model/tokenizers/*.inl"),
    "server/schedule": ("server/schedule/*.cc", "server/schedule/*.h"),
    "server/wire": ("server/wire/*.cc", "server/wire/*.h"),
    "server/guard": ("server/guard/*.cc", "server/guard/*.h"),
    "client": ("client/**/*.cc", "client/**/*.h"),
}
# The instruction set that a fault is planted in: the others keep the line as it was.
_ONLY_WHERE = {
    "simd/generic": "!defined(__AVX2__)",
    "simd/avx2": "defined(__AVX2__) && !defined(__AVX512VBMI2__)",
    "simd/avx512": "defined(__AVX512VBMI2__)",
}

# Lines that only the compiler or the clock would miss.
_NOT_MEANING = re.compile(
    r"\b(static_assert|using|template|typedef|friend|extern|assert|alignas|operator)\b|\bABSL_|\bEDGEWISE_|__launch_bounds"
    r"|reserve\(|prefetch|Prefetch|shrink_to_fit|madvise|unroll|hardware_concurrency|__builtin_(expect|assume)|_mm_pause")
_DECLARES = re.compile(r"^\s*(?!return\b|else\b)(?:[\w:<>,*&]+\s+)+[*&]?\w+\[")  # float sums[kRows];
_SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
_COMPARES = re.compile(r"(?<= )(<|<=|>|>=|==|!=)(?= )")
_OFF = (  # what is looked for, and what its last group becomes
    (re.compile(r"(?<= \+ )(1)\b(?![.\w])"), "0"),
    (re.compile(r"(?<= - )(1)\b(?![.\w])"), "0"),
    (re.compile(r"\bfor \([^;]*; [^;]*? < ()(?=[\w.>()-]+; )"), "1 + "),
    (re.compile(r"\bfor \([^;=:]*? = (0)(?=;)"), "1"),
    (re.compile(r"(?<=[\w)\]]\[)[a-z]\w*()(?=\])"), " + 1"),
)
_KEEPS = re.compile(r"^(return|break|continue|goto|case|default|public|private|protected|else|do|delete|namespace|throw"
                    r"|co_return|friend|virtual|explicit)\b")
_ASSIGNS = re.compile(r"^(\*?[\w.>()\[\]-]+?) (?:[-+*/%|&^]|<<|>>)?= ")
_CALLS = re.compile(r"^[a-z_A-Z][\w.:>\[\]-]*(?:\(\))?(?:[.>-]+[\w.>-]+)?\(")
_COUNTS = re.compile(r"^(\+\+|--)[\w.>\[\]-]+;$|^[\w.>\[\]-]+(\+\+|--);$")
_LITERALS = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![\w])\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
_DIRECTIVES = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Fault:
    """One changed line. `line` counts from 1; a dropped line is `after` == ""."""

    stratum: str
    kind: str
    path: str
    line: int
    before: str
    after: str

    def key(self) -> str:
        """Names the fault where lines above it come and go."""
        return f"{self.stratum} {self.path}: {self.before.strip()} -> {self.after.strip()}"

    def planted(self, text: str) -> str:
        """The text of the file with the fault in it."""
        lines = text.split("\n")
        if lines[self.line - 1] != self.before:
            raise ValueError(f"{self.path}:{self.line} is not the line that was chosen: {lines[self.line - 1]}")
        changed = [self.after]
        if self.stratum in _ONLY_WHERE:
            changed = [f"#if {_ONLY_WHERE[self.stratum]}", self.after, "#else", self.before, "#endif"]
        return "\n".join(lines[: self.line - 1] + changed + lines[self.line:])


def _blank(match: re.Match) -> str:
    return re.sub(r"[^\n]", "_" if match[0][0] in "\"'R" else " ", match[0])


def code_lines(text: str) -> list[str]:
    """The lines of a source, as long as they were: comments and directives are spaces, strings are underscores."""
    return _DIRECTIVES.sub(_blank, _LITERALS.sub(_blank, text)).split("\n")


def _balanced(code: str) -> bool:
    return all(code.count(a) == code.count(b) for a, b in ("()", "[]", "{}"))


def _takes_either(code: str, at: re.Match) -> bool:
    """Whether a comparison picks the greater or the less of two: where both are equal, either will do."""
    chosen = re.match(r" (.+?) \? (.+?) : ([^;,)]+)", code[at.end():])
    if not chosen:
        return False
    other = chosen[3] if chosen[2] == chosen[1] else chosen[2]
    return chosen[1] in chosen.groups()[1:] and at[1][0] in "<>" and code[: at.start()].rstrip().endswith(other)


def _can_be_dropped(code: str, previous: str, following: str) -> bool:
    """Whether a line is a whole statement, and what is left is still a program."""
    code = code.strip()
    if not code.endswith(";") or not _balanced(code) or _KEEPS.match(code) or following.strip().startswith("else"):
        return False
    if previous and previous[-1] not in ";{}:":
        return False  # it goes on from the line before, or is that line's only statement
    if re.match(r"(if|for|while) \(", code):
        return not code.endswith("{}")
    code = re.sub(r"\[[^\[\]]*\]", "[]", re.sub(r"\[[^\[\]]*\]", "", code))  # an index may have spaces
    return bool(_ASSIGNS.match(code) or _COUNTS.match(code) or _CALLS.match(code))


def candidates(stratum: str, kind: str, path: str, text: str) -> list[Fault]:
    """Every fault of a kind that a file has room for."""
    found, lines, codes = [], text.split("\n"), code_lines(text)
    previous = ""
    for number, (line, code) in enumerate(zip(lines, codes), 1):
        following = next((c for c in codes[number:] if c.strip()), "")

        def add(after: str) -> None:
            found.append(Fault(stratum, kind, path, number, line, after))  # noqa: B023

        if code.strip() and not _NOT_MEANING.search(code):
            if kind == COMPARISON:
                for match in _COMPARES.finditer(code):
                    if not _takes_either(code, match):
                        add(line[: match.start()] + _SWAPS[match[1]] + line[match.end():])
            elif kind == OFF_BY_ONE and not _DECLARES.match(code):
                for pattern, becomes in _OFF:
                    for match in pattern.finditer(code):
                        add(line[: match.start(1)] + becomes + line[match.end(1):])
            elif kind == DROPPED_LINE and _can_be_dropped(code, previous, following):
                add("")
        previous = code.strip() or previous
    return found


def files(root: pathlib.Path, stratum: str) -> list[str]:
    """The files of a stratum, from the root of the repository."""
    found = set()
    for pattern in STRATA[stratum]:
        if pattern.startswith("!"):
            found = {path for path in found if not pathlib.PurePath(path).match(pattern[1:])}
        else:
            found |= {path.relative_to(root).as_posix() for path in root.glob(pattern) if path.is_file()}
    return sorted(found)


class Chooser:
    """Deals faults to strata and kinds in turn. The order of candidates depends on the seed and on each line alone, so a
    change elsewhere leaves the others chosen."""

    def __init__(self, root: pathlib.Path, seed: int, without: frozenset = frozenset()):
        """`without`: keys of faults that are never chosen."""
        self._root, self._seed, self._without = root, seed, without
        self._waiting = {}

    def _rank(self, fault: Fault) -> str:
        return hashlib.sha256(f"{self._seed} {fault.key()}".encode()).hexdigest()

    def next(self, stratum: str, kind: str) -> Fault | None:
        """The next candidate, never twice; of another kind where this one has no more."""
        for other in (kind, *KINDS):
            if (stratum, other) not in self._waiting:
                made = [fault for path in files(self._root, stratum)
                        for fault in candidates(stratum, other, path, (self._root / path).read_text(encoding="utf-8"))]
                self._waiting[stratum, other] = sorted((fault for fault in made if fault.key() not in self._without),
                                                       key=self._rank, reverse=True)
            if self._waiting[stratum, other]:
                return self._waiting[stratum, other].pop()
        return None


def deal(count: int) -> list[tuple[str, str]]:
    """The stratum and kind of each of this number of faults."""
    strata = list(STRATA)
    return [(strata[i % len(strata)], KINDS[(i + i // len(strata)) % len(KINDS)]) for i in range(count)]
