"""
A test bed of hosts: the script `scripts/hosts.sh`, and the traces that it leaves on this machine.
"""

import os
import re
import shutil
import subprocess

import psutil
import pytest
from paths import ROOT

SCRIPT = ROOT / "scripts" / "hosts.sh"
NEEDED = ("ip", "tc", "sshd", "unshare", "nsenter")
PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])


def environment(folder, path=PATH):
    """
    Return the script's environment variables for the test bed in a folder.
    """
    own = {k: v for k, v in os.environ.items() if k != "DDP_LESSONS_NET"}
    return own | {"DDP_LESSONS_HOSTS": str(folder), "PATH": path}


def net_of(folder):
    """
    Return the first three numbers of a test bed's addresses.
    """
    return (folder / "net").read_text().strip()


def hosts(*arguments, folder, path=PATH):
    """
    Run the script on the test bed in a folder.
    """
    environ = environment(folder, path)
    return subprocess.run(
        [shutil.which("bash"), str(SCRIPT), *map(str, arguments)],
        capture_output=True, text=True, check=False, env=environ, timeout=60,
    )  # fmt: skip


def traces(folder, net):
    """
    Return all traces of a test bed on this machine: processes, devices, namespaces, its folder.
    """
    tag = f"ddp{net.replace('.', '')}"
    found = [folder.name] if folder.exists() else []
    for command in (["ip", "-o", "link"], ["ip", "netns", "list"]):
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found += re.findall(rf"\b{tag}(?:-\w+)?\b", listed)
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
