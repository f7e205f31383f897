# SPDX-License-Identifier: Apache-2.0
"""The command mrc: its parsers, exit codes, completion, programs that it becomes, and closed
descriptors.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import logging
import os
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from file_commands import MRC, listening, receiving
from ports import free_port
from printed import printed
from processes import loaded, terminal
from project_text import ROOT
from slowness import PATIENCE

from mrc import products
from mrc.cli.arguments import add
from mrc.cli.completion import EXAMPLES, SHELLS
from mrc.cli.main import main
from mrc.cli.output import (
    Exit,
    Interrupted,
    UsageError,
    cause,
    exit_code,
    format_table,
)
from mrc.cli.paths import _outcome
from mrc.cli.runner import become, refusal, run_async
from mrc.connect.parse import host_and_port
from mrc.enums import WcStatus
from mrc.errors import (
    CompletionError,
    ConfigError,
    ConnectError,
    MrcError,
    PathError,
    PeerGoneError,
    ResolveError,
)
from mrc.events import ProbeResult
from mrc.transfer.limits import FileError
from mrc.transfer.session import VerificationError
from mrc.units import scaled


@dataclass(frozen=True)
class Ended:
    """A command that ended: its exit code and what it printed."""

    returncode: int
    stdout: str
    stderr: str


Mrc = Callable[..., Ended]


@pytest.fixture
def mrc(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Mrc:
    """Runs a command line in this process."""
    monkeypatch.delenv("MRC_CONFIG", raising=False)
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)

    def run(*words: object, **environ: str) -> Ended:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        try:
            code = main([str(word) for word in words])
        except SystemExit as exit:  # argparse ends --help and --version this way
            code = int(exit.code or 0)
        printed = capsys.readouterr()
        return Ended(code, printed.out, printed.err)

    return run


def complaint(done: Ended | subprocess.CompletedProcess[str], code: int) -> str:
    """Checks the failure of a command and returns its one line on stderr."""
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("h1", "h1", 4791),
        ("h1:7000", "h1", 7000),
        ("192.0.2.1", "192.0.2.1", 4791),
        ("192.0.2.1:1", "192.0.2.1", 1),
        ("2001:db8::1", "2001:db8::1", 4791),
        ("::1", "::1", 4791),
        ("[2001:db8::1]", "2001:db8::1", 4791),
        ("[2001:db8::1]:65535", "2001:db8::1", 65535),
        ("[fe80::1%eth0]:7000", "fe80::1%eth0", 7000),
    ],
)
def test_host_and_port__accepted(text: str, host: str, port: int) -> None:
    assert host_and_port(text) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":7000",
        "h1:",
        "h1:0",
        "h1:x",
        "h1:65536",
        "h1:-1",
        "h1:٣",
        "[::1",
        "[]:1",
        "[::1]7",
        "[::1]:",
    ],
)
def test_host_and_port__refused(text: str) -> None:
    with pytest.raises(ValueError):
        host_and_port(text)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("mrc", ""), Exit.USAGE),
        (ResolveError(), Exit.UNREACHABLE),
        (ConnectError(), Exit.UNREACHABLE),
        (PeerGoneError(), Exit.FAILED),
        (PathError(), Exit.PATHS_LOST),
        (CompletionError(WcStatus.RETRY_EXC_ERR, ""), Exit.PATHS_LOST),
        (CompletionError(WcStatus.REM_ACCESS_ERR, ""), Exit.FAILED),
        (VerificationError(), Exit.NOT_VERIFIED),
        (FileError(), Exit.FAILED),
        (ConfigError(), Exit.FAILED),
        (MrcError(), Exit.FAILED),
        (OSError(), Exit.FAILED),
        (Interrupted(2), Exit.INTERRUPTED),
        (Interrupted(15), 143),
    ],
)
def test_exit_code__of_every_error(error: BaseException, code: int) -> None:
    assert exit_code(error) == code


def test_format__units_are_spelled() -> None:
    sizes = [scaled(n, "B") for n in (0, 1023, 1536, 256 << 20)]
    assert sizes == ["0 B", "1023 B", "1.5 KiB", "256 MiB"]
    assert [scaled(n, "bit/s") for n in (0, 999, 1.94e9)] == ["0 bit/s", "999 bit/s", "1.94 Gbit/s"]
    assert [scaled(n, "s") for n in (38e-6, 0.0016, 2.5)] == ["38 us", "1.6 ms", "2.5 s"]


def test_format_table__numbers_to_the_right() -> None:
    assert format_table(("n", "word"), [(1, "a"), (100, "bb")]) == ("  n  word\n  1  a\n100  bb")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["frob"], "frob"),
        (["send"], "FILE"),
        (["send", "a.bin"], "HOST"),
        (["send", "a.bin", "h1:x"], "'x' is not a port number"),
        (["send", "a.bin", "h1", "--frob"], "unrecognized arguments: --frob"),
        (["send", "--name", "x", "a", "b", "h1"], "--name: requires exactly one FILE"),
        (["send", "-", "-", "h1"], "standard input twice"),
        (["recv", "--stdout", "--output", "/tmp"], "--stdout: not with --output"),
        (["recv", "--port", "70000"], "'70000' is not a port number"),
        (["recv", "--memory", "4095K"], "--memory: '4095K' is not within 4M..1T"),
        (["recv"], "name the folder for the files: --output DIR"),
        (["recv", "--max-files", "0"], "'0' is not a number of files"),
        (["recv", "--max-files", "9" * 5000], "is not a number of files"),
        (["recv", "--max-bytes", "-1"], "--max-bytes: '-1' is not a size"),
        (["recv", "--idle", "0"], "'0' is not a time above 0"),
        (["recv", "--memory", "much"], "--memory: 'much' is not a size"),
        (["recv", "--output", "/tmp", "--bins"], "--bins: requires --once"),
        (["recv", "--once", "--bins", "1"], "'1' is not a time; units are"),
        (["recv", "--once", "--bins", "999ns"], "'999ns' is less than 1us"),
        (["paths"], "HOST"),
        (["paths", "--udp-port", "0", "h1"], "'0' is not a port number from 1 to 65535"),
        (["paths", "--udp-port", "65536", "h1"], "'65536' is not a port number from 1 to 65535"),
        (["paths", "--udp-port", "x", "h1"], "'x' is not a port number from 1 to 65535"),
        (["top"], "name a HOST or use --local"),
        (["top", "h1", "--local"], "use either a HOST or --local"),
        (["perf", "h1", "--top"], "--top: requires --server"),
        (["perf"], "name a HOST or use --server"),
        (["perf", "--server", "h1"], "--server takes no HOST"),
        (["perf", "h1", "-t", "0"], "'0' is not a time"),
        (["perf", "h1", "-b3"], "rate '3' is below 1 kbit/s: give a unit, such as 500mbit"),
        (["perf", "h1", "--size", "x"], "'x' is not a size"),
        (["perf", "h1", "-R", "--bidir"], "-R and --bidir: use only one of them"),
        (["perf", "h1", "-a", "-n", "1G"], "neither --size nor -n"),
        (["perf", "h1", "--lat", "-P", "2"], "--lat: uses one QP"),
        (["perf", "h1", "-P", "1000"], "qps: 1000 is not within 1..256"),
        (["perf", "h1", "--plane-shares", "fair"], "--plane-shares: "),
        (["perf", "h1", "--bins", "1"], "'1' is not a time; units are"),
        (["perf", "h1", "--bins", "0.5us"], "'0.5us' is less than 1us"),
        (["perf", "h1", "--bins", "-a"], "--bins: not available for a sweep"),
    ],
)
def test_main__wrong_usage(mrc: Mrc, arguments: list[str], part: str) -> None:
    line = complaint(mrc(*arguments), 2)
    assert line.startswith("mrc") and part in line and line.endswith("--help")


def test_main__no_subcommand_shows_the_help(mrc: Mrc) -> None:
    done = mrc()
    assert done.returncode == 2
    assert done.stderr.startswith("examples:") and not done.stdout


@pytest.mark.parametrize("subcommand", sorted({*products.commands()} - {"completion"}))
def test_main__help_begins_with_examples(mrc: Mrc, subcommand: str) -> None:
    done = mrc(subcommand, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"examples:\n  mrc {subcommand}")


def test_main__help_of_a_tree_without_a_product(mrc: Mrc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(products.COMMANDS, "key", "mrc.absent.cli")
    monkeypatch.setitem(products.COMMANDS, "doctor", "mrc.absent.cli")
    shown = mrc("--help").stdout
    assert "mrc doctor" not in shown and "    key " not in shown
    assert "  mrc send a.bin" in shown and mrc("doctor").returncode == 2


def test_main__version_names_protocol_and_libraries(mrc: Mrc) -> None:
    lines = mrc("--version").stdout.splitlines()
    assert lines[0].startswith("mrc ")
    assert "UDP port 4791" in lines[1] and "xxh3_128" in lines[1]
    assert "uvloop" in lines[2] and "Linux" in lines[2]


def test_main__error_as_json(mrc: Mrc) -> None:
    done = mrc("send", "--json", "/nowhere", "h1")
    assert complaint(done, 1) == "mrc send: /nowhere: no such file"
    told = {"result": "Failure", "schema": 1, "error": "/nowhere: no such file", "exit_code": 1}
    assert printed("send", done.stdout) == told


@pytest.mark.parametrize(
    "words",
    [("recv", "--json", "--port", "x")]
    + [("perf", option, "h1", "-t", "-1") for option in ("-J", "--json", "--json-stream")],
)
def test_main__usage_error_as_json(mrc: Mrc, words: tuple[str, ...]) -> None:
    done = mrc(*words)
    complaint(done, 2)
    assert printed(words[0], done.stdout)["exit_code"] == 2


def test_main__traceback_only_when_asked_for(mrc: Mrc) -> None:
    done = mrc("send", "/nowhere", "h1", MRC_DEBUG="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr and done.stderr.splitlines()[-1].startswith("mrc send:")


def test_send__what_is_no_file(mrc: Mrc, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "FIFO" in complaint(mrc("send", tmp_path / "pipe", "h1"), 1)
    assert "mrc send -" in complaint(mrc("send", "/proc/self/status", "h1"), 1)


def without_privilege(*words: object) -> subprocess.CompletedProcess[str]:
    drop = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    command = [*drop, *MRC, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user without read access")
def test_send__unreadable(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o000)
    tmp_path.chmod(0o755)
    assert "this user may not read it" in complaint(without_privilege("send", path, "h1"), 1)


def test_send__peer_talks_garbage(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        command: list[str | Path] = [*MRC, "send", tmp_path / "a", f"127.0.0.1:{port}"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as sender:
            peer, _ = server.accept()
            with peer:
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 100)
                _, errors = sender.communicate(timeout=PATIENCE)
    assert sender.returncode in (1, 3)
    assert len(errors.splitlines()) == 1 and "127.0.0.1" in errors


def test_paths__probes_every_ev_when_asked(mrc: Mrc, tmp_path: Path) -> None:
    with listening("recv", "--output", tmp_path) as (_, _, host):
        plain, probed = mrc("paths", "--json", host), mrc("paths", "--json", "--probe", host)
        table = mrc("paths", "--probe", host)
    evs = printed("paths", probed.stdout)["evs"]
    unprobed = printed("paths", plain.stdout)["evs"]
    assert len(evs) == 8
    for ev in evs:
        probe = ev.pop("probe")
        assert (probe["answered"], probe["ce"]) == (True, False)
        assert probe["rtt_ns"] > 0
        assert ev.keys() | {"probe"} == unprobed[0].keys()
    assert all(ev["probe"] is None for ev in unprobed)
    assert table.stdout.splitlines()[0].split()[4:6] == ["RTT", "probe"]
    assert table.stdout.splitlines()[0].endswith("destination")
    assert len(table.stdout.splitlines()) == 1 + 8 + 1
    assert "127.0.0.1: 1 of 1 plane and 8 of 8 paths are good" in table.stdout


@pytest.mark.parametrize(
    ("probe", "text"),
    [
        (ProbeResult(0, 0, 132_000), "132 us"),
        (ProbeResult(0, 0, 132_000, ce=True), "132 us, CE"),
        (ProbeResult(0, errno.ETIMEDOUT, None), "no answer"),
        (ProbeResult(0, errno.EPERM, None), "denied"),
        (ProbeResult(0, errno.EMSGSIZE, None), "not sent"),
    ],
)
def test_paths__outcome_of_a_probe(probe: ProbeResult, text: str) -> None:
    assert _outcome(probe) == text


def test_recv__not_into_the_home(mrc: Mrc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the default is the current directory, but not the home: files there may run."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.chdir(tmp_path)
    assert "is your home" in complaint(mrc("recv", HOME=str(tmp_path)), 2)
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        assert "is in use" in complaint(mrc("recv", "--port", port, HOME="/"), 1)


@pytest.mark.parametrize(
    ("output", "part"), [("file/in", "not a directory"), ("file", "is not a directory")]
)
def test_recv__output_is_no_directory(mrc: Mrc, tmp_path: Path, output: str, part: str) -> None:
    (tmp_path / "file").touch()
    assert part in complaint(mrc("recv", "--output", tmp_path / output), 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user without write access")
def test_recv__output_not_writable(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    done = without_privilege("recv", "--output", tmp_path)
    tmp_path.chmod(0o755)
    assert "may not write there" in complaint(done, 1)


@pytest.mark.parametrize("as_json", [True, False])
def test_recv__what_arrived_when(mrc: Mrc, tmp_path: Path, inbox: Path, as_json: bool) -> None:
    """Bins as in `mrc perf`: each byte of the file and of a few messages counts once."""
    file, size = tmp_path / "file", 3 << 20
    file.write_bytes(os.urandom(size))
    recv = ("recv", "--once", "--bins", "2ms", "--output", inbox, *(["--json"] if as_json else []))
    with listening(*recv) as (receiver, _, where):
        before_ns = time.monotonic_ns()
        assert mrc("send", file, where).returncode == 0
        output, errors = receiver.communicate(timeout=PATIENCE)
        after_ns = time.monotonic_ns()
    assert receiver.returncode == 0, errors
    if not as_json:
        assert "goodput at the receiver" in output and "longest gap" in output
        return
    bins = printed("recv", output)["bins"]
    assert bins["width_ns"] == 2_000_000
    assert size <= sum(bins["bytes"]) < 1.01 * size
    assert len(bins["bytes"]) == bins["duration_ns"] // 2_000_000 + 1
    planes = [sum(plane["bytes"]) for plane in bins["planes"]]
    assert sum(planes) == sum(bins["bytes"])
    began_ns = bins["start_monotonic_ns"]
    assert before_ns < began_ns < began_ns + bins["duration_ns"] < after_ns
    assert bins["first_ns"] <= bins["last_ns"] <= bins["duration_ns"]


BOGUS = {
    ("perf", "--bogus"): "mrc perf",
    ("testbed", "up", "--bogus"): "mrc testbed up",
    ("sim", "lossy-ev", "--bogus"): "mrc sim run",
    ("sim", "list", "--bogus"): "mrc sim list",
}


@pytest.mark.parametrize(
    ("words", "where"), [each for each in BOGUS.items() if each[0][0] in products.commands()]
)
def test_unknown_option__names_the_help_of_its_own_command(
    mrc: Mrc, words: tuple[str, ...], where: str
) -> None:
    line = complaint(mrc(*words), 2)
    assert line == f"{where}: unrecognized arguments: --bogus; see {where} --help"


# ---- Types of arguments --------------------------------------------------------------------------


LINES = """
files FILE...            what to send; with
                         two lines of help
host HOST[:PORT]         where to
--exclude PATTERN...     leave out [none]
-i, --interval SECONDS   a pause [%(default)s]
-P, --parallel, --qps N  how many
-v, --verbose            say more
--no-meta                keep less
--seal                   how
"""


def made() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="try")
    add(parser, LINES, interval={"default": 1.0}, seal={"choices": ["none", "aead"]})
    return parser


def test_add__values_of_all_kinds() -> None:
    found = made().parse_args(["a", "b", "h1:7000"])
    assert (found.files, found.host) == (["a", "b"], ("h1", 7000))
    assert (found.exclude, found.interval, found.parallel) == ([], 1.0, None)
    assert (found.verbose, found.no_meta, found.seal) == (False, False, None)
    words = "-v --no-meta --exclude x --exclude y -i 200ms --qps 4 --seal none f h1"
    found = made().parse_args(words.split())
    assert (found.exclude, found.interval, found.parallel) == (["x", "y"], 0.2, 4)
    assert (found.verbose, found.no_meta, found.seal) == (True, True, "none")


def test_add__help() -> None:
    text = " ".join(made().format_help().split())
    assert "what to send; with two lines of help" in text
    assert "a pause [1.0]" in text
    assert "--exclude PATTERN leave out" in text


def test_add__settings_of_an_argument_that_has_no_line() -> None:
    with pytest.raises(AssertionError, match="no lines of tme"):
        add(argparse.ArgumentParser(), "--time SECONDS  a time", tme={"default": 1.0})


def test_add__a_number_of_bytes_is_above_0(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add(parser, "-n, --bytes BYTES  so many")
    assert parser.parse_args(["-n", "2K"]).bytes == 2048
    with pytest.raises(SystemExit):
        parser.parse_args(["-n", "0"])
    assert "'0' is not a number of bytes above 0" in capsys.readouterr().err


# ---- Completion ----------------------------------------------------------------------------------


START = {"bash": ("bash", "--norc", "--noprofile", "-i"), "zsh": ("zsh", "-f", "-i")}
BEFORE = {"bash": "", "zsh": "autoload -U compinit && compinit -D; "}
HERE = [
    pytest.param(
        shell,
        marks=pytest.mark.skipif(shutil.which(shell) is None, reason=f"apt-get install {shell}"),
    )
    for shell in SHELLS
]


@pytest.mark.parametrize("shell", HERE)
def test_completion__of_a_typed_line(shell: str, tmp_path: Path) -> None:
    command = f'eval "$(mrc completion {shell})"'
    assert command in EXAMPLES
    (tmp_path / "big.bin").touch()
    program = f'mrc() {{ {shlex.quote(sys.executable)} -m mrc "$@"; }}; '
    with terminal() as term, term.running(*START[shell], PS1="> ", ZDOTDIR=str(tmp_path)):
        setting_up = f"cd {tmp_path}; {program}{BEFORE[shell]}{command}"
        term.press(f"{setting_up}; echo is ready | tr a-z A-Z\n")
        term.until("IS READY")
        for typed, rest in (
            ("mrc se", "nd"),
            *([("mrc testbed he", "al")] if "testbed" in products.commands() else []),
            ("mrc recv --ove", "rwrite"),
            ("mrc send big.", "bin"),
        ):
            term.press(f"{typed}\t")
            term.until(rest)
            term.press("\x15")  # deletes the line


def test_completion__of_another_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 2
    assert "fish" in capsys.readouterr().err


# ---- Programs that a command becomes -------------------------------------------------------------


def test_refusal__a_program_that_is_there() -> None:
    assert refusal("sh") is None and refusal("/bin/sh") is None


@pytest.mark.parametrize("by_path", [True, False])
def test_refusal__not_executable(tmp_path: Path, by_path: bool) -> None:
    script = tmp_path / "script"
    script.touch(mode=0o644)
    found = refusal(str(script)) if by_path else refusal("script", str(tmp_path))
    assert found == (126, f"{script}: is not executable: chmod +x {script}")


def test_refusal__a_folder_or_nothing(tmp_path: Path) -> None:
    assert refusal(str(tmp_path)) == (126, f"{tmp_path}: is a folder")
    assert refusal("mrc-nothing") == (127, "mrc-nothing: command not found")
    not_found = (127, f"{tmp_path.name}: command not found")
    assert refusal(tmp_path.name, str(tmp_path.parent)) == not_found


@pytest.mark.parametrize(("text", "code"), [("no program", 126), ("#!/mrc/nothing\n", 127)])
def test_become__the_kernel_refuses_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int
) -> None:
    script = tmp_path / "script"
    script.write_text(text)
    script.chmod(0o755)
    assert become("mrc run", [str(script)], dict(os.environ)) == code
    assert capsys.readouterr().err.startswith(f"mrc run: {script}: ")


# ---- Signals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("hup", [signal.default_int_handler, signal.SIG_IGN], ids=["", "nohup"])
@pytest.mark.parametrize("ended", [False, True])
def test_run_async__leaves_signals_as_they_were(hup: Any, ended: bool) -> None:
    """What comes after it in the same process can be ended too."""
    inside: list[Any] = []

    async def work() -> str:
        inside.append(signal.getsignal(signal.SIGHUP))
        if ended:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(PATIENCE)
        return "done"

    wanted = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.default_int_handler,
        signal.SIGHUP: hup,
    }
    before = {signum: signal.signal(signum, handler) for signum, handler in wanted.items()}
    try:
        if ended:
            with pytest.raises(Interrupted, match="terminated"):
                run_async(work())
        else:
            assert run_async(work()) == "done"
        assert {signum: signal.getsignal(signum) for signum in wanted} == wanted
        assert (inside == [signal.SIG_IGN]) == (hup is signal.SIG_IGN)  # nohup ignores it
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


# ---- Exit codes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MemoryError(), "out of memory"),
        (OSError(2, "No such file", "a"), "a: no such file"),
        (OSError(12, "QP to RTS: Cannot allocate memory"), "QP to RTS: Cannot allocate memory"),
        (
            OSError(24, "Too many open files", "a"),
            "a: too many open files (limit LIMIT: ulimit -n 4096)",
        ),
        (MrcError("h1: is busy"), "h1: is busy"),
        (MrcError(), "MrcError"),
    ],
)
def test_cause__is_text_for_a_user(error: BaseException, text: str) -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert cause(error) == text.replace("LIMIT", str(limit))


BAD_FILES = [
    words
    for words in (
        ("sim", "FILE"),
        ("dissect", "FILE"),
        ("conform", "judge", "FILE"),
        ("conform", "list", "--cases", "FILE"),
    )
    if words[0] in products.commands()
]


@pytest.mark.parametrize("words", BAD_FILES)
@pytest.mark.parametrize("name", ["wrong.toml", "missing.toml"])
def test_main__a_bad_file_is_wrong_use_in_every_command(
    words: tuple[str, ...], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.toml").write_text("hosts = \n")
    argv = [str(tmp_path / name) if word == "FILE" else word for word in words]
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert (argv[-1] in error, error.count("\n")) == (True, 1)
    assert "Errno" not in error


def test_main__out_of_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(args: argparse.Namespace) -> int:
        raise MemoryError

    monkeypatch.setattr("mrc.cli.schema.run", run)
    assert main(["schema"]) == 1
    assert capsys.readouterr() == ("", "mrc schema: out of memory\n")


# ---- What a command imports and does when it starts ----------------------------------------------


SLOW = {"asyncio", "cffi", "msgspec", "mrc._core", "numpy", "prometheus_client", "pyroute2", "rich"}


def test_version__loads_next_to_nothing() -> None:
    code = "from mrc.cli.main import main\ntry:\n    main(['--version'])\nexcept SystemExit: pass"
    modules = loaded(code)
    assert not SLOW & modules
    assert len(modules) < 200


@pytest.mark.parametrize("command", ["send", "recv", "perf", "paths", "top"])
def test_subcommands__between_hosts_need_no_pyroute2(command: str) -> None:
    modules = loaded(f"from mrc.cli.main import build_parser\nbuild_parser(['{command}'])")
    assert not {"pyroute2", "numpy", "prometheus_client", "mrc._sim", "mrc._emu"} & modules
    assert not {"mrc.testbed.bed", "mrc.testbed.build", "mrc.sim.run"} & modules


def test_import_mrc__loads_nothing_of_it() -> None:
    assert {name for name in loaded("import mrc") if name.startswith("mrc")} == {"mrc", "mrc.lazy"}


def test_start__of_processes_imports_nothing_from_the_current_folder() -> None:
    """A user's http.py there is not Python's: each `python -m` has -P."""
    sources = [path.read_text() for path in (ROOT / "mrc").rglob("*.py")]
    assert not [text for text in sources if 'sys.executable, "-m"' in text]


def started(limit: int, *words: str, left_open: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs mrc, which may have so many open files, and has some from whoever started it."""

    def set_up() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        for fd in range(3, left_open):
            os.dup2(0, fd)

    return subprocess.run(
        [*MRC, *words], preexec_fn=set_up, close_fds=not left_open, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.more
@pytest.mark.parametrize("limit", [12, 63])
def test_start__with_too_few_open_files(limit: int) -> None:
    for words in (["send", __file__, "127.0.0.1:1"], ["recv", "--insecure", "--output", "."]):
        done = started(limit, *words)
        said = f"mrc {words[0]}: at most {limit} open files (ulimit -Hn): mrc needs 64\n"
        assert (done.returncode, done.stderr) == (1, said)


def test_start__with_most_descriptors_left_open() -> None:
    """Libuv aborts where it lacks one."""
    done = started(128, "send", __file__, "127.0.0.1:1", left_open=110)
    said = "mrc send: too many open files: mrc needs 32 more to begin (ulimit -n)\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_start__with_just_enough_open_files() -> None:
    done = started(64, "send", "--insecure", __file__, "127.0.0.1:1")
    assert done.returncode == 3 and "no program listens" in done.stderr


# ---- Descriptors 0 to 2 that the parent has closed -----------------------------------------------


def shell(words: str, closed: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *MRC, *words.split()]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.more
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_send__with_closed_descriptors(tmp_path: Path, closed: str) -> None:
    """Sockets must not get these numbers: uvloop cannot close them, and messages go into them."""
    (tmp_path / "a").touch()
    done = shell(f"send {tmp_path / 'a'} 127.0.0.1:{free_port()}", closed)
    assert done.returncode == 3
    assert "2>" in closed or "no program listens" in done.stderr
    assert len(done.stderr.splitlines()) == ("2>" not in closed)


def test_send__a_closed_input_is_not_an_empty_file(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    with receiving("--output", inbox) as (receiver, where):
        done = shell(f"send - {where}", "<&-")
        assert done.returncode == 6 and "standard input: bad file descriptor" in done.stderr
        receiver.terminate()
    assert list(inbox.iterdir()) == []


def test_recv__a_closed_output_loses_no_data(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    before = ("sh", "-c", 'exec "$@" >&-', "sh")
    with listening("recv", "--stdout", before=before) as (receiver, _, where):
        done = shell(f"send {tmp_path / 'a'} {where}", "</dev/null")
        assert done.returncode == 1 and "standard output: bad file descriptor" in done.stderr
        assert receiver.wait(PATIENCE) == 1


def test_recv__with_a_closed_input_names_the_option() -> None:
    done = shell("recv", "<&-")
    assert done.returncode == 2 and "--output DIR" in done.stderr
    assert len(done.stderr.splitlines()) == 1


WITHOUT_NULL = "import os, sys; os.devnull = '/nowhere'; from mrc.cli.main import main; "


@pytest.mark.parametrize(
    ("closed", "what"),
    [("<&-", "input"), (">&-", "output"), ("2>&-", ""), ("<&- >&- 2>&-", "")],
)
def test_main__closed_descriptors_without_dev_null(closed: str, what: str) -> None:
    """In a bare container it was a traceback; without standard error the line must not become
    data on the standard output.
    """
    script = f"{WITHOUT_NULL}sys.exit(main(['schema', '--json']))"
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1
    why = "is closed, and /nowhere cannot be opened: no such file or directory\n"
    assert done.stderr == (f"mrc: standard {what} {why}" if what else "")
    assert all("is closed" in json.loads(line)["error"] for line in done.stdout.splitlines())
