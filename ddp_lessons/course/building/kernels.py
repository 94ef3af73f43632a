"""
Kernels of this interpreter that listen on sockets in a folder of their own, and on no port.

Whoever starts a kernel chooses its five ports, and the kernel binds them a second later. On a
machine where others bind ports meanwhile, such as ranks that join a group, one kernel in a hundred
dies of that: "Kernel died before replying to kernel_info". A Jupyter server then starts it again
with other ports; what runs a notebook once, as nbval does, fails.
"""

import os
import shutil
import tempfile
import weakref

from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager, KernelManager

from ddp_lessons.ranks.supervisor.controller_options import can_hold_sockets


class ThisInterpreter(KernelSpecManager):
    """
    Give kernels of this interpreter.

    The user may have installed a python3 kernel that belongs to another environment.
    """

    def get_kernel_spec(self, kernel_name):
        return self.kernel_spec_class(resource_dir=RESOURCES, **get_kernel_dict())


class _OnSockets:
    """
    Let a manager's kernel listen on sockets in a folder that only this user can enter.

    The folder goes with the manager. Where its path is too long for sockets, or the system has
    none, the kernel has ports as any other.
    """

    def __init__(self, **options):
        super().__init__(**options)
        folder = tempfile.mkdtemp(prefix="ddp-lessons-kernel-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.connection_file = os.path.join(folder, "kernel.json")
        if can_hold_sockets(folder):  # a kernel's are socket-1 to socket-5
            self.transport = "ipc"
            self.ip = os.path.join(folder, "socket")


class KernelOnSockets(_OnSockets, KernelManager):
    """
    Manage a kernel that listens on sockets: see `jupyter_client.KernelManager`.
    """


class AsyncKernelOnSockets(_OnSockets, AsyncKernelManager):
    """
    Manage a kernel that listens on sockets: see `jupyter_client.AsyncKernelManager`.
    """


def start_kernel(limit_s=60.0, **options):
    """
    Start a kernel of this interpreter.

    Args:
        limit_s: Seconds within which it must answer.
        options: Such as `env` and `cwd`, and others of `jupyter_client.KernelManager.start_kernel`.

    Returns:
        tuple: The KernelManager and a blocking client, which both are the caller's to end.

    Raises:
        RuntimeError: The kernel has died or does not answer. Nothing of it is left.
    """
    manager = KernelOnSockets(kernel_spec_manager=ThisInterpreter())
    manager.start_kernel(**options)
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=limit_s)
    except BaseException:  # Ctrl-C, too
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        raise
    return manager, client
