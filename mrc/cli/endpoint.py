# SPDX-License-Identifier: Apache-2.0
"""Options about the endpoint that a subcommand opens, and their settings: interfaces and UDP port,
who may view it, who its peer must be, and how this user proves himself.

Without an option about the peer a command encrypts and knows its peers by their keys, as ssh does.
Processes of this user on this host, a test bed, --insecure and $MRC_INSECURE do without.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
import socket
import sys
import termios
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import mrc
from mrc import limits, versions
from mrc.cli.arguments import add, listening_address
from mrc.cli.output import Output, UsageError
from mrc.connect import proofs
from mrc.connect.identity import AllowedPeers
from mrc.connect.parse import Destination, shown
from mrc.connect.security import Commands, Security
from mrc.enums import Seal
from mrc.errors import ConfigError, MrcError
from mrc.fabric.hostconfig import HostConfig
from mrc.linux import system
from mrc.linux.secret import Secret
from mrc.units import parse_time

if TYPE_CHECKING:
    from mrc.aio.context import Context

T = TypeVar("T")


# ---- The endpoint --------------------------------------------------------------------------------


_OPTIONS = f"""
-B, --interface IFACE...  use only this interface (name or address); repeat it for each interface
                          [all]. wwan0:backup carries data only while no other does, wwan0:50 half
                          of what the busiest one does: -B eth0 -B wwan0:backup. An IPv6 address
                          with such a weight is in brackets: [2001:db8::1]:backup
--udp-port PORT           UDP port that peers send to, for a firewall that must know it
                          [{limits.UDP_PORT} if it is free, else a random port]
-v, --verbose             also print the parameters of the QP and the changes of its paths
"""


def add_endpoint_options(parser: Any, *names: str) -> None:
    """Adds `--interface`, also under other `names`, `--udp-port` and `--verbose`."""
    add(
        parser,
        _OPTIONS.replace("--interface", " ".join(("--interface", *names))),
        interface={"dest": "interfaces"},
        udp_port={"type": 65535, "what": "a port number", "default": 0},
    )


def add_bins_option(parser: Any, default: str, text: str) -> None:
    """`--bins [WIDTH]`: `args.bins` is in nanoseconds, and 0 without the option."""
    most = f"doubled when more than {limits.MAX_BINS} bins are needed"
    told = f"--bins WIDTH  {text} [{default}; {most}]"
    add(
        parser,
        told,
        bins={"type": _bin_width, "nargs": "?", "const": _bin_width(default), "default": 0},
    )


def _bin_width(text: str) -> int:
    width_ns = parse_time(text)
    if width_ns < limits.MIN_BIN_NS:
        raise ValueError(f"{text!r} is less than 1us")
    return width_ns


def add_engines(parser: Any) -> None:
    """Adds `--engines`, for commands with several QPs."""
    line = (
        "--engines N  run N datapath threads, each with a UDP port of its own (from --udp-port on),"
        " and spread the QPs over them [1]"
    )
    add(parser, line, engines={"type": limits.MAX_ENGINES, "default": 1})


def add_listening(parser: Any, port_help: str) -> None:
    """Adds `--port` and `--bind`."""
    lines = (
        f"--port PORT     {port_help} [%(default)s]\n"
        "--bind ADDRESS  listen on this address of this host only, for TCP [every address]"
    )
    add(parser, lines, port={"default": versions.TCP_PORT})


def endpoint_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of ContextConfig."""
    found = {"interfaces": tuple(dict.fromkeys(args.interfaces)), "udp_port": args.udp_port}
    return {**found, "sockets": mrc.config.Sockets(engines=getattr(args, "engines", 1))}


# ---- Views ---------------------------------------------------------------------------------------


_METRICS = """
--metrics [ADDRESS:]PORT  serve Prometheus metrics at this address; without ADDRESS at 127.0.0.1
"""
_TOP = """
--top  let anybody who can reach the TCP port view this endpoint with mrc top HOST: its peers, paths
       and traffic
"""


def add_view_options(parser: Any, *, listens: bool) -> None:
    """Adds `--metrics`, and `--top` for a command that listens on a TCP port."""
    add(parser, _METRICS, metrics={"type": listening_address})
    if listens:
        add(parser, _TOP)
    else:
        parser.set_defaults(top=False)


def view_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of ContextConfig. The user that runs the command may always view its endpoint."""
    return {
        "program": args.prog,
        "local_view": True,
        "remote_view": args.top,
        "metrics": args.metrics,
    }


def announce(out: Output, ctx: Context) -> None:
    """Prints the URL of the metrics."""
    if ctx.config.metrics is not None:
        address = ctx.config.metrics[0]
        name = f"[{address}]" if ":" in address else address
        out.note(f"metrics at http://{name}:{ctx.metrics_port}/metrics")


# ---- Trust ---------------------------------------------------------------------------------------


CODE = "MRC_CODE"
INSECURE = "MRC_INSECURE"
_OTHERS = (
    "give --code (a one-time code for one peer), --allow FINGERPRINT (its mrc key), --secret FILE,"
    " --ca FILE, or --insecure for everybody without encryption"
)
ALLOW = """
--allow FINGERPRINT|FILE...  let in peers with this key (mrc key), this SPIFFE name, or one in this
                             file; repeatable [~/.config/mrc/allowed if it exists]
"""
PEER = """
--peer FINGERPRINT  key or SPIFFE name that the other host must have [as in
                    ~/.config/mrc/known_hosts, else you are asked]
"""
OPTIONS = f"""
--secret FILE    file of 32 random bytes that both hosts have: mrc key --secret FILE makes one
--ca FILE        certificates of the authority (PEM)
--cert FILE      certificate of this host (PEM)
--key FILE       its key (PEM)
--identity FILE  file of this user's key [$MRC_IDENTITY, else ~/.config/mrc/identity.pem]
--seal           how packets are protected: encrypted, authenticated, or not [aead]; the stronger
                 wish of both hosts holds
--insecure       neither encrypt nor ask who the peer is; also ${INSECURE}=1, between processes of
                 one user on one host, and in a test bed
"""


def add_trust_options(
    parser: Any, *, listens: bool, connects: bool = True, prints: str = "with --server"
) -> None:
    """Adds the options of a command that listens, connects, or does both; `prints`: when the latter
    prints a code.
    """
    parser.check = _check_no_words
    group = parser.add_argument_group("trust (mrc/connect/trust.md)")
    add(group, f"--code  {_code_help(prints, listens=listens, connects=connects)}")
    if listens:
        add(group, ALLOW)
    if connects:
        add(group, PEER, peer={"default": ""})
    files = {name: {"type": Path} for name in ("secret", "ca", "cert", "key", "identity")}
    add(group, OPTIONS, seal={"choices": [seal.name.lower() for seal in Seal]}, **files)


def _check_no_words(line: Sequence[str]) -> None:
    """Raises ValueError if --code has words: without this, argparse takes them for another argument
    and reports a missing file or host.
    """
    line = line[: line.index("--")] if "--" in line else line
    for at, word in enumerate(line, 1):
        following = (line[at : at + 1], line[at : at + proofs.CODE_WORDS])
        if word.startswith("--code=") or (word == "--code" and any(map(_is_code, following))):
            raise ValueError(
                "--code takes no words: it asks for them, or prints them at the listening host;"
                f" scripts set ${CODE}"
            )


def _is_code(line: Sequence[str]) -> bool:
    try:
        proofs.normal_code(" ".join(line))
    except ValueError:
        return False
    return True


def _code_help(when: str, *, listens: bool, connects: bool) -> str:
    prints = "print a one-time code, which lets one peer in"
    asks = (
        f"ask for the one-time code of the other host, or take it from ${CODE}; on a terminal you"
        " are asked without this too"
    )
    return (
        f"{when}: {prints}; else: {asks}" if listens and connects else (prints if listens else asks)
    )


def connecting(
    args: argparse.Namespace, host: str, port: int, *, peer_runs: str, what: str = ""
) -> dict[str, Any]:
    """The fields of ContextConfig for a command that connects to `host`, where `peer_runs` listens.

    `what`: the arguments that the command needs before the host.
    """
    explicit = args.code or args.secret or args.ca or args.peer or args.identity
    if args.insecure or (not explicit and _is_exempt()):
        return _plain(args)
    system.leave_out_of_cores()
    peer = args.peer
    if peer and not args.ca:
        peer = _checked(args, AllowedPeers.fingerprint, peer, "--peer")
    user = Question() if _attended() else None
    security = Security(
        identity=args.identity,
        peer=peer,
        plain_loopback=not explicit and args.seal in (None, "none"),
        ask=user.about_host if user else None,
        ask_code=user.for_code if user else None,
        secret=_secret(args),
        code=_known_code(args) if args.code else "",
        authority=_authority(args),
        commands=Commands(peer_runs, f"{args.prog}{what} {Destination(host, port)}"),
    )
    return {"security": security, "seal": _seal(args)}


def this_host(port: int) -> str:
    """This host in a command of another host."""
    return str(Destination(socket.gethostname(), port)) if port else "HOST:PORT"


def listening(
    args: argparse.Namespace,
    out: Output,
    commands: Commands,
    *,
    asks: bool = False,
    local: bool = False,
    connects: bool = False,
) -> dict[str, Any]:
    """The fields of ContextConfig for a command that listens; `commands` are those of both ends.

    Without options, a command that `asks` lets everybody connect and asks a user at the terminal
    about those who are not in the user's file of allowed peers; others print a one-time code
    there. Without a terminal, a `local` command serves processes of this host. One that `connects`
    too may have the code of the other host, which lets nobody in here.
    """
    explicit = args.code or args.secret or args.ca or args.allow or args.identity
    if args.insecure or (not explicit and _is_exempt()):
        return _plain(args)
    system.leave_out_of_cores()
    allow, code, has_theirs = _allow(args), "", connects and bool(os.environ.get(CODE))
    authority, secret = _authority(args), _secret(args)
    closed = not (allow or args.code or authority or secret)
    attended = _attended()
    asks = asks and attended and not (args.allow or args.code or authority or secret)
    if closed and not attended and not local:
        raise UsageError(args.prog, f"nobody may connect: {_OTHERS}; see {args.prog} --help")
    if closed and not attended:
        out.note(f"only processes of this user on this host may connect; for others {_OTHERS}")
    elif args.code or (closed and not asks):
        # Printed also under --quiet. A code that is given could be guessed at each start.
        code = _known_code(args) if has_theirs else proofs.new_code()
        if not has_theirs:
            out.warn(f"one-time code: {code}")
            out.warn(f"on the other host run: {commands.connects} --code")
    security = Security(
        identity=args.identity,
        allow=allow,
        allow_any=asks,
        plain_loopback=not explicit,
        secret=secret,
        code=code,
        lets_in_by_code=not has_theirs,
        authority=authority,
        commands=commands,
    )
    if closed or allow:
        out.note(f"this host is {security.load_identity().fingerprint}")
    return {"security": security, "seal": _seal(args)}


def _allow(args: argparse.Namespace) -> tuple[str, ...]:
    """Who is let in by his key: as the options say, or the user's file."""
    entries = tuple(args.allow)
    with suppress(ConfigError, OSError):  # this user has no home folder, or may not open it
        if not entries and (default := AllowedPeers().path).exists():
            entries = (str(default),)
    try:
        AllowedPeers.named(entries)
    except ConfigError as error:
        raise UsageError(args.prog, f"--allow: {error}") from None
    return entries


def _plain(args: argparse.Namespace) -> dict[str, Any]:
    if args.seal not in (None, "none"):
        raise UsageError(args.prog, f"--seal {args.seal}: not with --insecure")
    return {"security": None}


def _is_exempt() -> bool:
    """In a test bed, and where the environment says so."""
    if os.environ.get(INSECURE, "0") not in ("", "0"):
        return True
    config = HostConfig.load(os.environ)
    return config is not None and config.security == "none"


def _seal(args: argparse.Namespace) -> Seal | None:
    return Seal[args.seal.upper()] if args.seal else None


def _secret(args: argparse.Namespace) -> bytes | Secret:
    if args.secret is None:
        return b""
    try:
        return mrc.load_secret(args.secret)
    except ConfigError as error:
        raise UsageError(args.prog, f"--secret: {error}") from None


def _authority(args: argparse.Namespace) -> mrc.Authority | None:
    files = (args.ca, args.cert, args.key)
    if not any(files):
        return None
    if not all(files):
        raise UsageError(args.prog, f"--ca, --cert, --key: give all three; see {args.prog} --help")
    return mrc.Authority(*files)


def _checked(args: argparse.Namespace, check: Callable[[str], str], text: str, option: str) -> str:
    try:
        return check(text)
    except ValueError as error:
        raise UsageError(args.prog, f"{option}: {error}") from None


def _known_code(args: argparse.Namespace) -> str:
    """The code that the other host has printed: from the environment, or typed."""
    code = os.environ.get(CODE, "")
    if not code:
        typed = _hidden_line("one-time code of the other host: ")
        if typed is None:
            raise UsageError(args.prog, f"--code: there is no terminal to ask: set ${CODE}")
        code = typed
    return _checked(args, proofs.normal_code, code, "--code")


# ---- Whether a command tries again to connect ----------------------------------------------------


_WAIT = "--wait SECONDS  {}while no program listens there, try again for this time [%(default)g]"


def add_wait(parser: Any, who: str = "") -> None:
    """Adds `--wait`, see `Retry`; `who` has it, in the help."""
    add(parser, _WAIT.format(who), wait={"type": "PAUSE", "default": 0.0})


async def first_connected(
    args: argparse.Namespace, out: Output, work: Callable[[], Awaitable[T]]
) -> T:
    """The result of `work`, which connects first: while nothing listens there, it begins again for
    the time of `--wait`.
    """
    from mrc.connect.retry import Retry  # not to parse a command line

    with Retry(0.0, lambda trying: out.note(str(trying)), first=args.wait) as retry:
        while True:
            try:
                return await work()
            except MrcError as error:
                await retry.wait(error, connected=False, progress=False)


# ---- Questions: standard input may carry data, so /dev/tty is asked ------------------------------


_ANSWER_BYTES = 256


def _attended() -> bool:
    """Whether there is a user to ask."""
    if not sys.stderr.isatty():
        return False
    with _opened() as tty:
        return tty is not None


def _hidden_line(prompt: str) -> str | None:
    """A line that the terminal does not show while it is typed; None without a terminal."""
    with _opened() as tty:
        if tty is None:
            return None
    try:
        return getpass.getpass(prompt)
    except EOFError:
        return ""


@contextmanager
def _opened() -> Iterator[int | None]:
    """A descriptor of the terminal; None without one."""
    try:
        tty = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        yield None
        return
    try:
        yield tty
    finally:
        os.close(tty)


class Question:
    """Asks one question at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def about_host(self, host: str, fingerprint: str) -> bool:
        async with self._turn:
            question = f"{shown(host)} is {fingerprint}; trust it? [y/N] "
            return await ask(question) in ("y", "yes")

    async def for_code(self, host: str) -> str:
        with _opened() as tty, nullcontext() if tty is None else _hidden(tty):
            async with self._turn:
                return await ask(f"one-time code that {shown(host)} shows: ")


async def ask(question: str) -> str:
    """The answer in lower case, empty without a terminal; Ctrl-C ends the wait. The caller asks one
    question at a time.
    """
    with _opened() as tty:
        return "" if tty is None else await _typed_answer(tty, question)


@contextmanager
def _hidden(tty: int) -> Iterator[None]:
    """The terminal does not show what is typed."""
    before = termios.tcgetattr(tty)
    flags = list(before)
    flags[3] = flags[3] & ~termios.ECHO | termios.ECHONL
    termios.tcsetattr(tty, termios.TCSAFLUSH, flags)
    try:
        yield
    finally:
        termios.tcsetattr(tty, termios.TCSAFLUSH, before)


async def _typed_answer(tty: int, question: str) -> str:
    termios.tcflush(tty, termios.TCIFLUSH)  # keys pressed before the question do not answer it
    os.write(tty, question.encode())
    loop, answered, line = asyncio.get_running_loop(), asyncio.Event(), b""
    loop.add_reader(tty, answered.set)
    try:
        await answered.wait()
        line = os.read(tty, _ANSWER_BYTES)
    finally:
        loop.remove_reader(tty)
        if not line.endswith(b"\n"):
            os.write(tty, b"\n")
    return line.decode(errors="replace").strip().lower()
