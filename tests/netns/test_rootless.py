# SPDX-License-Identifier: Apache-2.0
"""mrc as an ordinary user types it, without any namespace commands, and as a pod runs it.

Method: every process here runs as a user without a name or a privilege, in a mount namespace in
which every user can read Python and this checkout, wherever they are. Pods have the commands of the
Kubernetes manifests in mrc/examples, the interfaces of Multus, and a read-only root.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_interface
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from kubernetes_pods import Pod, pods
from netns.conftest import fresh_name, has_ended, needs_real_root
from netns.plain import address, join, namespaces, until_running
from netns.processes import ROOT, Mrc, shown_to_all
from printed import printed
from slowness import PATIENCE, until

pytestmark = needs_real_root

USER = 23456


@dataclass
class User:
    home: Path
    runtime: str = ""
    """$XDG_RUNTIME_DIR"""

    def start(self, *words: str) -> subprocess.Popen[str]:
        return self.start_python("-m", "mrc", *words)

    def start_python(self, *words: str) -> subprocess.Popen[str]:
        drop = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--"]
        argv = [*shown_to_all(), *drop, sys.executable, *words]
        env = os.environ | {
            "HOME": str(self.home), "XDG_RUNTIME_DIR": self.runtime, "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, env=env, cwd=self.home)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run_python("-m", "mrc", *words)

    def run_python(self, *words: str) -> subprocess.CompletedProcess[str]:
        with self.start_python(*words) as process:
            output, errors = process.communicate()
        return subprocess.CompletedProcess(words, process.returncode, output, errors)

    def does(self, *words: str) -> str:
        """What a command prints that succeeds."""
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def keeper(self) -> int:
        """The process that holds the user's namespaces."""
        return int((self.home / "mrc" / "keeper").read_text().split()[0])

    def kill_keeper(self) -> None:
        """Returns when it has ended."""
        keeper = self.keeper()
        os.kill(keeper, signal.SIGKILL)
        until(lambda: has_ended(keeper))

    def left(self) -> list[str]:
        """What mrc left outside its namespaces."""
        return sorted(path.name for path in self.home.glob("mrc*"))


@pytest.fixture
def user() -> Iterator[User]:
    """A user with an own home folder, because other users cannot enter pytest's folders."""
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, USER, USER)
        user = User(Path(home), runtime=home)
        yield user
        with suppress(OSError, IndexError):  # all processes in its namespaces end with it
            os.kill(user.keeper(), signal.SIGKILL)


@pytest.mark.slow
def test_testbed__whole_life_without_root(user: User) -> None:
    """Two test beds, one of each fabric, outlive the commands. The last `down` ends the keeper."""
    done = user.run("testbed", "exec", "--name", "one", "h0", "--", "true")
    assert done.stderr == ("mrc testbed exec: test bed one is not up: mrc testbed up --name one\n")
    assert user.left() == []
    shape = ("--planes", "1", "--t1", "1")
    user.does("testbed", "up", "--name", "one", *shape)
    user.does("testbed", "up", "--name", "two", *shape, "--fabric", "emulated")
    keeper = user.keeper()
    done = user.run("testbed", "exec", "--name", "one", "h0", "--", "sh", "-c", "pwd; exit 7")
    assert (done.returncode, done.stdout) == (7, f"{user.home}\n"), done.stderr
    done = user.run("testbed", "exec", "--name", "one", "t1:1.0", "--", "ip", "-6", "route")
    assert "fcbb:1:100::/48" in done.stdout, done.stderr
    done = user.run("testbed", "exec", "--name", "one", "--user", "nobody", "h0", "--", "true")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    user.does("testbed", "capture", "h0", "a.pcap", "--seconds", "0.1", "--name", "one")
    user.does("testbed", "fail", "t1:1.0", "--rate", "10%", "--name", "two")
    done = user.run("testbed", "status", "--name", "two")
    assert "t1:1.0 fails: rate 10.00% of its own" in done.stdout and done.stderr == ""
    for name in ("one", "two"):
        assert user.run("testbed", "down", "--name", name).stdout == f"{name} is down\n"
    assert user.left() == []
    assert has_ended(keeper)
    assert user.run("testbed", "down", "--name", "one").stdout == "one was not up\n"
    assert user.left() == []


IN_HOSTS = """
import asyncio, os, threading, mrc, mrc.testbed

async def main():
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    inbox = bytearray(1 << 20)
    async with (
        mrc.testbed.up(planes=2, t1=1) as bed,
        bed.host("h0").context() as here,
        bed.host("h1").context() as there,
        there.register(inbox, writable=True) as region,
        there.listen(private=region.handle.to_dict()),
        here.register(b"x" * len(inbox)) as message,
        here.connect("h1") as qp,
        bed.fail("plane:1"),
    ):
        await qp.write(message, mrc.RemoteMemory.from_dict(qp.peer.private))
        assert inbox == b"x" * len(inbox)
        done = await bed.host("h0").run(["sh", "-c", "id -u; pwd; ping -c 1 h1.p2"], check=True)
        assert done.stdout.splitlines()[:2] == ["0", os.getcwd()]
    print(os.getuid(), len(os.listdir("/proc/self/task")) > 1)

asyncio.run(main())
"""


def test_library__hosts_in_a_process_of_several_threads(user: User) -> None:
    """No privilege, and no thread of the process enters a namespace. The keeper ends, too."""
    done = user.run_python("-c", IN_HOSTS)
    assert (done.stderr, done.stdout) == ("", f"{USER} True\n")
    assert user.left() == []


def test_library__a_crash_leaves_nothing(user: User) -> None:
    script = "import asyncio, os, mrc.testbed as beds\nasync def main():\n  {}\nasyncio.run(main())"
    body = "await beds.up(planes=1, t1=1); os.kill(os.getpid(), 9)"
    assert user.run_python("-c", script.format(body)).returncode == -signal.SIGKILL
    until(lambda: user.left() == [])


def test_up__has_no_interface_of_the_machine(user: User) -> None:
    done = user.run("testbed", "up", "--planes", "1", "--t1", "1", "--uplink", "eth0")
    assert done.stderr == (
        "mrc testbed up: this machine has no interface eth0; a test bed of an ordinary user has "
        "none of its interfaces: run this command as root\n"
    )
    assert done.returncode == 1 and user.left() == []


@pytest.mark.slow
def test_down__of_several_at_once_leaves_nothing(user: User) -> None:
    names = ("one", "two", "three")
    for name in names:
        user.does("testbed", "up", "--name", name, "--planes", "1", "--fabric", "emulated")
    keeper = user.keeper()
    downs = [user.start("testbed", "down", "--name", name) for name in names]
    assert [down.communicate()[0] for down in downs] == [f"{name} is down\n" for name in names]
    assert has_ended(keeper)
    assert user.left() == []


@pytest.mark.slow
def test_down__without_a_runtime_folder_leaves_nothing(user: User) -> None:
    user.runtime = ""
    done = user.run("testbed", "up", "--planes", "1", "--t1", "1")
    place = Path(f"/tmp/mrc-{USER}")
    assert (done.returncode, place.exists()) == (0, True), done.stderr
    user.does("testbed", "down")
    assert not place.exists()


def test_down__while_a_command_watches(user: User) -> None:
    """The command that ends last removes what they share."""
    user.does("testbed", "up", "--planes", "1", "--fabric", "emulated")
    keeper = user.keeper()
    with user.start("testbed", "capture", "h0", "a.pcap") as capture:
        assert capture.stderr is not None
        assert "capturing" in capture.stderr.readline()
        assert user.run("testbed", "down").stdout == "lab is down\n"
        capture.send_signal(signal.SIGINT)
        capture.communicate()
    assert has_ended(keeper)
    assert user.left() == []


def test_up__that_fails_leaves_nothing(user: User) -> None:
    done = user.run("testbed", "up", "--planes", "1000")
    assert (done.returncode, user.left()) == (2, []), done.stderr


def test_testbed__begins_anew_when_the_keeper_was_killed(user: User) -> None:
    up = ("testbed", "up", "--name", "one", "--planes", "1", "--fabric", "emulated")
    user.does(*up)
    user.kill_keeper()
    assert user.run(*up).stdout.startswith("one is up")
    user.kill_keeper()
    assert user.run("testbed", "down", "--name", "one").stdout == "one was not up\n"
    assert user.left() == []


@pytest.mark.default
@pytest.mark.parametrize("fabric", ["kernel", pytest.param("emulated", marks=pytest.mark.slow)])
def test_testbed__any_program_uses_the_fabric(user: User, fabric: str) -> None:
    """Names resolve without a file in /etc, and `down` ends what still runs."""
    user.does("testbed", "up", "--planes", "2", "--t1", "1", "--fabric", fabric)
    for name in ("h1", "h1.p2"):
        done = user.run("testbed", "exec", "h0", "--", "ping", "-c1", f"-W{PATIENCE:g}", name)
        assert (done.returncode, name in done.stdout) == (0, True), done.stderr
    with user.start("testbed", "exec", "h0", "--", "sh", "-c", "echo; exec sleep 60") as running:
        try:
            assert running.stdout is not None
            running.stdout.readline()
            command = Path(f"/proc/{running.pid}/cmdline")
            until(lambda: command.read_bytes() == b"sleep\x0060\0")
            done = user.run("testbed", "down", "--json")
            (ended,) = printed("testbed down", done.stdout)["ended"]
            assert (ended["node"], ended["command"], done.stderr) == ("h0", "sleep 60", "")
            assert running.wait(PATIENCE) == -signal.SIGTERM
        finally:
            running.kill()


@pytest.mark.slow
def test_top__sees_from_outside_who_is_inside(user: User) -> None:
    nobody = printed("top", user.run("top", "--local", "--json", "-i", "0.1").stdout)
    assert nobody["endpoints"] == [] and not (user.home / "mrc").exists()
    user.does("testbed", "up", "--planes", "1", "--t1", "1", "--fabric", "emulated")
    recv = ["testbed", "exec", "h1", "--", sys.executable, "-m", "mrc", "recv"]
    recv += ["--output", str(user.home)]
    with user.start(*recv) as receiving:
        assert receiving.stderr is not None
        while "listening" not in receiving.stderr.readline():
            assert receiving.poll() is None, receiving.stderr.read()
        shown = user.run("top", "--local", "--json", "-i", "0.1")
        receiving.terminate()
        receiving.communicate()
    (endpoint,) = printed("top", shown.stdout)["endpoints"]
    assert (endpoint["host"], endpoint["program"]) == ("h1", "mrc recv"), shown.stderr


def test_view__is_reached_from_outside(user: User) -> None:
    """The test bed is in a network namespace of the user; the page is where the browser is."""
    user.does("testbed", "up", "--planes", "1")
    with user.start("testbed", "view", "--json") as viewer:
        assert viewer.stdout is not None
        url = printed("testbed view", viewer.stdout.readline())["url"]
        body = json.dumps({"do": "fail", "target": "plane:1"}).encode()
        with urlopen(Request(f"{url}change", body, {"Content-Type": "application/json"})) as done:
            assert done.status == 204
        with urlopen(f"{url}feed") as feed:
            while not feed.readline().startswith(b"event: links"):
                pass
            assert [*json.loads(feed.readline().removeprefix(b"data: "))["faults"]] == ["plane:1"]
        viewer.send_signal(signal.SIGINT)
        _, errors = viewer.communicate()
    assert (viewer.returncode, errors) == (130, "mrc testbed view: interrupted\n")
    user.does("testbed", "down")
    assert user.left() == []


def test_testbed__trusts_no_folder_of_others(user: User) -> None:
    (user.home / "mrc").mkdir()  # owned by root
    done = user.run("testbed", "up", "--name", "one")
    assert done.returncode == 1
    assert "does not belong to you alone; set XDG_RUNTIME_DIR" in done.stderr
    (user.home / "mrc" / "keeper").touch()


def test_doctor__without_root(user: User) -> None:
    done = user.run("doctor")
    assert done.returncode == 0, done.stderr
    lines = {line.split()[1]: line for line in done.stdout.splitlines() if line.strip()}
    assert lines["seg6"].startswith("ok") and lines["uSIDs"].startswith("ok")
    assert done.stdout.endswith("mrc can run here\n")
    assert done.stderr == ""


# ---- Pods ----------------------------------------------------------------------------------------


PODS = {pod.name: pod for pod in pods()}
PLACE = "/mnt"  # of the volumes
NOTHING = "0000000000000000"


class Cluster:
    """Two pods, joined in each plane."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)
        self.running: list[Mrc] = []
        self.places = {name: f"mrc-{fresh_name()}" for name in ("there", "here")}

    def prepare(self, there: Pod, here: Pod) -> None:
        for one, other in zip(there.networks, here.networks, strict=True):
            name = one["interface"]
            assert other["interface"] == name
            join(self.places["there"], name, self.places["here"], name, mtu=9000)
            address(self.places["there"], name, *one["ips"])
            address(self.places["here"], name, *other["ips"])
            until_running(self.places["here"], name)
        key = [sys.executable, "-m", "mrc", "key", "--secret", str(self.folder / "key")]
        subprocess.run(key, check=True, stdout=subprocess.DEVNULL)

    def start(self, place: str, pod: Pod, *words: str) -> Mrc:
        """Starts `mrc` with the arguments of a pod, or this command in its place."""
        ids = pod.spec["securityContext"]
        argv = ["ip", "netns", "exec", self.places[place], *shown_to_all()]
        argv += ["sh", "-ec", self._mounts(pod), "sh", "setpriv", "--no-new-privs"]
        argv += ["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
        argv += [f"--reuid={ids['runAsUser']}", f"--regid={ids['runAsGroup']}"]
        argv += [f"--groups={ids['fsGroup']}", "--"]
        argv += words or [sys.executable, "-m", "mrc", *(_moved(each, pod) for each in pod.args)]
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
        self.running.append(Mrc.begin(argv, env))
        return self.running[-1]

    def _mounts(self, pod: Pod) -> str:
        """Commands that mount the volumes as the kubelet does, and make all else read-only."""
        group = pod.spec["securityContext"]["fsGroup"]
        lines = [f"mkdir -p {PLACE}; mount --bind {self.folder} {PLACE}; cd {PLACE}"]
        for mount in pod.container["volumeMounts"]:
            name = mount["name"]
            lines.append(f"mkdir -p {name}; chown root:{group} {name}; chmod 2775 {name}")
            if name == "secret":
                lines.append(f"cp key secret/secret; chown root:{group} secret/secret")
                lines.append("chmod 440 secret/secret; mount --bind -o ro secret secret")
        lines.append("for each in / /tmp /run /var; do")
        lines.append("  ! mountpoint -q $each || mount -o remount,bind,ro $each; done")
        return "\n".join([*lines, 'exec "$@"'])


def _moved(text: str, pod: Pod) -> str:
    """An argument with the path of a volume here: those of the manifest do not exist."""
    for mount in pod.container["volumeMounts"]:
        if text.startswith(mount["mountPath"]):
            return text.replace(mount["mountPath"], f"{PLACE}/{mount['name']}", 1)
    return text


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    with namespaces(*cluster.places.values()):
        try:
            yield cluster
        finally:
            for program in cluster.running:
                program.end()


def without_privilege(program: Mrc) -> None:
    """Of the program itself: each process on the way has become the next."""
    status = Path(f"/proc/{program.process.pid}/status").read_text()
    told = dict(line.split(":\t", 1) for line in status.splitlines())
    assert {told[key] for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {NOTHING}
    assert told["NoNewPrivs"] == "1" and "0" not in told["Uid"].split()


@pytest.mark.default
def test_recv__needs_no_privilege(cluster: Cluster) -> None:
    receiver, sender = PODS["mrc-recv"], PODS["mrc-perf-client"]
    cluster.prepare(receiver, sender)
    waiting = cluster.start("there", receiver).until_listening()
    without_privilege(waiting)
    (address,) = receiver.networks[0]["ips"]
    content = os.urandom(1 << 20)
    (cluster.folder / "file").write_bytes(content)
    send = ["send", f"{PLACE}/file", str(ip_interface(address).ip)]
    send += ["--secret", f"{PLACE}/secret/secret", "-B", "net1", "-B", "net2"]
    cluster.start("here", sender, sys.executable, "-m", "mrc", *send).ends(0)
    assert (cluster.folder / "inbox" / "file").read_bytes() == content


def test_root__is_read_only(cluster: Cluster) -> None:
    """Of what this test takes for a pod."""
    cluster.prepare(PODS["mrc-perf"], PODS["mrc-perf-client"])
    for folder in ("/tmp", "/var/tmp", f"{PLACE}/secret"):
        trying = cluster.start("here", PODS["mrc-perf"], "touch", f"{folder}/x")
        trying.ends(1)
        assert "Read-only file system" in trying.lines[-1] or "denied" in trying.lines[-1]
