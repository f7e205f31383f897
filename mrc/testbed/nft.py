# SPDX-License-Identifier: Apache-2.0
"""Runs nftables scripts in several namespaces at once."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from mrc.errors import NetlinkError
from mrc.linux import netns, programs

Ready = Callable[[], None]

_AT_ONCE = 32


def apply(scripts: Mapping[str, str], ready: Ready | None = None) -> None:
    """Run one script per namespace, each as one transaction; without `ready` only some at once.

    Calls `ready` when every nft runs and waits for its script, and sends the scripts when it
    returns. Raises NetlinkError for the first script that nft refuses, after all have ended.
    """
    if ready is not None:
        _run(["-f", "-"], scripts, ready)
        return
    for some in _some(scripts):
        _run(["-f", "-"], some)


def dropped(namespaces: Iterable[str]) -> dict[str, dict[str, list[int]]]:
    """Namespace -> IPv6 table -> packets counted by each of its rules, in the order of the rules.

    Raises NetlinkError.
    """
    return {
        namespace: _counted(json.loads(text))
        for some in _some(dict.fromkeys(namespaces, ""))
        for namespace, text in _run(["-j", "list", "ruleset", "ip6"], some).items()
    }


def _some(scripts: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Parts of the scripts: each process takes three descriptors."""
    each = iter(scripts.items())
    while some := dict(islice(each, _AT_ONCE)):
        yield some


def _counted(listed: Mapping[str, list[dict[str, dict[str, object]]]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for rule in (each["rule"] for each in listed["nftables"] if "rule" in each):
        expressions = rule["expr"]
        assert isinstance(expressions, list)
        counts = [each["counter"]["packets"] for each in expressions if "counter" in each]
        found.setdefault(str(rule["table"]), []).extend(counts)
    return found


def _run(
    arguments: list[str], scripts: Mapping[str, str], ready: Ready | None = None
) -> dict[str, str]:
    """`scripts`: namespace -> standard input of nft there. Returns namespace -> its output."""
    running = []
    try:
        for namespace, script in scripts.items():
            with netns.inside(namespace):
                running.append((namespace, script, _start(arguments)))
        if ready is not None:
            ready()
    finally:
        answers = [
            (namespace, process.communicate(script), process.returncode)
            for namespace, script, process in running
        ]
    for namespace, (_, complaint), code in answers:
        if code != 0:
            reason = complaint.strip().splitlines()[0] if complaint.strip() else f"exit code {code}"
            raise NetlinkError(f"nft in {namespace}: {reason}")
    return {namespace: text for namespace, (text, _), _ in answers}


def _start(arguments: list[str]) -> subprocess.Popen[str]:
    (program,) = programs.require("nft")
    pipe = subprocess.PIPE
    # In a process group of its own: ^C at the terminal must not interrupt a change.
    return subprocess.Popen(
        [program, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True, process_group=0
    )
