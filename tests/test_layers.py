# SPDX-License-Identifier: Apache-2.0
"""The layers of the C code: allowed includes, and headers that the engine must not use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from project_text import code_without_comments, grep, is_c, lines, report, text, under

MAX_CDEF_FUNCTIONS = 49

# Headers that the engine may include: no clock, thread, socket or file.
CORE_HEADERS = {
    "errno.h", "limits.h", "stdbool.h", "stddef.h", "stdint.h", "stdlib.h", "string.h",
}  # fmt: skip
CORE_HEADERS_OF = {
    "base.c": {"stdio.h"},  # a failed assertion prints its place
    "seal.c": {"endian.h"},
    "crc32.c": {"isa-l/crc.h", "zlib.h", "immintrin.h"},
}
CORE_FORBIDDEN_CALLS = ("rand", "random", "time", "clock_gettime", "getenv", "printf", "alloca")

# The layers of each folder, bottom to top. A module (a header and its source) includes modules of
# lower layers and of its own layer, without cycles. A layer that begins with "room/" is a folder
# inside its folder.
LAYERS: dict[str, list[str]] = {
    "core": [
        "base/ base bitmap counters keymap list port prng psn secret timer",
        "wire/ aead crc32 dscp hkdf icrc seal wire",
        "path/ probation rtt guard delivery reverse_queue ev cc cc_algorithm cc_delay cc_nscc"
        " plane",
        "shared/ arena cq mr probes services",
        "qp/ marked txwin rxwin requester responder qp peer share",
        "send/ burst quick spray windows requester_tx",
        "recv/ reverse responder_rx responder_tx sack_send",
        "loss/ health detect acks timeout requester_rx sack_take",
        "endpoint/ endpoint answer ev_probe port_status",
        "schedule commit",
        "engine verbs query",
        "turn",
    ],
    "msg": [
        "chains config frame little slots",
        "state",
        "match operations",
        "outgoing",
        "atomic",
        "incoming",
        "msg",
    ],
    "rc": ["record", "state", "outgoing", "incoming", "rc"],
    "io": [
        "cause ipsec_mb keys lineage messages pause sigbus spsc wake",
        "aead_ipsec_mb aead_libcrypto",
        "aead",
        "guards recorder socket udp",
        "udp_receive udp_send",
        "datapath_state udp_open",
        "ports",
        "commands",
        "datapath",
        "ctx",
    ],
    "program": [
        "api_values export polled runs",
        "agent",
        "link owner",
        "process say",
        "attach steer",
        "drive",
        "enter memory",
    ],
    "verbs": [
        "next status transition",
        "api",
        "api_context",
        "objects pass",
        "process",
        "async cq gather mr receives",
        "ev_cq srq",
        "complete",
        "rc",
        "post",
        "qp",
        "ibv_ops owner",
        "ibv_ex",
        "device",
        "ibv ibv_new ibv_pass mrc_api mrc_ctl",
    ],
    "cm": [
        "address process",
        "channel",
        "session",
        "device",
        "qp",
        "events",
        "connect endpoint id info",
    ],
    "ofi": [
        "object operation peer",
        "av counter eq mr",
        "cq",
        "connect",
        "transfer",
        "rma",
        "atomic",
        "ep info",
        "domain",
        "provider",
    ],
    "sim": [
        "crew frame gbn heap host_address link memory scenario sealer",
        "agenda audit flow mail queue tcp topology",
        "fabric_watch hop world",
        "record",
        "fabric",
        "fault host",
        "engines gbn_host tcp_host",
        "qps",
        "traffic",
        "sim_parts",
        "shards",
        "sim",
    ],
    "emu": ["ethernet ring", "outbox", "emu"],
    "pair": ["address", "datagram", "pair_fabric", "watch", "driver", "pair", "connect"],
}
# Folders that a folder may include, in addition to csrc itself.
BELOW: dict[str, set[str]] = {
    "core": set(),
    "msg": {"core"},
    "io": {"core", "msg"},
    "program": set(),
    "rc": {"core", "msg"},
    "verbs": {"core", "program", "rc"},
    "cm": {"program"},
    "ofi": {"program"},
    "sim": {"core"},
    "emu": {"core", "sim"},
    "pair": {"core", "sim"},
}


def place_of(folder: str) -> str:
    return f"tests/{folder}" if folder == "pair" else f"csrc/{folder}"


def in_layer(layer: str) -> list[str]:
    return [name for name in layer.split() if not name.endswith("/")]


def modules(folder: str) -> dict[str, list[Path]]:
    """The headers and sources of each module in a folder."""
    found: dict[str, list[Path]] = {}
    for path in under(place_of(folder)):
        if path.suffix in {".c", ".h"}:
            found.setdefault(path.stem, []).append(path)
    return found


def included(folder: str) -> Iterator[tuple[str, str, str, str]]:
    """The place, its module, and the folder and module of the project that it includes."""
    for module, paths in modules(folder).items():
        for path in paths:
            for number, line in enumerate(lines(path), 1):
                header = re.match(r'\s*#\s*include\s+"(?:(\w+|\.\.)/(?:\w+/)?)?(\w+)\.\w+"', line)
                if header:
                    yield f"{path}:{number}", module, header[1] or folder, header[2]


@pytest.mark.parametrize("folder", LAYERS)
def test_layers__hold_every_module(folder: str) -> None:
    placed = {
        f"{place_of(folder)}/{room}{module}"
        for layer in LAYERS[folder]
        for room in [layer.split()[0] if "/" in layer else ""]
        for module in in_layer(layer)
    }
    assert placed == {
        str(path.with_suffix("")) for paths in modules(folder).values() for path in paths
    }


@pytest.mark.parametrize("folder", LAYERS)
def test_layers__are_included_downwards(folder: str) -> None:
    level = {module: i for i, layer in enumerate(LAYERS[folder]) for module in in_layer(layer)}
    arrows = [
        (place, module, other)
        for place, module, where, other in included(folder)
        if where == folder and other in level and other != module
    ]
    report([
        f"{place}: {module} includes {other}, which is above it"
        for place, module, other in arrows
        if level[module] < level[other]
    ])  # fmt: skip
    graph = {module: {other for _, one, other in arrows if one == module} for module in level}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        report([" -> ".join(error.args[1])])


@pytest.mark.parametrize("folder", BELOW)
def test_layers__folders_include_those_below(folder: str) -> None:
    report([
        f"{place}: includes {where}/{module}"
        for place, _, where, module in included(folder)
        if where not in {*BELOW[folder], folder, "csrc"} and module not in {"messages", "mrc"}
    ])  # fmt: skip


def test_layers__are_drawn_in_architecture() -> None:
    drawing = text(Path("ARCHITECTURE.md")).split("includes point down only:\n\n```\n")[1]
    rows = [line for line in drawing.split("\n```")[0].splitlines() if not line.startswith(" ")]
    drawn = [re.split(r"\s{2,}", row)[0].split() for row in reversed(rows)]
    assert [sorted(row) for row in drawn] == [sorted(layer.split()) for layer in LAYERS["core"]]


def c_declarations(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Line and name of every function that a file declares or (True) defines for others."""
    code = re.sub(r"^#.*(\\\n.*)*", "", code_without_comments(path), flags=re.MULTILINE)
    depth, start = 0, 0
    for place, char in enumerate(code):
        if depth == 0 and char in ";{":
            head = re.search(r"^(?!\s*static\b)[\w\s*]+[\s*](mrc_\w+)\([^{;]*$", code[start:place])
            if head:
                line = code.count("\n", 0, start + head.start(1)) + 1
                yield line, head[1], char == "{"
        depth += (char == "{") - (char == "}")
        if depth == 0 and char in ";}":
            start = place + 1


@pytest.mark.parametrize("folder", LAYERS)
def test_functions__are_defined_beside_their_header(folder: str) -> None:
    """No module declares a function of another module: that would hide an include upwards."""
    offenders = []
    for paths in modules(folder).values():
        places = {
            (path.suffix, defined): {name: f"{path}:{line}" for line, name, is_defined in found
                                     if is_defined == defined}
            for path in paths
            for found in [list(c_declarations(path))]
            for defined in (False, True)
        }  # fmt: skip
        defined = places.get((".c", True), {})
        for name, place in places.get((".h", False), {}).items():
            if name not in defined:
                offenders.append(f"{place}: {name} is defined elsewhere")
        for name, place in places.get((".c", False), {}).items():
            if name not in defined:
                offenders.append(f"{place}: {name} is a function of another module")
    report(offenders)


def test_public_functions__are_those_of_the_top_layer() -> None:
    """csrc/mrc.h has no source of its own: the top layer of the core and csrc/io implement it."""
    tops = [f"csrc/core/{module}.c" for module in in_layer(LAYERS["core"][-2])]
    defined = {
        name
        for path in (*map(Path, tops), *under("csrc/io"))
        if path.suffix == ".c"
        for _, name, is_defined in c_declarations(path)
        if is_defined
    }
    declared = {name for _, name, _ in c_declarations(Path("csrc/mrc.h"))}
    assert declared and declared <= defined, declared - defined


def test_core__includes_nothing_of_the_world() -> None:
    offenders = []
    for path in filter(is_c, under("csrc/core", "csrc/mrc.h")):
        allowed = CORE_HEADERS | CORE_HEADERS_OF.get(path.name, set())
        for number, line in enumerate(lines(path), 1):
            header = re.match(r"\s*#\s*include\s+<([^>]+)>", line)
            if header and header[1] not in allowed:
                offenders.append(f"{path}:{number}: includes <{header[1]}>")
            header = re.match(r'\s*#\s*include\s+"(io|sim|emu|pair)/', line)
            if header:
                offenders.append(f"{path}:{number}: includes upwards: {line.strip()}")
    report(offenders)


def test_core__calls_nothing_of_the_world() -> None:
    calls = re.compile(rf"(?<![\w.>])({'|'.join(CORE_FORBIDDEN_CALLS)})\s*\(")
    offenders = []
    for path in filter(is_c, under("csrc/core")):
        for number, line in enumerate(code_without_comments(path).splitlines(), 1):
            if path.suffix != ".def" and calls.search(line):
                offenders.append(f"{path}:{number}: {line.strip()}")
    report(offenders)


def test_atomics__only_where_two_contexts_meet() -> None:
    """Rings between two threads or with the kernel, who sleeps, the table that a signal handler
    reads, the count of lines that any thread prints, when a program has polled, and memory that
    ATOMICs of peers change.
    """
    meet = {"atomic", "messages", "polled", "rc", "say", "spsc", "ring", "sigbus", "wake"}
    elsewhere = (path for path in filter(is_c, under("csrc")) if path.stem not in meet)
    used = r"\b_Atomic\b|__atomic_|__sync_|\batomic_(?!cap)|stdatomic|\bvolatile\b"
    report(grep(used, elsewhere))


def test_cdef__stays_narrow() -> None:
    headers = [
        code_without_comments(Path("csrc", name)) for name in ("info.h", "mrc.h", "messages.h")
    ]
    functions = re.findall(r"\b(mrc_\w+)\(", "".join(headers))
    assert len(functions) == len(set(functions))
    assert 0 < len(functions) < MAX_CDEF_FUNCTIONS
