# SPDX-License-Identifier: Apache-2.0
"""Runs seeds of one kind of scenario: `python -m virtual.sweep connect FIRST COUNT [-v]`.

Each seed runs twice and must end the same way at the same time. `tools/sweep` runs many.
"""

from __future__ import annotations

import gc
import importlib
import logging
import sys
import tempfile
import traceback
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

from virtual.world import Audit, World, complaints

KINDS = ("agent", "connect", "copy", "end", "group", "perf", "strangers")


def run_once(kind: str, seed: int) -> tuple[Audit, str]:
    """One run; the second value names all of it that must repeat."""
    scenario = importlib.import_module(f"virtual.{kind}")
    audit = Audit()
    with (
        tempfile.TemporaryDirectory(prefix="mrc-virtual-") as folder,
        World(seed, Path(folder)) as world,
    ):
        try:
            scenario.run(world, audit)
        except Exception:
            audit.wrong.append(traceback.format_exc())
        carried = sum(link.carried for link in world.network.links())
        end = f"{world.agenda.now_ns} ns, {carried} packets, {world.network.dropped}"
    audit.wrong += world.complaints
    with complaints([], logs=False), redirect_stderr(StringIO()):
        del world
        while gc.collect():  # otherwise in the middle of the next run, where it closes descriptors
            pass
    return audit, end


def main() -> int:
    """The exit code: 1 if a seed failed."""
    kind, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    verbose = "-v" in sys.argv[4:]
    if verbose:
        logging.basicConfig(level=logging.DEBUG)
    importlib.import_module(f"virtual.{kind}")
    gc.freeze()  # the modules, which no collection has to look at
    failed = 0
    for seed in range(first, first + count):
        audit, end = run_once(kind, seed)
        again, again_end = run_once(kind, seed)
        if audit.story != again.story or (audit.repeats and end != again_end):
            audit.wrong.append(f"the second run differs: {again.story}, {again_end}")
        if verbose:
            print(f"seed {seed}: {end}", *audit.story, sep="\n  ")
        if audit.wrong:
            story = [] if verbose else [*audit.story, f"again: {kind} {seed} 1 -v"]
            print(f"{kind}: seed {seed} FAILED", *audit.wrong, *story, sep="\n  ", file=sys.stderr)
        failed += bool(audit.wrong)
    print(f"{kind}: seeds {first} to {first + count - 1}: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
