# SPDX-License-Identifier: Apache-2.0
"""Looks for secrets in the memory of another process, and in what a core dump of it would hold."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from io import FileIO
from mmap import PAGESIZE
from pathlib import Path

from msgspec import Struct

_RANGE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r(.).. \S+ \S+ \S+ *(.*)")
_PIECE, _LONGEST = 1 << 16, 64  # bytes that are read at once, and of half a secret
_OF_THE_KERNEL = ("[vvar]", "[vvar_vclock]", "[vsyscall]")


class Range(Struct, frozen=True):
    """A range of memory that can be read."""

    begin: int
    end: int
    dumped: bool
    """core dumps hold it, unless the filter of the process leaves out all memory of its kind"""


class Found(Struct):
    """Names of secrets of which half was found, or more."""

    dumped: set[str]
    hidden: set[str]
    """where no core dump holds them"""


def ranges(pid: int) -> Iterator[Range]:
    """What a process may have written: not the text of its libraries."""
    found: re.Match[str] | None = None
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if begins := _RANGE.fullmatch(line):
            of_a_file = begins[4].startswith("/") and begins[3] != "w"
            found = None if of_a_file or begins[4] in _OF_THE_KERNEL else begins
        elif found and line.startswith("VmFlags:"):
            yield Range(int(found[1], 16), int(found[2], 16), "dd" not in line.split())
            found = None


def _read(memory: FileIO, at: int, end: int) -> bytes:
    """The content of a range. Guard pages, which glibc 2.42 has within a range, are 0."""
    content = bytearray()
    while at + len(content) < end:
        memory.seek(at + len(content))
        try:
            content += memory.read(end - at - len(content))
        except OSError:
            content += bytes(min(PAGESIZE, end - at - len(content)))
    return bytes(content)


def remains(pid: int, secrets: Mapping[str, bytes]) -> Found:
    """The secrets in the memory of a process."""
    halves = [
        (name, half)
        for name, secret in secrets.items()
        for half in (secret[: len(secret) // 2], secret[len(secret) // 2 :])
    ]
    found = Found(set(), set())
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for each in ranges(pid):
            for at in range(each.begin, each.end, _PIECE):
                content = _read(memory, at, min(at + _PIECE + _LONGEST, each.end))
                if content != bytes(len(content)):
                    names = {name for name, half in halves if half in content}
                    (found.dumped if each.dumped else found.hidden).update(names)
    return found
