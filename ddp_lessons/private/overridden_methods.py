"""
Private methods of other packages that a class of the course overrides.

Without such a method in the other class, nothing calls ours. A test compares this list with the
classes.
"""

from ddp_lessons.private.reaching import register_private_name

register_private_name(
    "IPython.core.interactiveshell.InteractiveShell._tee",
    oldest_promised="IPython 9.1",
    lost="a rank's memory may grow by all that its cells print",
)
register_private_name(
    "IPython.core.interactiveshell.InteractiveShell._format_exception_for_storage",
    oldest_promised="IPython 9.1",
    lost="IPython may render a second time the traceback of each error on a rank",
)
register_private_name(
    "ipykernel.kernelbase.Kernel._publish_status",
    oldest_promised="ipykernel 7.3",
    lost="each cell costs two more messages of each rank",
)
register_private_name(
    "ipykernel.kernelbase.Kernel._publish_execute_input",
    oldest_promised="ipykernel 7.3",
    lost="each cell costs one more message of each rank",
)
register_private_name(
    "ipykernel.iostream.OutStream._watch_pipe_fd",
    oldest_promised="ipykernel 7.3",
    lost="what C++ code and child processes print may come after the cell has ended",
)
register_private_name(
    "ipyparallel.cluster.launcher.SlurmLauncher._insert_options_in_script",
    oldest_promised="ipyparallel 9.2",
    lost="`options` of the Slurm launcher do not reach the job",
)
register_private_name(
    "ipyparallel.cluster.launcher.BatchSystemLauncher._run_command",
    oldest_promised="ipyparallel 9.2",
    lost="the message of a job that Slurm refuses does not say why",
)
register_private_name(
    "ipyparallel.cluster.launcher.LocalProcessLauncher._wait",
    oldest_promised="ipyparallel 9.2",
    lost="a notebook may show an error of a thread when mpiexec ends",
)
register_private_name(
    "ipyparallel.cluster.launcher.SSHLauncher._start_waiting",
    oldest_promised="ipyparallel 9.2",
    lost="ipyparallel logs in once more for each rank on another host",
)
register_private_name(
    "ipyparallel.DirectView._really_apply",
    oldest_promised="ipyparallel 9.2",
    lost="a call of a view ends without an error when Stop is pressed",
)
register_private_name(
    "torch.nn.modules.batchnorm._BatchNorm._check_input_dim",
    oldest_promised="torch 2.11",
    lost="lesson 11's batch norm refuses every input in eval mode",
)
