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
    Return an answer to task 05.1 that runs these lines for each tensor, which they call `one`.
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
    Answer(
        "05.1",
        "sends a copy",
        "unchanged",
        changed(START, ("        tensor.detach().copy_(numbers)\n", ""), ("contiguous", "clone")),
    ),
    _started("sends what is there", "gaps", "        dist.broadcast(one, src=0)\n"),
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
        "cost",
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
    _converted("sends halves", "one.is_floating_point()", "torch.bfloat16"),
    _started(
        "thaws what it froze to write into it",
        "left-changed",
        "        tensor.requires_grad_(False)\n        dist.broadcast(tensor, src=0)\n"
        "        tensor.requires_grad_(isinstance(tensor, torch.nn.Parameter))\n",
    ),
    _started(
        "lets all but rank 0 add zeros",
        "added",
        "        if dist.get_rank(): one.zero_()\n        dist.all_reduce(one)\n",
    ),
    _started("flattens what it sends", "copied", "        dist.broadcast(one.flatten(), src=0)\n"),
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
]
