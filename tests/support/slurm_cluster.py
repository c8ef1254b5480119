"""A real Slurm of one node in a temporary folder: munged, slurmctld and slurmd, started by root."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
START_SECONDS = 30.0
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=1
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=2
MinJobAge=300
InactiveLimit=0
SlurmdParameters=config_overrides
SlurmctldParameters=idle_on_node_suspend
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=cpu Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Return why no Slurm can be started here; "" if it can."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        return f"Slurm is not installed: {', '.join(missing)}"
    return "" if os.geteuid() == 0 else "only root can start Slurm"


@contextmanager
def slurm_cluster(cpus: int = 2) -> Iterator[Path]:
    """Start a Slurm whose jobs share so many cores while the block lasts, and yield its configuration file."""
    with tempfile.TemporaryDirectory(prefix="tenfold-slurm-") as name, ExitStack() as ending:
        folder, host = Path(name), socket.gethostname().split(".")[0]
        for part in ("state", "spool"):
            (folder / part).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        ports = {"controller_port": _free_port(), "node_port": _free_port()}
        configuration = folder / "slurm.conf"
        configuration.write_text(CONFIGURATION.format(folder=folder, host=host, cpus=cpus, **ports))
        environment = os.environ | {"SLURM_CONF": str(configuration), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        munged = ["munged", "-F", "-f", f"--key-file={key}", f"--socket={folder}/munge.socket"]
        munged += [f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/seed"]
        for command in (munged, ["slurmctld", "-D", "-i"], ["slurmd", "-D", "-N", host]):
            with (folder / f"{command[0]}.out").open("wb") as output:
                process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
            ending.callback(_end, process)
            if command is munged:
                _wait_for(lambda: (folder / "munge.socket").exists(), folder)
        _wait_for(lambda: _run(environment, "sinfo", "--noheader", "--format=%T") in ("idle", "mixed"), folder)
        try:
            yield configuration
        finally:
            _run(environment, "scancel", "--user=root")
            _wait_for(lambda: not _run(environment, "squeue", "--noheader"), folder)


def _run(environment: dict[str, str], *command: str) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout.strip()


def _wait_for(condition: Callable[[], bool], folder: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > until:
            logs = "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in folder.glob("*.[lo]*"))
            raise TimeoutError(f"Slurm did not start or end within {START_SECONDS:g} s\n{logs}")
        time.sleep(0.1)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
