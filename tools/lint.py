#!/usr/bin/env python3
"""Clang's checks of the C++ sources: its thread-safety analysis of every file of the product that can see a mutex (locks),
and clang-tidy (.clang-tidy) on the files that have changed (tidy). Prints what is wrong, and fails where something is.

Reads the compile commands of a configured build, whose generated headers must be there: `./dev lint` sees to both."""
import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRODUCT = ("base", "kernels", "model", "server", "client", "selfcheck")
# Beyond this number of files clang-tidy takes longer than the tests; the files that changed last are checked.
MOST_TIDY = 12
LAST = ("-1", "-m", "--first-parent")  # the last commit; of a merge, all that it brought
MUTEX = "absl/synchronization/mutex.h"
BATCH = 6
BATCHED = re.compile(r'^#include "(/[^"]+)"', re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def commands(build):
    """The words of each source's compile command, as clang takes them: {path from the root: [word]}. A source of a batch
    (cmake/unity.cmake) has the command of its batch. Where a source is compiled twice, the last counts: for CUDA sources
    that is the one for the emulator. nvcc's commands are left out."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        words = shlex.split(entry["command"])
        if any(word.endswith("nvcc") for word in words):
            continue
        start = next(i for i, word in enumerate(words) if word.startswith("-"))
        kept, skip = [], False
        for word, following in zip(words[start:], [*words[start + 1:], ""]):
            pair = word in ("-o", "-c") or (word == "-include" and "cmake_pch" in following)  # g++'s precompiled headers
            if not pair and not skip and not word.startswith("-W"):
                kept.append(word)
            skip = pair
        batch = BATCHED.findall(path.read_text()) if path.parent.name == "Unity" else [path]
        for source in map(pathlib.Path, batch):
            if source.is_relative_to(ROOT):
                found[source.relative_to(ROOT).as_posix()] = [*kept, str(source)]
    return found


@functools.cache
def includes(path):
    """The headers of the repository that a file includes, and MUTEX, itself or through others; and the file."""
    found = {path}
    for include in INCLUDE.findall((ROOT / path).read_text()):
        if (ROOT / include).is_file():
            found |= includes(include)
        elif include == MUTEX:
            found.add(include)
    return found


def git(*arguments):
    """The lines that git prints; none where it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, text=True, capture_output=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def changed():
    """Files that differ from the main branch, the latest change first; on the main branch itself those of the last
    commit."""
    paths = [line[3:] for line in git("status", "--porcelain", "--no-renames", "--untracked-files=all")]
    for main in ("origin/main", "main"):
        base = git("merge-base", "HEAD", main)
        if base:
            since = [f"{base[0]}..HEAD"] if base != git("rev-parse", "HEAD") else LAST
            return [*paths, *git("log", "--format=", "--name-only", *since)]
    return [*paths, *git("log", "--format=", "--name-only", *LAST)]


def tidy_files(known):
    """The sources that clang-tidy should look at: those that changed, and those beside a header that changed."""
    sources = (re.sub(r"\.h$", ".cc", path) for path in changed())
    return [path for path in dict.fromkeys(sources) if path in known and (ROOT / path).is_file()]


def run_all(title, jobs, files, command):
    """Runs a command for every file. Whether all went well."""
    start = time.monotonic()

    def run(path):
        done = subprocess.run(command(path), cwd=ROOT, text=True, capture_output=True, check=False)
        return path, done.returncode, done.stdout or done.stderr

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for path, code, output in pool.map(run, files):
            if code != 0:
                failed += 1
                print(f"{title}: {path}\n{output}", flush=True)
    print(f"{title}: {failed} of {len(files)} files fail ({time.monotonic() - start:.0f} s)", flush=True)
    return failed == 0


def check_locks(arguments, known):
    """Clang's thread-safety analysis, of what has changed since it found nothing. Files of one command are read together, for
    the headers that they share; where that fails, each alone."""
    found_clean = arguments.build / "clean-locks.json"
    clean = json.loads(found_clean.read_text()) if found_clean.is_file() else {}

    def state_of(path):
        texts = ((ROOT / file).read_text() for file in sorted(includes(path) - {MUTEX}))
        return hashlib.sha256("\n".join([*known[path], *texts]).encode()).hexdigest()

    state = {path: state_of(path) for path in known if path.split("/")[0] in PRODUCT and MUTEX in includes(path)}
    changed_files = [path for path in state if clean.get(path) != state[path]]

    def command(paths):
        included = [word for path in paths for word in ("-include", str(ROOT / path))]
        return ["clang++", *known[paths[0]][:-1], "-fsyntax-only", "-Wno-everything", "-Werror=thread-safety", *included,
                "-x", "c++", os.devnull]

    def is_clean(paths):
        return subprocess.run(command(paths), cwd=ROOT, capture_output=True, check=False).returncode == 0

    groups = {}
    for path in changed_files:
        groups.setdefault(tuple(known[path][:-1]), []).append(path)
    batches = [group[i:i + BATCH] for group in groups.values() for i in range(0, len(group), BATCH)]
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        alone = [path for batch, well in zip(batches, pool.map(is_clean, batches)) if not well for path in batch]
    print(f"thread safety: {len(state)} files, {len(changed_files)} of them new or changed; {len(alone)} are looked at alone")
    ok = run_all("thread safety", arguments.jobs, alone, lambda path: command([path]))
    if ok:
        found_clean.write_text(json.dumps(state))
    return ok


def check_tidy(arguments, known):
    """clang-tidy on the changed files, or on all."""
    files = [path for path in known if path.split("/")[0] in PRODUCT] if arguments.all else tidy_files(known)
    if len(files) > MOST_TIDY and not arguments.all:
        print(f"clang-tidy: of {len(files)} changed files the {MOST_TIDY} that changed last; --all: of every source")
        files = files[:MOST_TIDY]
    return run_all("clang-tidy", arguments.jobs, files,
                   lambda path: ["clang-tidy", "--quiet", path, "--", *known[path], "-w"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="the folder of the build")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="files at a time")
    parser.add_argument("--only", choices=("locks", "tidy"), help="one of the two checks")
    parser.add_argument("--all", action="store_true", help="clang-tidy on every source of the product")
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    known = commands(arguments.build)
    ok = arguments.only == "tidy" or check_locks(arguments, known)
    ok &= arguments.only == "locks" or check_tidy(arguments, known)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
