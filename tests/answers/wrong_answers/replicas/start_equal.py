"""
Answers to task 05.1.
"""

from bank import Answer, changed

from wrong_answers.replicas.sources import START, altered

TENSORS = "[*model.parameters(), *model.buffers()]"

BROADCAST = """\
        numbers = tensor.detach().contiguous()
        dist.broadcast(numbers, src=0)
        tensor.detach().copy_(numbers)
"""


def _started(what, mistake, lines):
    """
    Return an answer to 05.1 that treats each tensor, called `one`, by these lines.
    """
    own = "        one = tensor.detach()\n" + lines
    return altered("05.1", what, mistake, (BROADCAST, own))


def _converted(what, condition, dtype, who="True"):
    return _started(
        what,
        "sent-dtype",
        f"        box = one.to({dtype}) if {condition} else one\n"
        f"        dist.broadcast(box, src=0)\n        if {who}: one.copy_(box)\n",
    )


ANSWERS = [
    # ---- 05.1 ----
    Answer(
        "05.1",
        "sends a copy",
        "unchanged",
        changed(START, ("        tensor.detach().copy_(numbers)\n", ""), ("contiguous", "clone")),
    ),
    _started("sends what is there", "gaps", "        dist.broadcast(one, src=0)\n"),
    _started(
        "all but rank 0 add -0.0, into what is there",
        "gaps",
        "        if dist.get_rank(): one.fill_(-0.0)\n        dist.all_reduce(one)\n",
    ),
    altered(
        "05.1",
        "makes its copies contiguous only where there are many numbers",
        "gaps",
        ("tensor.detach().contiguous()", "tensor.detach()"),
        (
            "        dist",
            "        if numbers.numel() > 2:\n            numbers = numbers.contiguous()\n"
            "        dist",
        ),
    ),
    Answer(
        "05.1",
        "sends what is trained, and buffers",
        "frozen",
        changed(
            START,
            (TENSORS, "[*(p for p in model.parameters() if p.requires_grad), *model.buffers()]"),
        ),
    ),
    Answer(
        "05.1", "sends parameters only", "buffers", changed(START, (TENSORS, "model.parameters()"))
    ),
    Answer(
        "05.1",
        "sends what state_dict names",
        "not-saved",
        changed(START, (TENSORS, "model.state_dict().values()")),
    ),
    Answer(
        "05.1",
        "averages the weights of all ranks",
        "not-rank-0",
        """\
import torch
import torch.distributed as dist

def start_equal(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        total = tensor.detach().double()
        dist.all_reduce(total)
        with torch.no_grad():
            tensor.copy_(total / dist.get_world_size())
""",
    ),
    Answer(
        "05.1",
        "draws new weights from one seed",
        "not-rank-0",
        """\
import torch

def start_equal(model):
    torch.manual_seed(0)
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.copy_(10 * torch.randn(tensor.shape))
""",
    ),
    Answer(
        "05.1",
        "sends from the last rank",
        "other-root",
        changed(START, ("src=0", "src=dist.get_world_size() - 1")),
    ),
    Answer(
        "05.1",
        "makes new parameters",
        "replaced",
        """\
import torch
import torch.distributed as dist

def start_equal(model):
    new = {}
    for name, parameter in model.named_parameters():
        tensor = parameter.detach().clone()
        dist.broadcast(tensor, src=0)
        new[parameter] = torch.nn.Parameter(tensor, requires_grad=parameter.requires_grad)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, new[parameter])
    for tensor in model.buffers():
        dist.broadcast(tensor, src=0)
""",
    ),
    Answer(
        "05.1",
        "sends a list of tensors as an object",
        "objects",
        """\
import torch
import torch.distributed as dist

def start_equal(model):
    tensors = [tensor.detach() for tensor in [*model.parameters(), *model.buffers()]]
    received = [tensors]
    dist.broadcast_object_list(received, src=0)
    for tensor, other in zip(tensors, received[0]):
        tensor.copy_(other)
""",
    ),
    Answer(
        "05.1",
        "sends a tied weight under both names",
        "cost",
        changed(
            START,
            (
                "def start",
                "def named(model):\n"
                "    found = model.named_parameters(remove_duplicate=False)\n"
                "    return [parameter for _, parameter in found]\n\ndef start",
            ),
            ("model.parameters()", "named(model)"),
        ),
    ),
    Answer(
        "05.1",
        "unusual: one message a dtype",
        None,
        """\
import torch
import torch.distributed as dist

def start_equal(model):
    tensors = [tensor.detach() for tensor in [*model.buffers(), *model.parameters()]]
    for dtype in {torch.int64: 0, tensors[-1].dtype: 0}:
        alike = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.flatten() for tensor in alike])
        dist.broadcast(flat, src=0)
        for tensor, part in zip(alike, flat.split([tensor.numel() for tensor in alike])):
            tensor.copy_(part.view_as(tensor))
""",
    ),
    Answer(
        "05.1",
        "hands out whole storages",
        "objects",
        """\
import torch
import torch.distributed as dist

def start_equal(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        raw.set_(tensor.detach().untyped_storage())  # any strides: the memory as it lies
        dist.broadcast(raw, src=0)
""",
    ),
    # ---- 05.1 ----
    _converted("sends halves", "one.is_floating_point()", "torch.bfloat16"),
    _converted(
        "sends halves, and keeps rank 0's own",
        "one.is_floating_point()",
        "torch.float16",
        "dist.get_rank()",
    ),
    _converted(
        "sends float64 as float32", "one.dtype == torch.float64", "torch.float32", "dist.get_rank()"
    ),
    _converted("sends whole numbers as float64", "one.dtype == torch.int64", "torch.float64"),
    _converted("sends bfloat16 as float32", "one.dtype == torch.bfloat16", "torch.float32"),
    _started(
        "thaws what it froze to write into it",
        "left-changed",
        "        tensor.requires_grad_(False)\n        dist.broadcast(tensor, src=0)\n"
        "        tensor.requires_grad_(isinstance(tensor, torch.nn.Parameter))\n",
    ),
    _started(
        "gives each tensor the memory that came",
        "replaced",
        "        one = one.clone()\n        dist.broadcast(one, src=0)\n"
        "        tensor.data = one\n",
    ),
    _started(
        "lets all but rank 0 add zeros",
        "added",
        "        if dist.get_rank(): one.zero_()\n        dist.all_reduce(one)\n",
    ),
    _started(
        "multiplies what is not rank 0's by 0",
        "added",
        "        one.mul_(dist.get_rank() == 0)\n        dist.all_reduce(one)\n",
    ),
    Answer(
        "05.1",
        "sends all as one message, which torch.cat makes float32",
        "sent-dtype",
        """\
import torch
import torch.distributed as dist

def start_equal(model):
    tensors = [tensor.detach() for tensor in [*model.parameters(), *model.buffers()]]
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.broadcast(flat, src=0)
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
        tensor.copy_(part.view_as(tensor))
""",
    ),
    _started("flattens what it sends", "copied", "        dist.broadcast(one.flatten(), src=0)\n"),
    _started(
        "lets rank 0 send to each",
        "one-peer",
        "        if dist.get_rank() == 0:\n"
        "            for rank in range(1, dist.get_world_size()):\n"
        "                dist.send(one, rank)\n        else:\n            dist.recv(one, 0)\n",
    ),
    altered("05.1", "ends with a barrier", "cost", (BROADCAST, BROADCAST + "    dist.barrier()\n")),
    _started(
        "adds what came to its own",
        "values",
        "        box = one.clone()\n        dist.broadcast(box, src=0)\n"
        "        if dist.get_rank(): one.add_(box)\n",
    ),
    Answer(
        "05.1",
        "unusual: lets torch do it, as DDP does",
        None,
        """\
import torch.distributed as dist
from torch.distributed.utils import _sync_module_states

def start_equal(model):
    _sync_module_states(model, dist.group.WORLD, 1 << 20, 0, [])
""",
    ),
    _started(
        "unusual: all but rank 0 add -0.0, which keeps the sign of a 0",
        None,
        "        one, own = one.contiguous(), one\n        if dist.get_rank(): one.fill_(-0.0)\n"
        "        dist.all_reduce(one)\n        own.copy_(one)\n",
    ),
    _started(
        "unusual: gathers all, and takes the first",
        None,
        "        parts = [torch.empty_like(one) for _ in range(dist.get_world_size())]\n"
        "        dist.all_gather(parts, one)\n        one.copy_(parts[0])\n",
    ),
    altered(
        "05.1",
        "unusual: waits for all futures at the end",
        None,
        ("    for tensor in", "    sent = []\n    for tensor in"),
        (
            BROADCAST,
            "        numbers = tensor.detach().contiguous()\n"
            "        handle = dist.broadcast(numbers, src=0, async_op=True)\n"
            "        sent.append((handle.get_future(), tensor.detach(), numbers))\n"
            "    torch.futures.wait_all([future for future, *_ in sent])\n"
            "    for _, tensor, numbers in sent:\n        tensor.copy_(numbers)\n",
        ),
    ),
    altered(
        "05.1",
        "sends dtype by dtype, in the order of a set",
        "own-order",
        (
            "    for tensor in [*model.parameters(), *model.buffers()]:\n",
            "    tensors = [*model.parameters(), *model.buffers()]\n"
            "    dtypes = {t.dtype for t in tensors}\n"
            "    for tensor in [t for d in dtypes for t in tensors if t.dtype == d]:\n",
        ),
    ),
]
