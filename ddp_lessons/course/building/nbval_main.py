"""
A process that runs pytest with nbval, which starts in a quarter of its usual time, without ports.

nbformat validates notebooks with jsonschema. When jsonschema is imported, it compiles a grammar of
international addresses, which takes 0.8 s of the 1.0 s that nbval needs to start. No rule of the
notebook format uses such addresses. If `rfc3987_syntax` is missing, jsonschema skips the grammar.
"""

import runpy
import sys

if __name__ == "__main__":
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # as if not installed
    import jupyter_client.manager

    from ddp_lessons.course.building.kernels import KernelOnSockets

    jupyter_client.manager.KernelManager = KernelOnSockets  # type: ignore[misc]  # nbval's
    runpy.run_module("pytest", run_name="__main__", alter_sys=True)
