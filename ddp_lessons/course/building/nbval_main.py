"""
Run pytest, and let nbval start in a quarter of its time, with a kernel that needs no port.

This file runs as a process of its own. nbformat validates notebooks by jsonschema, which compiles a
grammar of international addresses when it is imported: 0.8 s of the 1.0 s that nbval takes. No rule
of a notebook is about such an address, and without that package jsonschema skips them.
"""

import runpy
import sys

if __name__ == "__main__":
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # as if not installed
    import jupyter_client.manager

    from ddp_lessons.course.building.kernels import KernelOnSockets

    jupyter_client.manager.KernelManager = KernelOnSockets  # type: ignore[misc]  # nbval's
    runpy.run_module("pytest", run_name="__main__", alter_sys=True)
