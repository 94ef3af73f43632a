"""
Tests that training does not import torch's compiler, and that the compiler works once it is used.
"""

import subprocess
import sys

import pytest
from kernels import running_kernel

ALONE = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from ddp_lessons.private.lazy_compiler import defer_compiler_import

STEPS = {name: getattr(torch.optim, name).step for name in ("SGD", "Adam", "AdamW", "RMSprop")}
CODES = {name: step.__code__ for name, step in STEPS.items()}
defer_compiler_import()
defer_compiler_import()  # as often as one likes
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

def train(name, after=lambda model: model):
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(3, 2))
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
    called = after(model)
    for _ in range(3):
        optimizer.zero_grad()
        called(torch.arange(6.0).reshape(2, 3)).square().sum().backward()
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    return [p.tolist() for p in model.parameters()]

def is_torchs_own():
    own = all(step.__code__ is CODES[name] for name, step in STEPS.items())
    return own and not hasattr(torch.optim.Optimizer.zero_grad.__wrapped__, "__dynamo_disable")
"""


def run_alone(source):
    """
    Run ALONE and a program in a fresh interpreter, and return the words that it printed.
    """
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ALONE + source],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


def test_training_does_without_the_compiler_and_learns_the_same():
    """
    Our replacements of torch's functions import no compiler, and give bitwise the same weights as
    torch's own.
    """
    printed = run_alone("""
plain = {name: train(name) for name in STEPS}
print("torch._dynamo" in sys.modules)
import torch._dynamo
print(is_torchs_own(), {name: train(name) for name in STEPS} == plain)
""")
    assert printed == ["False", "True", "True"]


@pytest.mark.parametrize(
    "ask",
    [
        "torch.compile(train, backend='eager')",
        "torch._dynamo.config.suppress_errors",
        "__import__('torch._dynamo.config')",
        "setattr(torch._dynamo, 'mark', 1)",
    ],
)
def test_whoever_asks_for_the_compiler_gets_torchs_own(ask):
    """
    Any use of the compiler imports it completely and restores torch's own functions: a
    half-imported compiler would fail far from its cause.
    """
    printed = run_alone(f"""
train("SGD")
{ask}
import types
print(isinstance(torch._dynamo, types.ModuleType), torch._dynamo is sys.modules["torch._dynamo"])
print(is_torchs_own(), torch._dynamo.utils.get_optimize_ddp_mode())
""")
    assert printed == ["True", "True", "True", "ddp_optimizer"]


def test_step_switches_gradients_as_torchs_does():
    """
    Our replacement of `step` disables gradients, and restores them, as torch's does. A mistake
    would appear as a memory leak, or as a model that no longer learns, far from its cause.
    """
    printed = run_alone("""
seen = []
class Watched(torch.optim.SGD):
    def _init_group(self, *args):
        seen.append(torch.is_grad_enabled())
        if len(seen) > 4:
            raise ValueError
        return super()._init_group(*args)

for settings in ({}, {"differentiable": True}, {}):
    optimizer = Watched([torch.nn.Parameter(torch.ones(1))], lr=0.1, **settings)
    try:
        optimizer.step()
    except ValueError:
        pass
    seen.append(torch.is_grad_enabled())
print(*seen, "torch._dynamo" in sys.modules)
""")
    assert printed == ["False", "True", "True", "True", "False", "True", "False"]


def test_another_torch_imports_its_compiler_as_it_likes():
    """
    If another version of torch lacks the private functions that we replace, training works, and
    torch imports its compiler as usual.
    """
    source = """
import sys
import torch
del sys.modules["torch._compile"]._disable_dynamo
del sys.modules["torch.optim.optimizer"]._use_grad_for_differentiable
from ddp_lessons.private.lazy_compiler import defer_compiler_import

defer_compiler_import()
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.5)
weight.sum().backward()
optimizer.step()
print(weight.item(), "torch._dynamo" in sys.modules)
"""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", source],
        capture_output=True,
        text=True,
    )
    assert ran.stdout == "0.5 True\n", ran.stderr


CELL = """%%px
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from ddp_lessons.workloads import digits_model, load_digits

digits = load_digits()

def train(compiled):
    inner = digits_model(seed=0)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.5, momentum=0.9)
    model = DistributedDataParallel(
        torch.compile(inner, backend="aot_eager") if compiled else inner
    )
    shard = slice(dist.get_rank(), None, dist.get_world_size())
    for _ in range(5):
        optimizer.zero_grad()
        logits = model(digits.train_images[shard])
        torch.nn.functional.cross_entropy(logits, digits.train_labels[shard]).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in inner.parameters()])

plain = train(compiled=False)
before = [name for name in ("torch._dynamo", "sklearn", "scipy") if name in sys.modules]
"""
COMPILED = """%%px
from torch._dynamo.utils import counters

compiled = train(compiled=True)
graphs = counters["stats"]["unique_graphs"]
equal = torch.allclose(plain, compiled, rtol=0, atol=1e-5)
"""


def test_a_rank_trains_without_the_compiler_and_compiles_afterwards():
    """
    A rank trains without the compiler, which saves half a gigabyte with four ranks, and
    `torch.compile` still works there afterwards.
    """
    with running_kernel() as kernel:
        kernel.run("from ddp_lessons import start_ranks\nranks = start_ranks(2, device='cpu')")
        assert kernel.run(CELL).status == "ok"
        assert kernel.value("ranks.view['before']") == [[], []]
        assert kernel.run(COMPILED).status == "ok"
        assert kernel.value("[min(g, 1) for g in ranks.view['graphs']]") == [1, 1]
        assert kernel.value("ranks.view['equal']") == [True, True]
