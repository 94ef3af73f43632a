"""
A test bed of hosts for tests: `scripts/hosts.sh`, and what is left of it on this machine.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import psutil
import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "hosts.sh"
NET = "10.213.9"  # not that of one who has a test bed of their own up
NEEDED = ("ip", "tc", "sshd", "unshare", "nsenter")
PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])


def hosts(*arguments, folder, path=PATH):
    """
    Run the script on a test bed of its own.
    """
    environ = {**os.environ, "DDP_LESSONS_HOSTS": str(folder), "DDP_LESSONS_NET": NET, "PATH": path}
    return subprocess.run(
        [shutil.which("bash"), str(SCRIPT), *map(str, arguments)],
        capture_output=True, text=True, check=False, env=environ, timeout=60,
    )  # fmt: skip


def traces(folder):
    """
    Return what of a test bed is on this machine: processes, devices, namespaces, its folder.
    """
    tag = f"ddp{NET.replace('.', '')}"
    found = [folder.name] if folder.exists() else []
    for command in (["ip", "-o", "link"], ["ip", "netns", "list"]):
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found += re.findall(rf"{tag}[-\w]*", listed)
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or ()
        if any(str(folder) in word for word in words):
            found.append(" ".join(words))
    return found


needs_hosts = pytest.mark.skipif(
    any(shutil.which(name, path=PATH) is None for name in NEEDED)
    or subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode != 0,
    reason="needs iproute2, openssh-server, and root that may make network namespaces",
)
