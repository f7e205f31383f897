# SPDX-License-Identifier: Apache-2.0
"""`mrc dissect`: prints the packets of a capture, and installs the dissector for Wireshark."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mrc import limits, products
from mrc.cli.arguments import add
from mrc.cli.output import Exit, Output, UsageError
from mrc.dissect import capture
from mrc.dissect.capture import CapturedFrame
from mrc.dissect.packet import Packet, UdpFlow
from mrc.errors import MrcError
from mrc.linux.system import write_whole
from mrc.results import Result, like
from mrc.units import counted


class Dissected(Result, frozen=True, kw_only=True):
    """One MRC packet of a capture."""

    seconds: float
    """When it was captured, since the first packet."""
    source: str
    """Inner source address."""
    destination: str
    """Inner destination address."""
    carrier: str | None
    """Outer destination address, the uSIDs of the path; null without SRv6."""
    ev: int
    """Entropy value: source port in the upper half, the low 16 bits of the flow label below."""
    ce: bool
    """Whether a switch has marked it, in its inner or outer header."""
    trimmed: bool
    """Whether a switch has cut it off behind its headers."""
    part: int
    """Its place in a captured burst, from 1."""
    parts: int
    """Packets in that burst."""
    type: str
    """Its opcode, by name."""
    bytes: int
    """Size of the UDP payload."""
    missing_bytes: int
    """Bytes at its end that the capture left out."""
    payload_bytes: int
    """Payload behind the headers, without padding."""
    headers: dict[str, dict[str, int]]
    """The fields of each header, by the specification's names; no encrypted immediate."""
    icrc_is_right: bool | None
    """Whether the ICRC is right; null for a packet without one: sealed, trimmed, not all captured
    or too short."""


HELP = "print the MRC packets of a capture, or of an interface; a dissector for Wireshark"
EXAMPLES = """\
examples:
  mrc dissect a.pcap                          a capture of tcpdump, tshark, or mrc testbed capture
  mrc dissect --verbose --count 1 a.pcap      all fields of the first packet
  mrc dissect --json a.pcap | jq .headers.SETH
  sudo mrc dissect --interface eth0           live, until ^C
  sudo mrc testbed exec h0 -- mrc dissect -i p1
  tcpdump -U -w - udp | mrc dissect -         the packets that tcpdump selects
  mrc dissect --readings a.pcap               how both sides read the specification
  mrc dissect --install                       Wireshark and tshark then know MRC
  tshark -X lua_script:$(mrc dissect --lua) -r a.pcap -Y mrc.expert.rtx
"""

AS_ROOT = (
    "Wireshark 4.4 and newer load no dissectors for root: "
    "run them as another user, or run unshare --user tshark"
)


SOURCES = """
file FILE                  pcap or pcapng file; - for standard input
-i, --interface INTERFACE  capture on this interface (requires root)
--install                  put the dissector into your plugin folder of Wireshark
--uninstall                remove it from there
--lua                      print where the dissector is
"""
OPTIONS = """
-p, --port PORT    UDP port that packets are sent to; may be repeated [4791, and what begins as MRC]
-c, --count COUNT  stop after COUNT packets [all]
-v, --verbose      print all fields of each packet
--readings         print the readings of MRC that the packets show, in place of the packets
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    add(source, SOURCES, file={"nargs": "?"})
    ports = {"type": 65535, "what": "a port number", "action": "append"}
    add(parser, OPTIONS, port=ports, count={"type": 1 << 62, "default": 0})
    Output.add_options(parser)


def run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    if args.lua or args.install or args.uninstall:
        if args.json:
            raise UsageError(args.prog, "--json: only for packets; see mrc dissect --help")
        return _plugin(args, out)
    if args.readings and args.interface is not None:
        raise UsageError(args.prog, "--readings: needs a capture in a FILE")
    if args.readings and not products.has(products.READINGS):
        raise UsageError(args.prog, "--readings: needs mrc conform, which this mrc lacks")
    if args.interface is not None:
        with capture.LiveCapture(args.interface) as live:
            try:
                _print(args, out, iter(live))
            finally:
                if lost := live.lost():
                    packets = counted(lost, "packet")
                    out.note(f"printing was too slow for {packets}: capture to a file instead")
        return Exit.OK
    frames = CapturedFrame.of_file(args.file)
    if args.file == "-":
        frames = capture.read(sys.stdin.buffer, "standard input")
    if args.readings:
        shown = products.load(products.READINGS)
        assert shown is not None
        found = shown.readings(frames, args.port)
        out.text("\n".join(shown.reading_lines(found)))
        out.result(found)
        if not found.packets:
            out.note(_none(args, ""))
    else:
        _print(args, out, frames)
    return Exit.OK


def _plugin(args: argparse.Namespace, out: Output) -> int:
    if args.lua:
        out.text(str(LUA))
    elif args.install:
        out.text(f"installed {install_dissector()}")
    else:
        out.text(f"removed {remove_dissector()}")
    if os.geteuid() == 0 and not args.uninstall:
        out.note(AS_ROOT)
    return Exit.OK


def _print(args: argparse.Namespace, out: Output, frames: Iterator[CapturedFrame]) -> None:
    start: float | None = None
    printed = seen = 0
    for seen, frame in enumerate(frames, 1):  # noqa: B007 - counted for the note
        start = frame.seconds if start is None else start
        for flow, packet, part, parts in frame.packets(args.port, limits.UDP_PORT):
            seconds = frame.seconds - start
            at = f" {part}/{parts}" if parts > 1 else ""
            line = f"{seconds:.6f} {flow.line()}{at} {packet.line(flow)}"
            more = f"\n{packet.field_lines()}" if args.verbose and packet.headers else ""
            out.text(line + more)
            out.result(_result(seconds, flow, packet, part, parts))
            printed += 1
            if printed == args.count:
                return
    if not printed:
        out.note(_none(args, f" among {seen}"))


def _none(args: argparse.Namespace, among: str) -> str:
    ports = f"to UDP port {', '.join(map(str, args.port))}" if args.port else "of MRC"
    return f"no packets {ports}{among}; --port selects another port"


def _result(seconds: float, flow: UdpFlow, packet: Packet, part: int, parts: int) -> Dissected:
    return like(
        Dissected,
        *(flow, packet),
        seconds=seconds,
        source=str(flow.source),
        destination=str(flow.destination),
        carrier=None if flow.carrier is None else str(flow.carrier),
        part=part,
        parts=parts,
        type=packet.kind if packet.headers else "too short",
        bytes=packet.size,
    )


# ---- The dissector for Wireshark -----------------------------------------------------------------


LUA = Path(__file__).parent / "mrc.lua"
_FOLDER = Path(".local", "lib", "wireshark", "plugins")  # where tshark is not there to ask


class PluginError(MrcError):
    """The dissector cannot be installed or removed."""


def plugin_folder() -> Path:
    """This user's folder of Lua plugins."""
    told = b""  # nothing if tshark is not installed or does not run
    with suppress(OSError, subprocess.TimeoutExpired):
        command = ["tshark", "-G", "folders"]
        told = subprocess.run(command, capture_output=True, check=False, timeout=30).stdout
    for line in os.fsdecode(told).splitlines():
        name, _, path = line.partition(":")
        if name == "Personal Lua Plugins" and path.strip():
            return Path(path.strip())
    return Path.home() / _FOLDER


def install_dissector() -> Path:
    """Copies the dissector to the plugin folder; returns its place."""
    place = plugin_folder() / LUA.name
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, LUA.read_bytes())
    except OSError as error:
        raise PluginError(f"{place}: {(error.strerror or str(error)).lower()}") from error
    return place


def remove_dissector() -> Path:
    """Removes it; returns its former place."""
    place = plugin_folder() / LUA.name
    try:
        place.unlink()
    except FileNotFoundError:
        raise PluginError(f"{place}: is not installed") from None
    except OSError as error:
        raise PluginError(f"{place}: {(error.strerror or str(error)).lower()}") from error
    return place
