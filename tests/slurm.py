"""A real Slurm of two nodes on one machine: each node, and the controller with the user's shell, is a
network namespace of its own, so that both nodes can listen on the same port. Nothing is changed outside
of the namespaces and one folder: daemons, names and links are gone when their holders end.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

TOOLS = ("slurmctld", "slurmd", "srun", "sinfo", "munged", "ip", "nsenter", "unshare", "mount", "hostname")
NODES = ("n1", "n2")
ADDRESSES = {"ctl": "10.77.0.254", "n1": "10.77.0.1", "n2": "10.77.0.2"}
READY_SECONDS = 30.0
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

_CONF = """\
ClusterName=gpucheck
SlurmctldHost=ctl(10.77.0.254)
SlurmctldPort=26817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={state}/munge.socket
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
ReturnToService=2
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={state}/slurmd.%n.pid
SlurmdSpoolDir={state}/spool.%n
StateSaveLocation={state}/state
SlurmctldLogFile={state}/slurmctld.log
SlurmdLogFile={state}/slurmd.%n.log
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
KillWait=2
NodeName=n1 NodeHostname=n1 NodeAddr=10.77.0.1 Port=26901 CPUs=4 RealMemory=100
NodeName=n2 NodeHostname=n2 NodeAddr=10.77.0.2 Port=26901 CPUs=4 RealMemory=100
PartitionName=p Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def unavailable() -> str | None:
    """Why no Slurm can be started here; None when it can."""
    if sys.platform != "linux":
        return "a Slurm of two nodes needs Linux"
    if missing := [tool for tool in TOOLS if shutil.which(tool, path=_PATH) is None]:
        return f"a Slurm of two nodes needs {', '.join(missing)} (slurmctld slurmd slurm-client munge iproute2)"
    if os.geteuid() != 0:
        return "a Slurm of two nodes needs root, for network namespaces"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, text=True, check=False
    )
    return f"no network namespaces here: {tried.stderr.strip()}" if tried.returncode else None


class Slurm:
    """Use as a context. ``state`` is a folder for everything that it writes; ``gpus`` is how many each node has,
    in Slurm's view (Gres); ``more`` are further lines of slurm.conf."""

    def __init__(self, state: Path, *, gpus: int = 0, more: str = "") -> None:
        self.state = state
        self._gpus = gpus
        self._more = more
        self.environ = {**os.environ, "PATH": f"{_PATH}:{os.environ['PATH']}", "SLURM_CONF": str(state / "slurm.conf")}
        self._started: list[subprocess.Popen[bytes]] = []
        self._holders: dict[str, int] = {}

    def __enter__(self) -> Slurm:
        try:
            self._prepare()
            self._link()
            self._daemons()
            self._wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what was started, the last first."""
        with suppress(subprocess.SubprocessError, KeyError):
            self.run(["scancel", "--user=root"], timeout=5)
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in reversed(self._started):
                if process.poll() is None:
                    process.send_signal(number)
            for process in self._started:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(3)

    def run(
        self, command: Sequence[str], *, timeout: float = 60, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A command beside the controller, such as srun."""
        return subprocess.run(
            [*self._inside("ctl"), *command],
            env={**self.environ, **(environ or {})},
            cwd=self.state,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    # --- how it comes up ------------------------------------------------------------------------

    def _prepare(self) -> None:
        for folder in ("state", "spool.n1", "spool.n2"):
            (self.state / folder).mkdir(parents=True)
        conf = _CONF.format(state=self.state)
        if self._gpus:
            conf = conf.replace("NodeName=n1", "GresTypes=gpu\nNodeName=n1")
            conf = conf.replace("RealMemory=100", f"RealMemory=100 Gres=gpu:{self._gpus}")
            for number in range(self._gpus):  # slurmd counts files; these stand for /dev/nvidia0 and so on
                (self.state / f"gpu{number}").touch()
            (self.state / "gres.conf").write_text(f"Name=gpu File={self.state}/gpu[0-{self._gpus - 1}]\n")
        (self.state / "slurm.conf").write_text(conf + self._more)
        hosts = "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
        (self.state / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        key = self.state / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        for name in ADDRESSES:
            script = f"mount --bind {self.state}/hosts /etc/hosts && hostname {name} && exec sleep infinity"
            holder = self._start(["unshare", "--net", "--uts", "--mount", "sh", "-c", script])
            self._holders[name] = holder.pid
        self._until(lambda: all(self._held(name) for name in ADDRESSES), "the namespaces")

    def _held(self, name: str) -> bool:
        """Whether a holder came as far as its sleep."""
        return Path(f"/proc/{self._holders[name]}/comm").read_text().strip() == "sleep"

    def _link(self) -> None:
        """A bridge in the controller's namespace, and a link to each node."""
        self._in("ctl", "ip link set lo up")
        self._in("ctl", "ip link add br0 type bridge")
        self._in("ctl", f"ip addr add {ADDRESSES['ctl']}/24 dev br0")
        self._in("ctl", "ip link set br0 up")
        for node in NODES:
            self._in("ctl", f"ip link add {node} type veth peer name eth0 netns {self._holders[node]}")
            self._in("ctl", f"ip link set {node} master br0 up")
            self._in(node, "ip link set lo up")
            self._in(node, f"ip addr add {ADDRESSES[node]}/24 dev eth0")
            self._in(node, "ip link set eth0 up")

    def _daemons(self) -> None:
        state = self.state
        munge = [f"--{name}-file={state}/munge.{name}" for name in ("key", "log", "pid", "seed")]
        self._start(["munged", "--foreground", "--force", f"--socket={state}/munge.socket", *munge])
        self._until((state / "munge.socket").exists, "munged")
        self._start([*self._inside("ctl"), "slurmctld", "-D"])
        for node in NODES:
            self._start([*self._inside(node), "slurmd", "-D", "-N", node])

    def _wait(self) -> None:
        self._until(lambda: self.run(["sinfo", "-h", "-o", "%T %D"], timeout=10).stdout == "idle 2\n", "the nodes")

    def _until(self, there: object, what: str) -> None:
        assert callable(there)
        deadline = time.monotonic() + READY_SECONDS
        while not there():
            if time.monotonic() > deadline:
                logs = "\n".join(log.read_text()[-2000:] for log in sorted(self.state.glob("*.log")))
                raise RuntimeError(f"Slurm: {what} did not come up\n{logs}")
            time.sleep(0.05)

    def _inside(self, name: str) -> list[str]:
        return ["nsenter", f"--target={self._holders[name]}", "--net", "--uts", "--mount"]

    def _in(self, name: str, command: str) -> None:
        subprocess.run([*self._inside(name), *command.split()], env=self.environ, check=True, capture_output=True)

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self.state / "daemons.log").open("ab") as log:
            process = subprocess.Popen(
                command, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.state
            )
        self._started.append(process)
        return process
