#!/usr/bin/python3
"""Plants faults in the sources, one at a time, and says which test of which command sees each.

A fault is one line: a swapped comparison, an index or a bound off by one, a line dropped (faults/choose.py). One that does
not compile or compiles to the same code is not planted, nor what equivalent_faults.json says has no meaning: the next
candidate takes its place. Faults are planted in a copy of the repository, never in the files you edit.

    tools/plant_faults.py --list                 the faults, without planting
    tools/plant_faults.py                        all of them, for hours; again with --resume goes on
    tools/plant_faults.py --only server/wire --count 3
"""

import argparse
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from faults import choose, run  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
EQUIVALENT = pathlib.Path(__file__).resolve().parent / "equivalent_faults.json"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def make_tree(folder: pathlib.Path, build: pathlib.Path, jobs: int) -> None:
    """A work tree of this commit with everything that the tests need."""
    if not folder.exists():
        say(f"making {folder}, a work tree of HEAD")
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", folder], check=True)
    if not (build / "build.ninja").exists():
        subprocess.run(["cmake", "--preset", "test", "-B", build, "-G", "Ninja"], cwd=folder, check=True,
                       stdout=subprocess.DEVNULL)
        say(f"building everything in {build}")
        subprocess.run(["cmake", "--build", build, "-j", str(jobs)], check=True, stdout=subprocess.DEVNULL)


def new_chooser(root: pathlib.Path, seed: int) -> choose.Chooser:
    """Without the faults that have no meaning."""
    return choose.Chooser(root, seed, frozenset(
        entry["fault"] for entry in json.loads(EQUIVALENT.read_text(encoding="utf-8"))))


def shown(fault: choose.Fault) -> str:
    after = fault.after.strip() or "(dropped)"
    return f"{fault.path}:{fault.line} [{fault.stratum}, {fault.kind}]\n      {fault.before.strip()}\n   -> {after}"


def summary(results: list[dict], unsound: dict) -> str:
    """The table and the counts."""
    lines = ["  # fault                                              seen by", ""]
    for number, result in enumerate(results, 1):
        fault = choose.Fault(**result["fault"])
        seen = f"{result['command']}: {result['seen']}" if result["seen"] else "NOTHING"
        lines.append(f"{number:3} {shown(fault)}\n   => {seen} ({result['seconds']} s)")
    for name in sorted(unsound):
        lines.append(f"not counted, it fails without a fault: {name}")
    by_test = sum(result["command"] == run.TEST for result in results)
    both = sum(bool(result["seen"]) for result in results)
    return "\n".join([*lines, "", f"{by_test} of {len(results)} by {run.TEST}, {both} by {' and '.join(run.COMMANDS)}"])


def plant_all(search: run.Search, new_chooser, wanted: list, kept: dict, save) -> list[dict]:
    """Plants what has no outcome yet, until each fault was seen by a test that passes without it or by none."""

    def plant(chooser: choose.Chooser, turn: tuple[str, str]) -> dict | None:
        while fault := chooser.next(*turn):
            if fault.key() not in kept["outcomes"]:
                say(shown(fault))
                kept["outcomes"][fault.key()] = search.plant(fault)
                save()
            outcome = kept["outcomes"][fault.key()]
            if "skipped" not in outcome:
                say(f"   => {outcome['seen'] or 'NOTHING'}")
                return {"fault": dataclasses.asdict(fault), **outcome}
            say(f"   => not planted: {outcome['skipped']}")
        return None

    while True:
        chooser = new_chooser()
        results = [plant(chooser, turn) for turn in wanted]
        saw = {result["test"] for result in results if result and result["test"]}
        search.check(saw - set(kept["sound"]))
        unsound = saw & kept["unsound"].keys()
        kept["sound"] = sorted((saw | set(kept["sound"])) - unsound)
        kept["outcomes"] = {key: outcome for key, outcome in kept["outcomes"].items()
                            if outcome.get("test") not in unsound}
        save()
        if not unsound:
            return list(filter(None, results))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="another seed, other faults (default: 1)")
    parser.add_argument("--count", type=int, default=30, help="how many (default: 30)")
    parser.add_argument("--only", action="append", choices=choose.STRATA, metavar="STRATUM",
                        help=f"of those that --count deals, the ones of: {', '.join(choose.STRATA)}; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the faults that would be planted, and end")
    parser.add_argument("--tree", type=pathlib.Path, default=ROOT / "build-faults",
                        help="the copy of the repository; made where it is missing (default: build-faults)")
    parser.add_argument("--build", type=pathlib.Path, help="its build (default: build in it)")
    parser.add_argument("--results", type=pathlib.Path, help="where results are kept (default: faults.json in the build)")
    parser.add_argument("--resume", action="store_true", help="keep the results that are there")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="of the build")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the file gets its own text back

    tree = arguments.tree.resolve() if not arguments.list else ROOT
    build = (arguments.build or tree / "build").resolve()
    # One stratum after the other: less is built.
    wanted = sorted((turn for turn in choose.deal(arguments.count) if not arguments.only or turn[0] in arguments.only),
                    key=lambda turn: list(choose.STRATA).index(turn[0]))
    if arguments.list:
        chooser = new_chooser(tree, arguments.seed)
        for fault in filter(None, (chooser.next(*turn) for turn in wanted)):
            print(shown(fault))
        return 0

    make_tree(tree, build, arguments.jobs)
    kept_in = arguments.results or build / "faults.json"
    kept = {"outcomes": {}, "sound": [], "unsound": {}}
    if arguments.resume and kept_in.exists():
        kept = json.loads(kept_in.read_text())
    search = run.Search(run.Tree(tree, build, arguments.jobs), kept["unsound"], say)
    results = plant_all(search, lambda: new_chooser(tree, arguments.seed), wanted, kept,
                        lambda: kept_in.write_text(json.dumps(kept, indent=1)))
    print(json.dumps(results, indent=1) if arguments.json else summary(results, kept["unsound"]))
    return 0 if all(result["seen"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
