"""
Tests of the training step after a fault: messages that a model had under way must not come back.

Four models of the course send messages in the background. Each fault breaks off a training step, so
that some ranks have messages under way and others have none. Then all ranks continue to train with
the same model.
"""

import pytest
from kernels import running_kernel

pytestmark = [pytest.mark.timeout(180)]

PREPARE = """%%px
import threading
import torch, torch.distributed as dist
from ddp_lessons.beyond_ddp.fsdp import FullySharded
from ddp_lessons.replicas import OverlappedReplica, SharedMemoryReplica
from ddp_lessons.sharded_optimizer import OverlappedOptimizer
from ddp_lessons.workloads import digits_model

rank, x = dist.get_rank(), torch.randn(8, 64)
small = {"bucket_cap_bytes": 1, "first_bucket_cap_bytes": 1}
makers = {
    "overlapped": lambda plain: OverlappedReplica(plain, **small),
    "shared memory": lambda plain: SharedMemoryReplica(plain, **small),
    "sharded": FullySharded,
    "sharded optimizer": lambda plain: plain,  # the optimizer averages by itself
}

def make(name):
    global plain, model, optimizer
    plain = digits_model(seed=0, size="medium")
    model = makers[name](plain)
    if name == "sharded optimizer":
        optimizer = OverlappedOptimizer(model, torch.optim.SGD, lr=0.1)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()

def layers():
    return [part for part in plain.modules() if isinstance(part, torch.nn.Linear)]

def stand_still(*_):
    threading.Event().wait(60)

def give_up(*_):
    raise ValueError("on purpose")
"""
NAMES = ["overlapped", "shared memory", "sharded", "sharded optimizer"]
FAULTS = {
    "one does not train": "if rank != 2: train()",
    "one raises before, one is slow in forward": """
if rank == 1: hook = layers()[1].register_forward_hook(stand_still)
if rank == 2: raise ValueError("on purpose")
train()""",
    "one raises before, one is slow in backward": """
if rank == 1: hook = layers()[-1].weight.register_post_accumulate_grad_hook(stand_still)
if rank == 2: raise ValueError("on purpose")
train()""",
    "one raises in forward": """
if rank == 1: hook = layers()[-1].register_forward_hook(give_up)
train()""",
    "one raises in backward": """
if rank == 1: hook = layers()[1].weight.register_post_accumulate_grad_hook(give_up)
train()""",
    "one raises at the end of backward": """
if rank == 1: hook = layers()[0].weight.register_post_accumulate_grad_hook(give_up)
train()""",
}
UNDER_WAY = ("sharded optimizer", "one raises at the end of backward")
"""
The model and fault in which the other ranks finish their step: their messages stay under way until
the next forward, which reports once that they did not arrive.
"""


@pytest.fixture(scope="module")
def kernel():
    """
    Yield a kernel with three ranks, on which the faults happen one after another, as in a lesson.
    """
    with running_kernel() as kernel:
        for cell in ("from ddp_lessons import start_ranks\nranks = start_ranks(3)", PREPARE):
            result = kernel.run(cell)
            assert result.status == "ok", result
        yield kernel


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_model_trains_on_after_a_fault(kernel, name, fault):
    """
    After a broken step two more steps run and reduce the loss: the error of the broken step does
    not come again.
    """
    result = kernel.run(f"%%px\nhook = None\nmake({name!r})\ntrain()")
    assert result.status == "ok", result
    result = kernel.run(f"%%px\n{FAULTS[fault]}")
    assert result.status == "error"
    assert "Connection closed" not in result.evalue
    train_on = "%%px\nif hook is not None: hook.remove()\nafter = [train(), train()]"
    result = kernel.run(train_on)
    if (name, fault) == UNDER_WAY:
        assert "Parameters of the last step did not come" in result.evalue
        result = kernel.run(train_on)
    assert result.status == "ok", result
    losses = kernel.value("ranks.view['after']")
    assert all(later < sooner for sooner, later in losses)
