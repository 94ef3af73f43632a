"""
Facts about this machine, as plain data. Each probe is a small function that cannot hang.

The module `ddp_lessons.course.doctor.doctor` judges whether a fact is good or bad.
"""

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ddp_lessons.course.doctor.torch_report import TorchReport, ask_torch
from ddp_lessons.errors import StartFailed
from ddp_lessons.ranks.system.network_interfaces import GROUP_VARIABLES, group_address, interface_of
from ddp_lessons.ranks.system.resource_limits import memory, usable_cores

PACKAGES = ("torch", "ipyparallel", "jupyterlab", "ipykernel", "scikit-learn", "matplotlib")
NVIDIA_SMI_DEADLINE_S = 10


@dataclass(frozen=True)
class Gpu:
    """
    A GPU that the driver lists.
    """

    name: str
    memory_bytes: int


@dataclass(frozen=True)
class Machine:
    """
    The facts about a machine that the doctor judges.

    Args:
        python: Version of the Python that runs this, such as (3, 12, 4).
        system: sys.platform.
        packages: Version of each installed package of PACKAGES.
        num_cores: CPU cores that this process may use.
        memory_bytes: Memory that this process may use, free or not.
        free_memory_bytes: Memory that is free now.
        shm_bytes: Size of /dev/shm; None where there is none.
        has_loopback: Whether a socket can be opened on 127.0.0.1.
        temp_folder: The folder for temporary files, or "" if none can be written to.
        driver: Version of NVIDIA's driver, or None.
        gpus: GPUs that the driver lists.
        num_gpus_on_bus: NVIDIA GPUs that are plugged in, driver or not.
        torch: The TorchReport of the installed torch.
        others_stop_at: Path that keeps other users from running this Python, or "".
        interfaces: Names of the loopback interface and of the interface on which Gloo listens.
        is_interface_there: Whether this machine has the interface of GLOO_SOCKET_IFNAME, if set.
    """

    python: tuple
    system: str
    packages: dict
    num_cores: int
    memory_bytes: int
    free_memory_bytes: int
    shm_bytes: int | None
    has_loopback: bool
    temp_folder: str
    driver: str | None = None
    gpus: tuple = ()
    num_gpus_on_bus: int = 0
    torch: TorchReport = field(default_factory=TorchReport)
    others_stop_at: str = ""
    interfaces: tuple = ("lo", "lo")
    is_interface_there: bool = True


def look_at_machine():
    """
    Run every probe, which takes a few seconds, most of them to import torch.

    Returns:
        Machine: The facts that the probes found.
    """
    memory_bytes, free_memory_bytes = memory()
    driver, gpus = nvidia_driver()
    temp_folder = writable_temp_folder()
    packages = installed_packages()
    return Machine(
        python=sys.version_info[:3],
        system=sys.platform,
        packages=packages,
        num_cores=usable_cores(),
        memory_bytes=memory_bytes,
        free_memory_bytes=free_memory_bytes,
        shm_bytes=shm_size(),
        has_loopback=loopback(),
        temp_folder=temp_folder,
        driver=driver,
        gpus=gpus,
        num_gpus_on_bus=gpus_on_bus(),
        torch=ask_torch() if temp_folder and "torch" in packages else TorchReport(),
        others_stop_at=others_stop_at(),
        interfaces=group_interfaces(),
        is_interface_there=finds_told_interface(),
    )


def installed_packages(names=PACKAGES):
    """
    Return the version of each package that is installed, without importing any.
    """
    found = {}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def others_stop_at(*needed):
    """
    Return the first file or folder that keeps other users from running this Python, or "".

    If root has made an environment from a Python in root's home, it works for root only.

    Args:
        needed: Paths that they must be able to read; default: Python, its packages, this package.
    """
    for path in map(Path, needed or (sys.executable, sysconfig.get_path("purelib"), __file__)):
        for folder in (*reversed(path.absolute().parents), *reversed(path.resolve().parents)):
            if not folder.stat().st_mode & stat.S_IXOTH:
                return str(folder)
        if not path.stat().st_mode & stat.S_IROTH:
            return str(path.resolve())
    return ""


def shm_size(path="/dev/shm"):
    """
    Return the size of /dev/shm in bytes, or None where there is none.
    """
    try:
        return shutil.disk_usage(path).total
    except OSError:
        return None


def loopback():
    """
    Tell whether a socket on 127.0.0.1 can be opened and reached.
    """
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=2).close()
    except OSError:
        return False
    return True


def group_interfaces():
    """
    Return the names of the loopback interface and of the interface on which Gloo listens.
    """
    loopback = _interface_of_name("localhost") or "none"
    own = _interface_of_name(socket.gethostname())
    # If the machine's own name has no address, Gloo listens on the loopback interface.
    return loopback, os.environ.get(GROUP_VARIABLES[0]) or own or loopback


def finds_told_interface():
    """
    Tell whether this machine has the interface that GLOO_SOCKET_IFNAME names, if it is set.
    """
    try:
        return not os.environ.get(GROUP_VARIABLES[0]) or bool(group_address())
    except StartFailed:
        return False


def _interface_of_name(name):
    try:
        return interface_of(socket.gethostbyname(name))
    except (OSError, StartFailed):
        return ""


def writable_temp_folder():
    """
    Return the folder for temporary files, or "" if none can be written to.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="ddp-doctor-") as folder:
            (Path(folder) / "probe").write_bytes(b"\0" * 4096)
            return os.path.dirname(folder)
    except OSError:
        return ""


def parse_nvidia_smi(text):
    """
    Read `nvidia-smi --query-gpu=driver_version,memory.total,name --format=csv,noheader,nounits`.

    Returns:
        (str | None, tuple): The driver's version and the GPUs.
    """
    driver, gpus = None, []
    for line in text.splitlines():
        fields = [part.strip() for part in line.split(",", 2)]
        if len(fields) == 3:
            driver = fields[0]
            mib = int(fields[1]) if fields[1].isdigit() else 0  # "[N/A]" on some boards
            gpus.append(Gpu(fields[2], mib << 20))
    return driver, tuple(gpus)


def nvidia_driver():
    """
    Ask NVIDIA's driver for its version and its GPUs; (None, ()) if it does not answer.
    """
    query = "--query-gpu=driver_version,memory.total,name"
    try:
        answer = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=NVIDIA_SMI_DEADLINE_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None, ()
    return parse_nvidia_smi(answer.stdout) if answer.returncode == 0 else (None, ())


def gpus_on_bus(root="/sys/bus/pci/devices"):
    """
    Count NVIDIA's GPUs that are plugged in, whether a driver knows them or not. Linux only.
    """
    count = 0
    for device in Path(root).glob("*"):
        with contextlib.suppress(OSError):
            is_nvidia = (device / "vendor").read_text().strip() == "0x10de"
            is_display = (device / "class").read_text().startswith("0x03")
            count += is_nvidia and is_display
    return count
