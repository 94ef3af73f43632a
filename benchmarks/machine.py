"""
Describe the machine of a measurement, without names of hosts or users, and without paths.
"""

import contextlib
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from ddp_lessons.course.doctor.machine import memory, usable_cores

PACKAGES = ("torch", "ipyparallel", "ipykernel", "pyzmq")


def describe_machine():
    """
    Return the facts that a reader needs to judge a time: processor, cores, memory, versions.

    Returns:
        dict: Plain data. `load` is the mean number of processes that wanted to run in the last
        minute.
    """
    memory_bytes, _ = memory()
    return {
        "cpu": cpu_model(),
        "num_cores": usable_cores(),
        "memory_mib": memory_bytes >> 20,
        "system": system_name(),
        "kernel": kernel_version(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "load": round(os.getloadavg()[0], 2),
    }


def cpu_model(cpuinfo="/proc/cpuinfo"):
    """
    Return the processor's name as its maker writes it.

    Args:
        cpuinfo: File in which Linux lists processors.
    """
    with contextlib.suppress(OSError):
        found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", Path(cpuinfo).read_text(), re.M)
        if found:
            return " ".join(found[1].split())
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            return subprocess.check_output(command, text=True, timeout=10).strip()
    return platform.machine()


def system_name():
    """
    Return the operating system and its version.
    """
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    with contextlib.suppress(OSError):
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    return platform.system()


def kernel_version():
    """
    Return the numbers of the kernel's version, without its builder's suffix.
    """
    found = re.match(r"[0-9.]*[0-9]", platform.release())
    return found[0] if found else ""


def machine_slug(machine):
    """
    Return a name for files about a machine: its processor, cores and memory.

    Args:
        machine: The dict that `describe_machine` returned.
    """
    cpu = re.sub(r"\((?:R|TM)\)|\bCPU\b|\bProcessor\b|@.*", "", machine["cpu"], flags=re.I)
    memory_gib = round(machine["memory_mib"] / 1024)
    words = f"{cpu} {machine['num_cores']} cores {memory_gib} gib"
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
