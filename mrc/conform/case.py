# SPDX-License-Identifier: Apache-2.0
"""The form of cases: files of steps, parsed and checked before anything is sent; the cases that
come with mrc, and the numbers in them.

README.md describes the form. Numbers stay text in a case, because some depend on the device.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from itertools import product
from pathlib import Path

from msgspec import Struct, field

from mrc.conform import packets, readings
from mrc.conform.packets import OPCODE
from mrc.dissect.packet import Packet
from mrc.errors import BadFileError
from mrc.results import Result

SENT = {
    "at", "bytes", "fill", "path", "icrc", "short", "longer", "cut", "extra", "tclass", "has",
    "for", "probe_id", "delay", "count", *packets.RAW_FIELDS,
}  # fmt: skip
"""Of a sent packet, beside the fields of its headers: how it is made."""
SEEN = {
    "at", "bytes", "fill", "has", "lacks", "for", "path", "probe_id", "same_ev", "marked_ev",
    "plane", "within", "after_mark", "late_us",
}  # fmt: skip
"""Of an expected packet: what follows from its fields, and the time limit."""
CHECKS: dict[str, set[str]] = {
    "memory": {"at", "bytes", "fill"}, "immediates": set(), "completions": set(), "state": set(),
    "evs": set(), "flight": set(), "waits": {"psn", "growth"}, "share": {"psn", "since"},
}  # fmt: skip
ASKS = {
    "write": {"at", "bytes", "imm", "fill", "count"}, "wait": {"time"},
    "receive": {"psn", "limps", "plane", "late", "loses"},
}  # fmt: skip
_MARKS = (
    "why", "section", "reading", "psn", "device-psn", "needs", "peer", "nscc", "timeout",
)  # fmt: skip
NEEDS = ("planes", "ipv4", "psns")
PEER = ("mpr", "max_wimm", "dynamic_mpr")
NSCC = (
    "link_bps", "base_rtt_ns", "target_delay_ns", "max_cwnd", "fi", "eta",
    "adjust_period_threshold_ns", "adjust_bytes_threshold", "qa_threshold_ns", "md_threshold_ns",
    "qa_gate", "fi_scale", "gamma", "max_md_jump", "disable_qa",
)  # fmt: skip
"""OCP's names, and two of ours: `link_bps` and `md_threshold_ns`."""


class CaseError(BadFileError):
    """A case is written wrongly; the message names file and line."""


class Step(Struct, frozen=True):
    """One line of a case. `sign`: > sends, < expects, ! forbids, = checks the device, . asks it."""

    sign: str
    what: str
    fields: dict[str, str]
    line: str
    words: tuple[str, ...] = ()


class Choice(Struct, frozen=True):
    """Alternatives of a reading, of which the device follows one."""

    reading: str
    alternatives: tuple[tuple[str, Step], ...]
    line: str


class CaseText(Struct, frozen=True, kw_only=True):
    """One case."""

    name: str
    """Its name."""
    topic: str
    """The file that has it."""
    title: str
    """What a device must do."""
    why: str
    """Why."""
    section: str
    """Of MRC 1.0, as its readers cite it; empty: not known."""
    readings: tuple[str, ...]
    """The readings that it assumes."""
    text: str
    """Its lines."""


class Case(CaseText, frozen=True, kw_only=True):
    """What a device is asked, and what it must answer."""

    steps: tuple[Step | Choice, ...]
    psn: str = ""
    """The first PSN of the peer; empty: a random one."""
    device_psn: str = ""
    """The first PSN that the device is asked to use; empty: its own."""
    needs: tuple[str, ...] = ()
    peer: dict[str, str] = field(default_factory=dict)
    """Attributes of the judge in place of its usual ones."""
    nscc: dict[str, str] = field(default_factory=dict)
    """Parameters of NSCC that the device is asked to use; empty: its own congestion control."""
    timeout: int = 0
    """The exponent of the local ACK timeout that the device is asked to use; 0: any."""

    @property
    def writes(self) -> bool:
        """Whether the judge sends data to the memory of the device."""
        sent = (each for each in self.steps if isinstance(each, Step) and each.sign == ">")
        return any(
            each.what.startswith("WRITE") and each.fields.get("bytes") != "0" for each in sent
        )


class Cases(Result, frozen=True, kw_only=True):
    """The cases."""

    cases: tuple[CaseText, ...]
    """In the order of the files."""


def parse(text: str, topic: str) -> list[Case]:
    """The cases of a file. Raises CaseError."""
    cases: list[Case] = []
    named: dict[str, list[str]] = {}
    for number, block in _blocks(text):
        kind, _, name = block[0].partition(" ")
        try:
            if kind == "steps":
                name, lines = name.strip(), block[1:]
                if name in named or not lines:
                    raise ValueError(f"{name}: {'named twice' if lines else 'needs steps'}")
                whole = [line for line in lines if "{" not in line]  # {NAME}: read in its cases
                list(_expanded([f"case {name}", "", "why", "= state RTS", *whole], topic))
                named[name] = lines
                continue
            lines = [each for line in block[2:] for each in _lines(line, named)]
            cases += _expanded([*block[:2], *lines], topic)
        except ValueError as error:
            raise CaseError(f"line {number}: {error}") from None
    return cases


def _blocks(text: str) -> Iterator[tuple[int, list[str]]]:
    """The lines of each case, and of steps with a name, without comments; the number of the
    first.
    """
    block: list[str] = []
    start = 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(("case ", "steps ")):
            if block:
                yield start, block
            block, start = [], number
        if line.strip() and not line.startswith("#"):
            if not line.startswith(("case ", "steps ", "    ")) or (not block and line[0] == " "):
                raise CaseError(f"line {number}: a case begins with 'case NAME', its lines with"
                                f" four blanks: {line!r}")  # fmt: skip
            block.append(line)
    if block:
        yield start, block


def _lines(line: str, named: Mapping[str, list[str]]) -> list[str]:
    """The line, or the steps of which it has the name, as often as it says."""
    count, _, name = line.strip().rpartition(" ")
    is_name = name in named and re.fullmatch(r"([1-9][0-9]{0,2})?", count)
    return named[name] * int(count or 1) if is_name else [line]


def _expanded(block: list[str], topic: str) -> Iterator[Case]:
    """One case, or one for each combination of the values of its `each` lines."""
    axes: list[tuple[str, list[str]]] = []
    rest = []
    for line in block:
        if found := re.fullmatch(r"    each (\w+): (.+)", line):
            axes.append((found[1], found[2].split()))
        else:
            rest.append(line)
    for values in product(*(words for _, words in axes)):
        lines = rest
        for (name, _), word in zip(axes, values, strict=True):
            lines = [line.replace(f"{{{name}}}", word) for line in lines]
        suffix = "".join(f"-{value.lower()}" for value in values)
        yield _case([lines[0] + suffix, *lines[1:]], topic)


def _case(lines: list[str], topic: str) -> Case:
    marks: dict[str, list[str]] = {name: [] for name in _MARKS}
    steps: list[Step | Choice] = []
    name = lines[0].removeprefix("case ").strip()
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+_=-]*", name):
        raise ValueError(f"{name!r} is no name of a case")
    if len(lines) < 3:
        raise ValueError(f"{name}: needs a title and steps")
    for line in map(str.strip, lines[2:]):
        word, _, text = line.partition(" ")
        if word in marks:
            marks[word].append(text)
        elif word == "?":
            _add_choice(steps, text)
        else:
            steps.append(step(line))
    readings_ = " ".join(marks["reading"]).split()
    for each in readings_:
        readings.check(each)
    needs = tuple(" ".join(marks["needs"]).split())
    if not set(needs) <= set(NEEDS):
        raise ValueError(f"{name}: needs {needs}; known: {', '.join(NEEDS)}")
    if not marks["why"] or not steps:
        raise ValueError(f"{name}: needs a line 'why' and steps")
    return Case(
        name=name, topic=topic, title=lines[1].strip(), why=" ".join(marks["why"]),
        section=" ".join(marks["section"]), readings=tuple(readings_), steps=tuple(steps),
        text="\n".join(lines), psn="".join(marks["psn"]), device_psn="".join(marks["device-psn"]),
        needs=needs, peer=_settings(marks["peer"], PEER), nscc=_settings(marks["nscc"], NSCC),
        timeout=int("".join(marks["timeout"]) or "0"),
    )  # fmt: skip


def _settings(lines: list[str], known: Collection[str]) -> dict[str, str]:
    """NAME=NUMBER words of a mark."""
    found = dict(word.partition("=")[::2] for word in " ".join(lines).split())
    if wrong := sorted(set(found) - set(known)):
        raise ValueError(f"{wrong[0]!r} is none of {', '.join(known)}")
    return found


def _add_choice(steps: list[Step | Choice], text: str) -> None:
    """`C4-A ! NACK`: joins the choice before it if that is of the same reading."""
    name, _, line = text.partition(" ")
    reading, _, letter = name.partition("-")
    if letter or reading not in readings.BY_ID:  # without a letter: shows none of them
        readings.check(name)
    alternative = (letter, step(line))
    if alternative[1].sign not in "<!":
        raise ValueError(f"{text!r}: an alternative expects or forbids a packet")
    last = steps[-1] if steps else None
    if isinstance(last, Choice) and last.reading == reading:
        steps[-1] = Choice(reading, (*last.alternatives, alternative), last.line)
    else:
        steps.append(Choice(reading, (alternative,), f"? {reading}"))


def step(line: str) -> Step:
    """One step. Raises ValueError."""
    sign, *words = line.split()
    if sign not in set("><!=.") or not words:
        raise ValueError(f"{line!r} is no step")
    what, *rest = words
    fields = {}
    plain = []
    for word in rest:
        name, is_field, text = word.partition("=")
        if is_field:
            fields[name] = text
        else:
            plain.append(word)
    allowed = _allowed(sign, what, fields)
    if wrong := sorted(set(fields) - allowed):
        raise ValueError(f"{line!r}: {what} has no {', '.join(wrong)}")
    if plain and sign not in "=":
        raise ValueError(f"{line!r}: {plain[0]!r} is no field")
    return Step(sign, what, fields, line, tuple(plain))


def _allowed(sign: str, what: str, fields: Mapping[str, str]) -> set[str]:
    table = CHECKS if sign == "=" else ASKS if sign == "." else None
    if table is not None:
        if what not in table:
            raise ValueError(f"{what!r} is none of {', '.join(table)}")
        return table[what]
    if what == "any" and sign != ">":
        return SEEN
    if what not in OPCODE:
        raise ValueError(f"{what!r} is no packet")
    names = Packet.fields_of(what, ts="tx_timestamp" in fields or sign != ">")
    return names | (SENT if sign == ">" else SEEN)


# ---- Files of cases ------------------------------------------------------------------------------


FOLDER = Path(__file__).parent / "cases"


def load_cases(files: Sequence[Path] = ()) -> list[Case]:
    """The cases of these files; of none: all that come with mrc. Raises CaseError."""
    cases: list[Case] = []
    for file in files or sorted(FOLDER.glob("*.case")):
        try:
            cases += parse(file.read_text(), file.stem)
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise CaseError(f"{file}: {why.lower()}") from error
        except CaseError as error:
            raise CaseError(f"{file}: {error}") from None
    names = [case.name for case in cases]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise CaseError(f"two cases have the name {twice[0]}")
    return cases


def selected(cases: Sequence[Case], patterns: Sequence[str]) -> list[Case]:
    """The cases whose name or topic matches one of the patterns. Raises CaseError for a pattern
    that matches none.
    """
    if not patterns:
        return list(cases)
    for pattern in patterns:
        if not any(_matches(case, pattern) for case in cases):
            raise CaseError(f"no case matches {pattern!r}; mrc conform list shows them")
    return [case for case in cases if any(_matches(case, pattern) for pattern in patterns)]


def _matches(case: Case, pattern: str) -> bool:
    return fnmatch(case.name, pattern) or case.topic == pattern


# ---- Numbers -------------------------------------------------------------------------------------


PSNS = 1 << 24
_TERM = re.compile(r"([+-]?)(\w+)(?:([*/])(\w+))?")


def value(text: str, names: Mapping[str, int]) -> int:
    """A sum such as mpr-1, 4*1024 or -8388608. Raises ValueError."""
    if not re.fullmatch(r"[+-]?\w+([*/]\w+)?([+-]\w+([*/]\w+)?)*", text):
        raise ValueError(f"{text!r} is no number")
    total = 0
    for sign, word, operation, factor in _TERM.findall(text):
        term = _number(word, names)
        if operation:
            other = _number(factor, names)
            term = term * other if operation == "*" else term // max(1, other)
        total += -term if sign == "-" else term
    return total


def _number(word: str, names: Mapping[str, int]) -> int:
    if word in names:
        return names[word]
    try:
        return int(word, 0)
    except ValueError:
        known = ", ".join(sorted(names))
        raise ValueError(f"{word!r} is neither a number nor one of {known}") from None


def span(text: str, names: Mapping[str, int]) -> range:
    """3..7 is the numbers from 3 to 7; 3 is only itself. Raises ValueError."""
    first, dots, last = text.partition("..")
    start = value(first, names)
    return range(start, (value(last, names) if dots else start) + 1)


def members(text: str, names: Mapping[str, int]) -> Iterator[int]:
    """1,3..5 is 1, 3, 4 and 5. Raises ValueError."""
    for part in text.split(","):
        yield from span(part, names)


def after(psn: int, first: int) -> int:
    """How many PSNs `psn` is after `first`; negative: before."""
    return (psn - first + PSNS // 2) % PSNS - PSNS // 2


def psn_at(distance: int, first: int) -> int:
    """The PSN that many after `first`."""
    return (first + distance) % PSNS
