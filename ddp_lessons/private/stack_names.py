"""
Private names of torch's functions that the course looks for on the stack of a rank that waits.
"""

import importlib
from collections.abc import Callable

from ddp_lessons.private.reaching import register_private_name

FORMING = "_new_process_group_helper"
"""
The function in which `init_process_group` and all kinds of `new_group` make the group.
"""
BACKWARD = "_engine_run_backward"
"""
The function in which a backward pass runs.
"""
DDP_FORWARD = "_pre_forward"
"""
The method of DistributedDataParallel that communicates before a forward pass.
"""
CONNECTS_TO_A_STORE = ("_create_c10d_store", "_tcp_rendezvous_handler")
"""
Functions that exceed the time limit if a foreign server answers at the store's port.
"""


def _is_in_module(module: str, name: str) -> Callable[[], bool]:
    # By the module's own name: `torch.distributed.rendezvous` is a function, too.
    return lambda: hasattr(importlib.import_module(module), name)


register_private_name(
    f"torch.distributed.distributed_c10d.{FORMING}",
    oldest_promised="torch 2.11",
    lost="a rank that waits in the making of a group cannot be released",
)
register_private_name(
    f"torch.autograd.graph.{BACKWARD}",
    oldest_promised="torch 2.11",
    lost="the table of a stalled cell does not say that a rank is in a backward pass",
)
register_private_name(
    f"torch.nn.parallel.DistributedDataParallel.{DDP_FORWARD}",
    oldest_promised="torch 2.11",
    lost="the table of a stalled cell does not say that a rank is in a forward pass of DDP",
)
for _name in CONNECTS_TO_A_STORE:
    register_private_name(
        f"torch.distributed.rendezvous.{_name}",
        oldest_promised="torch 2.11",
        lost="a message does not say that a join has found a foreign server at its address",
        probe=_is_in_module("torch.distributed.rendezvous", _name),
    )
