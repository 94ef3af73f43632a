"""
Kernels of this interpreter that listen on Unix sockets in a private folder, not on ports.

The process that starts a kernel chooses five free ports, and the kernel binds them a second later.
Other processes may bind them meanwhile, such as ranks that join a group. One kernel in a hundred
dies of that: "Kernel died before replying to kernel_info". A Jupyter server then starts it again
with other ports, but nbval, which starts it once, fails.
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
    A kernel spec manager that always returns the kernel of this interpreter.

    The user may have installed a python3 kernel that belongs to another environment.
    """

    def get_kernel_spec(self, kernel_name):
        return self.kernel_spec_class(resource_dir=RESOURCES, **get_kernel_dict())


class _OnSockets:
    """
    A mixin that makes a manager's kernel listen on Unix sockets in a folder of this user alone.

    The folder is deleted with the manager. If its path is too long for a socket, or the system has
    no Unix sockets, the kernel listens on ports, as usual.
    """

    def __init__(self, **options):
        super().__init__(**options)
        folder = tempfile.mkdtemp(prefix="ddp-lessons-kernel-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.connection_file = os.path.join(folder, "kernel.json")
        if can_hold_sockets(folder):  # the kernel adds -1 to -5
            self.transport = "ipc"
            self.ip = os.path.join(folder, "socket")


class KernelOnSockets(_OnSockets, KernelManager):
    """
    A `jupyter_client.KernelManager` whose kernel listens on Unix sockets.
    """


class AsyncKernelOnSockets(_OnSockets, AsyncKernelManager):
    """
    A `jupyter_client.AsyncKernelManager` whose kernel listens on Unix sockets.
    """


def start_kernel(limit_s=60.0, **options):
    """
    Start a kernel of this interpreter.

    Args:
        limit_s: Seconds within which the kernel must answer.
        options: Options of `jupyter_client.KernelManager.start_kernel`, such as `env` and `cwd`.

    Returns:
        tuple: The KernelManager and a blocking client. The caller must end both.

    Raises:
        RuntimeError: The kernel has died or does not answer. It was shut down.
    """
    manager = KernelOnSockets(kernel_spec_manager=ThisInterpreter())
    manager.start_kernel(**options)
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=limit_s)
    except BaseException:  # also Ctrl-C
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        raise
    return manager, client
