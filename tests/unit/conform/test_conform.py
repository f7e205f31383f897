# SPDX-License-Identifier: Apache-2.0
"""`mrc conform run` as typed: mrc's engine passes all cases, and devices that differ do not."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any
from xml.etree import ElementTree

import pytest
from ports import free_port
from printed import printed
from processes import assert_end, pidfds
from slowness import PATIENCE, until

from mrc.cli.main import main
from mrc.conform import adapter
from mrc.conform.adapter import AdapterError, Detach, ProgramAdapter
from mrc.conform.case import load_cases
from mrc.conform.readings import BY_ID
from mrc.enums import Reading

PATIENT = ("--wait", "60")
"""of a judge whose device does what it should: it never waits for so long"""


def is_of_this_host(reason: str) -> bool:
    """An ordinary user may not make headers of IP (tests/netns plays all cases), and a judge that
    is late each time says nothing of the device.
    """
    return "CAP_NET_RAW" in reason or "this host is too busy" in reason


def conform(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mrc", "conform", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Any]:
    """Of mrc's engine on all cases."""
    done = conform("run", *PATIENT, "--json")
    return printed("conform run", done.stdout)


MEASURED = {case.name for case in load_cases() if case.nscc}
"""Windows that follow from delays of some ms: a busy machine adds to them."""


def unlike(verdicts: dict[str, Any]) -> dict[str, str]:
    """The reason of each case of the engine that is not passed."""
    found = {each["name"]: each["reason"] for each in verdicts["cases"]
             if each["verdict"] != "passed" or each["unchecked"]}  # fmt: skip
    assert verdicts["passed"] + len(found) == len(load_cases())
    return {name: reason for name, reason in found.items() if not is_of_this_host(reason)}


def test_engine__passes_all_cases_that_measure_nothing(verdicts: dict[str, Any]) -> None:
    assert {name: why for name, why in unlike(verdicts).items() if name not in MEASURED} == {}
    assert 10 < len(MEASURED) < 100, "tests/c/test_nscc.c has them in virtual time"


@pytest.mark.slow
def test_engine__passes_all_cases(verdicts: dict[str, Any]) -> None:
    assert unlike(verdicts) == {}


def test_engine__has_the_readings_of_the_table(verdicts: dict[str, Any]) -> None:
    for name in verdicts["readings"]:
        assert BY_ID[name.partition("-")[0]].choice == name


OTHERS = [str(each.name).replace("_", "-") for each in Reading]
HIDDEN = {"G2"}  # only the time until a SACK shows it
MEASURED_READINGS = ["G15-B"]  # a wait of the device that the judge has to see as well
SHOWN = [name for name in OTHERS if name.partition("-")[0] not in HIDDEN]


def finds_out(names: list[str]) -> None:
    """The judge finds out that the engine follows these readings, and passes it."""
    topics = ("endpoint", "evs", "message", "planes", "sack", "trim", "window")
    words = [word for topic in topics for word in ("--case", topic)]
    words += [word for name in names for word in ("--reading", name)]
    done = conform("run", *words, *PATIENT, "--json")
    found = printed("conform run", done.stdout)
    assert done.returncode == 0, [each for each in found["cases"] if each["verdict"] == "failed"]
    for name in names:
        subject = name.partition("-")[0]
        assert [each for each in found["readings"] if each.startswith(f"{subject}-")] == [name]


@pytest.mark.more
def test_engine__with_all_other_readings() -> None:
    finds_out([name for name in SHOWN if name not in MEASURED_READINGS])


@pytest.mark.slow
def test_engine__with_other_readings_that_times_show() -> None:
    finds_out(MEASURED_READINGS)


WRONG = """\
case wrong-{n}
    A device does what it should not.
    why To see a failure.
    > WRITE_ONLY psn=0 ack_req=1
    {step}

"""
WRONG_STEPS = {
    "< SACK cum_psn=1 within=100ms": "cum_psn is 0, not 1",
    "< NACK within=100ms": "no such packet came, but",
    "! SACK cum_psn=0": "the device sent one",
    "= memory at=0 bytes=4 fill=0": "byte 0 is 0x11",
    "= immediates 5": "the device has none",
    "> WRITE_ONLY_IMM psn=1 imm=3 ack_req=1\n    = immediates 3/63": "the device has 3/64",
    "= state ERROR": "the device has RTS",
}


Wrong = tuple[dict[str, tuple[dict[str, Any], ElementTree.Element]], str]
"""the verdict and the failure of JUnit of each wrong step, and the page"""


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Wrong:
    """One run of a case with each wrong step."""
    folder = tmp_path_factory.mktemp("wrong")
    file, junit, page = folder / "wrong.case", folder / "out.xml", folder / "out.html"
    file.write_text("".join(WRONG.format(n=n, step=step) for n, step in enumerate(WRONG_STEPS)))
    words = ("--cases", file, "--wait", "0.2", "--captures", folder / "out", "--junit", junit)
    done = conform("run", *words, "--html", page, "--json")
    assert done.returncode == 1
    judged = printed("conform run", done.stdout)["cases"]
    failures = [*ElementTree.parse(junit).getroot().iter("failure")]
    each = zip(judged, failures, strict=True)
    return dict(zip(WRONG_STEPS, each, strict=True)), page.read_text()


@pytest.mark.parametrize(("step", "reason"), WRONG_STEPS.items())
def test_failed__says_what_came_instead(wrong: Wrong, step: str, reason: str) -> None:
    judged, failure = wrong[0][step]
    assert judged["verdict"] == "failed"
    assert step.splitlines()[-1].strip() in judged["reason"] and reason in judged["reason"]
    assert failure.get("message") == judged["reason"]
    assert "why To see a failure." in (failure.text or "")


def test_failed__the_page_shows_each(wrong: Wrong) -> None:
    assert wrong[1].count('<tr class="failed">') == len(WRONG_STEPS)
    assert "&lt;- ev" in wrong[1]


def test_failed__each_has_a_capture(wrong: Wrong, capsys: pytest.CaptureFixture[str]) -> None:
    for judged, _ in wrong[0].values():
        assert main(["dissect", "--json", judged["capture"]]) == 0
        packets = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert {"WRITE_ONLY", "SACK"} <= {each["type"] for each in packets}, "both directions"
        times = [each["seconds"] for each in packets]
        assert times[0] == 0 and times == sorted(times)


def test_run__files_in_the_folder_of_captures(tmp_path: Path) -> None:
    """The folder is there also if no case fails."""
    out = tmp_path / "out"
    words = ("--captures", out, "--junit", out / "junit.xml")
    done = conform("run", "--case", "write-is-placed", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert [each.name for each in out.iterdir()] == ["junit.xml"]


def test_run__until_the_first_failure(tmp_path: Path) -> None:
    file = tmp_path / "wrong.case"
    file.write_text("".join(WRONG.format(n=n, step="< NACK within=1ms") for n in (1, 2)))
    done = conform("run", "--cases", file, "--first", "--json")
    assert len(printed("conform run", done.stdout)["cases"]) == 1


PAGE = "/no/such/page.html"
NO_ADAPTER = (
    "mrc conform run: 127.0.0.1: no program listens on TCP port 1: start the adapter of the device "
    "there; mrc conform device is that of mrc's engine\n"
)
NAMELESS = "no-such-host.invalid"


@pytest.mark.parametrize(
    ("words", "code", "told", "said"),
    [
        ("device --reading G2-A --reading G2-B", 2, "", ("two alternatives of G2",)),
        (f"run --case write-is-placed --html {PAGE}", 1, "",
         (f"mrc conform run: {PAGE}: no such file or directory\n",)),
        ("run 127.0.0.1:1", 3, "", (NO_ADAPTER,)),
        ("run --exchange 127.0.0.1:1", 3, "", ("no program listens",)),
        # It says what is wrong with the name, in the words of mrc's other commands.
        (f"run {NAMELESS}", 3, "",
         (f"{NAMELESS}: no such host: ", "check the name, or give its address")),
        ("run --adapter true --address 127.0.0.1", 1, "the adapter ended", ("not played: ",)),
        ("run h1 --adapter x", 2, "", ("use only one of them",)),
        ("run --adapter x", 2, "", ("--address",)),
        ("run --wait 0", 2, "", ("above 0",)),
    ],
)  # fmt: skip
def test_run__that_cannot_be(words: str, code: int, told: str, said: tuple[str, ...]) -> None:
    done = conform(*words.split())
    assert done.returncode == code and told in done.stdout and bool(told) is bool(done.stdout)
    assert all(part in done.stderr for part in said) and done.stderr.count("\n") == 1
    assert "adapter" not in done.stderr or NAMELESS not in words


def test_run__an_adapter_that_can_do_nothing(tmp_path: Path) -> None:
    program = tmp_path / "adapter.py"
    program.write_text(
        'import sys\nfor _ in sys.stdin:\n    print(\'{"cannot": "no"}\', flush=True)'
    )
    words = shlex.join([sys.executable, str(program)])
    done = conform("run", "--adapter", words, "--address", "127.0.0.1", "--json",
                   "--case", "beyond-window")  # fmt: skip
    (judged,) = printed("conform run", done.stdout)["cases"]
    assert (judged["verdict"], judged["reason"]) == ("skipped", "no")


STUBBORN = """
trap '' TERM
sleep 100000 >/dev/null &
echo $$ $! >"$1.new"
mv "$1.new" "$1"
read line
echo '{"cannot": "no"}'
while :; do wait; done
"""


def test_run__an_adapter_does_not_outlive_the_judge(tmp_path: Path) -> None:
    """It ignores SIGTERM and the end of its input, and has a child."""
    program, pids = tmp_path / "adapter", tmp_path / "pids"
    program.write_text(STUBBORN)
    command = [sys.executable, "-m", "mrc", "conform", "run", "--address", "127.0.0.1"]
    command += ["--adapter", shlex.join(["sh", str(program), str(pids)])]
    with subprocess.Popen(command) as judge:
        until(lambda: pids.exists() or judge.poll() is not None)
        ends = pidfds(pids.read_text().split())
        judge.kill()
    assert_end(ends)


def test_run__an_adapter_that_does_not_answer(tmp_path: Path) -> None:
    """It reads its line, and goes on without an answer; then it is asked no more."""
    program = tmp_path / "adapter"
    program.write_text("while read line; do :; done")
    words = shlex.join(["sh", str(program)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapter, "_PATIENCE_SECONDS", 0.05)
        device = ProgramAdapter(words)
        with pytest.raises(AdapterError) as error:
            device.ask(Detach())
    assert str(error.value) == (
        f"{words}: no answer within 0.05 s: an adapter answers each line with a line, and flushes"
        " it"
    )
    device.close()
    assert device._child.process.returncode == 0  # its input had ended


@pytest.mark.more
def test_run__attributes_by_hand() -> None:
    """The engine is the device; this test is who types the attributes."""
    words = [sys.executable, "-m", "mrc", "conform"]
    adapter = subprocess.Popen([*words, "device", "-B", "127.0.0.1"], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    judge = subprocess.Popen(
        [*words, "run", "--attributes", "-", "--address", "127.0.0.1", "--case", "write-is-placed"],
        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with adapter, judge:
        assert adapter.stdin and adapter.stdout and judge.stdin and judge.stdout and judge.stderr
        own = json.loads(judge.stderr.readline().partition(": ")[2])
        asked = {"do": "attach", "peer": own, "first_psn": None, "memory_bytes": 4096,
                 "timeout": 14}  # fmt: skip
        print(json.dumps(asked), file=adapter.stdin, flush=True)
        print(
            json.dumps(json.loads(adapter.stdout.readline())["end"]), file=judge.stdin, flush=True
        )
        told, notes = judge.communicate(timeout=PATIENCE)
        adapter.communicate(timeout=PATIENCE)
    assert judge.returncode == 0, told + notes
    assert "1 passed" in told and "not checked: 3 steps" in notes


@contextmanager
def listening(*words: str) -> Iterator[str]:
    """A program of mrc on loopback that listens; yields its address and port."""
    port = str(free_port())
    command = [sys.executable, "-m", "mrc", *words, "--insecure", "-B", "127.0.0.1", "--port", port]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as program:
        assert program.stderr is not None
        reading = Thread(target=program.stderr.read)  # its lines about judges that leave
        try:
            assert "listening" in program.stderr.readline()
            reading.start()
            yield f"127.0.0.1:{port}"
        finally:
            program.terminate()
    reading.join()


def test_device__ended_while_a_judge_is_connected() -> None:
    port = str(free_port())
    words = [sys.executable, "-m", "mrc", "conform", "device", "-B", "127.0.0.1", "--listen"]
    words += ["--port", port]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as device:
        assert device.stderr is not None
        first = device.stderr.readline()
        assert "waiting for judges" in first, first
        with socket.create_connection(("127.0.0.1", int(port))) as judge:
            judge.sendall(b"{}\n")
            assert b"not understood" in judge.recv(1000)  # its answer: it serves this judge
            device.send_signal(signal.SIGINT)
            said = first + device.stderr.read()
    assert device.returncode == 130 and "Traceback" not in said, said


def test_program__closed_leaves_no_descriptor() -> None:
    device = ProgramAdapter("cat")
    device.ask(Detach())
    device.close()
    assert device._socket.fileno() == -1  # while the object is still there


NO_WRITE = "the program decides what it writes: only an adapter can ask a device to write"


@pytest.mark.more
@pytest.mark.parametrize(
    "patterns",
    [
        ("access-beyond-*", "endpoint", "trim", "requester", "last-in-window"),
        pytest.param(("*",), marks=pytest.mark.slow),
    ],
)
def test_run__by_the_exchange_with_a_perf_server(patterns: tuple[str, ...]) -> None:
    """Its memory is judged; the cases in which a device writes are not."""
    with listening("perf", "--server") as device:
        words = [word for pattern in patterns for word in ("--case", pattern)]
        done = conform("run", "--exchange", device, *words, *PATIENT, "--json")
    found = printed("conform run", done.stdout)
    assert [each for each in found["cases"] if each["verdict"] == "failed"] == []
    assert done.returncode == 0
    passed = {each["topic"] for each in found["cases"] if each["verdict"] == "passed"}
    assert passed >= {"access", "endpoint", "trim", "window"}
    why_not = {each["reason"] for each in found["cases"] if each["topic"] == "requester"}
    assert why_not == {NO_WRITE, "the device chooses its first PSN itself"}


@pytest.mark.more
def test_run__by_the_exchange_with_another_program(tmp_path: Path) -> None:
    """It gives no memory: only its endpoint is judged."""
    with listening("recv", "--output", str(tmp_path)) as device:
        words = ("--case", "ev-probe*", "--case", "write-is-placed", "--json")
        found = printed(
            "conform run", conform("run", "--exchange", device, *words, *PATIENT).stdout
        )
    reasons = {each["name"]: each["reason"] for each in found["cases"]}
    assert found["failed"] == 0 and found["passed"] > 3
    assert reasons["write-is-placed"] == "the device has no memory to write to"


@pytest.mark.more
def test_run__by_the_exchange_with_other_readings() -> None:
    """A device with another reading of C3 refuses the judge, and says what to do."""
    with listening("perf", "--server") as device:
        done = conform("run", "--exchange", device, "--reading", "C3-B")
    assert done.returncode == 3 and "C3-B" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.more
def test_run__an_adapter_that_listens() -> None:
    port = free_port()
    words = [sys.executable, "-m", "mrc", "conform", "device", "-B", "127.0.0.1", "-B", "127.0.0.2",
             "--listen", "--port", str(port)]  # fmt: skip
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as device:
        assert device.stderr is not None
        try:
            assert "waiting for judges" in device.stderr.readline()
            for _ in range(2):
                done = conform("run", f"127.0.0.1:{port}", "--case", "window", *PATIENT, "--json")
                assert printed("conform run", done.stdout)["failed"] == 0
                assert done.returncode == 0
        finally:
            device.terminate()


@pytest.mark.more
@pytest.mark.parametrize(
    ("address", "patterns"),
    [
        ("::1", ("endpoint", "evs", "headers", "planes")),  # what depends on the IP version
        pytest.param("::1", ("*",), marks=pytest.mark.slow),
        pytest.param("127.0.0.1", ("*",), marks=pytest.mark.slow),
    ],
)
def test_run__one_plane(address: str, patterns: tuple[str, ...]) -> None:
    """All but the cases of several planes, in both IP versions."""
    words = [word for pattern in patterns for word in ("--case", pattern)]
    done = conform("run", "--address", address, *words, *PATIENT, "--json")
    found = printed("conform run", done.stdout)
    assert found["passed"] > 10
    assert [each["name"] for each in found["cases"] if each["verdict"] == "failed"] == []
    skipped = [each for each in found["cases"] if each["verdict"] == "skipped"]
    assert {each["topic"] for each in skipped if not is_of_this_host(each["reason"])} <= {
        "planes", "headers",
    }  # fmt: skip


@pytest.mark.more
def test_list_and_show__every_case() -> None:
    names = [
        each["name"] for each in printed("conform list", conform("list", "--json").stdout)["cases"]
    ]
    assert names == [case.name for case in load_cases()]
    assert "? C4-B < NACK" in conform("show", "beyond-window").stdout
    (shown,) = printed("conform show", conform("show", "beyond-window", "--json").stdout)["cases"]
    assert shown["section"] == "6.3.1"


def test_readings__mark_the_choice() -> None:
    lines = conform("readings").stdout
    assert "B: NACK PSN_OOR_WINDOW (one reader) <- mrc" in lines
    assert len(printed("conform readings", conform("readings", "--json").stdout)["readings"]) > 20
