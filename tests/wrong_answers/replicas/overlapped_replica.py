"""
Answers to exercise 05. Most are a right one in which one thing is done otherwise.
"""

from bank import Answer, changed

START = """\
import torch
import torch.distributed as dist

def start_equal(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
"""

TENSORS = "[*model.parameters(), *model.buffers()]"

AVERAGE = """\
import torch
import torch.distributed as dist
from ddp_lessons.process_group import rank_device

def average_gradients(model, num_samples):
    total = torch.tensor(num_samples, device=rank_device())
    dist.all_reduce(total)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None or num_samples == 0:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad *= num_samples / total.item()
        dist.all_reduce(parameter.grad)
"""

PLAN = """\
def plan_buckets(model, cap_bytes, first_cap_bytes):
    buckets, bucket, num_bytes = [], [], 0
    for name, parameter in reversed(list(model.named_parameters())):
        if not parameter.requires_grad:
            continue
        bucket.append(name)
        num_bytes += parameter.numel() * parameter.element_size()
        cap = cap_bytes if buckets else first_cap_bytes
        if num_bytes >= cap:
            buckets.append(bucket)
            bucket, num_bytes = [], 0
    if bucket:
        buckets.append(bucket)
    return buckets
"""

REPLICA = """\
import torch
import torch.distributed as dist
from functools import partial

class OverlappedReplica:
    def __init__(self, model, buckets):
        named = dict(model.named_parameters())
        self.buckets = [[named[name] for name in bucket] for bucket in buckets]
        self.will_sync = True
        self.start_step()
        for number, bucket in enumerate(self.buckets):
            for parameter in bucket:
                hook = partial(self.gradient_ready, number)
                parameter.register_post_accumulate_grad_hook(hook)

    def start_step(self):
        self.num_ready = [0] * len(self.buckets)
        self.sent = []

    def gradient_ready(self, number, parameter):
        if not self.will_sync:
            return
        self.num_ready[number] += 1
        while self.next_is_full():
            self.send_next()

    def next_is_full(self):
        number = len(self.sent)
        if number == len(self.buckets):
            return False
        return self.num_ready[number] == len(self.buckets[number])

    def send_next(self):
        bucket = self.buckets[len(self.sent)]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        flat /= dist.get_world_size()
        handle = dist.all_reduce(flat, async_op=True)
        self.sent.append((handle, flat))

    def wait_for_gradients(self):
        while len(self.sent) < len(self.buckets):
            self.send_next()
        for bucket, (handle, flat) in zip(self.buckets, self.sent):
            handle.wait()
            parts = flat.split([parameter.numel() for parameter in bucket])
            for parameter, part in zip(bucket, parts):
                parameter.grad = part.view_as(parameter)
        self.start_step()
"""

COUNT = "        self.num_ready[number] += 1\n"
WHILE = "        while self.next_is_full():\n            self.send_next()\n"
FLATTEN = "torch.cat([gradient.flatten() for gradient in gradients])"
POST_HOOK = "parameter.register_post_accumulate_grad_hook(hook)"

ANSWERS = [
    # ---- 05.1 ----
    Answer(
        "05.1",
        "sends a copy",
        "unchanged",
        changed(START, ("tensor.detach()", "tensor.detach().clone()")),
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
    # ---- 05.2 ----
    Answer(
        "05.2",
        "adds up and does not divide",
        "summed",
        changed(AVERAGE, ("        parameter.grad *= num_samples / total.item()\n", "")),
    ),
    Answer(
        "05.2",
        "divides by the number of ranks as well",
        "twice",
        changed(AVERAGE, ("total.item()", "total.item() / dist.get_world_size()")),
    ),
    Answer(
        "05.2",
        "gives every rank the same weight",
        "mean-of-means",
        changed(AVERAGE, ("num_samples / total.item()", "1 / dist.get_world_size()")),
    ),
    Answer(
        "05.2",
        "weighs by samples and never divides",
        "undivided",
        changed(AVERAGE, ("num_samples / total.item()", "num_samples")),
    ),
    Answer(
        "05.2",
        "divides by the samples of ranks that have a gradient",
        "only-users",
        """\
import torch
import torch.distributed as dist

def average_gradients(model, num_samples):
    trained = [p for p in model.parameters() if p.requires_grad]
    counts = torch.tensor([num_samples * (p.grad is not None) for p in trained]).to(torch.int32)
    counts = counts.to(trained[0].device)
    dist.all_reduce(counts)
    for parameter, count in zip(trained, counts.tolist()):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad *= num_samples / max(count, 1)
        dist.all_reduce(parameter.grad)
""",
    ),
    Answer(
        "05.2",
        "averages a copy",
        "own",
        changed(
            AVERAGE, ("dist.all_reduce(parameter.grad)", "dist.all_reduce(parameter.grad.clone())")
        ),
    ),
    Answer(
        "05.2",
        "reduces to rank 0",
        "one-rank",
        changed(AVERAGE, ("dist.all_reduce(parameter.grad)", "dist.reduce(parameter.grad, dst=0)")),
    ),
    Answer(
        "05.2",
        "averages the weights",
        "own",
        """\
import torch
import torch.distributed as dist

def average_gradients(model, num_samples):
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()
""",
    ),
    Answer(
        "05.2",
        "gives frozen parameters a gradient",
        "frozen",
        changed(AVERAGE, ("        if not parameter.requires_grad:\n            continue\n", "")),
    ),
    Answer(
        "05.2",
        "sends only where there is a gradient",
        "deadlock",
        changed(
            AVERAGE,
            ("if not parameter.requires_grad:", "if parameter.grad is None:"),
        ),
    ),
    Answer(
        "05.2",
        "takes it that there is a gradient",
        "raised",
        changed(
            AVERAGE,
            ("if parameter.grad is None or num_samples == 0:", "if num_samples == 0:"),
        ),
    ),
    Answer(
        "05.2",
        "gathers gradients as objects",
        "objects",
        """\
import torch
import torch.distributed as dist

def average_gradients(model, num_samples):
    trained = [p for p in model.parameters() if p.requires_grad]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (num_samples, [p.grad for p in trained]))
    total = sum(number for number, _ in everyone)
    for index, parameter in enumerate(trained):
        parameter.grad = torch.zeros_like(parameter)
        for number, gradients in everyone:
            if gradients[index] is not None:
                parameter.grad += number / total * gradients[index].to(parameter.device)
""",
    ),
    Answer(
        "05.2",
        "counts the samples again for each parameter",
        "cost",
        changed(
            AVERAGE,
            ("    total = torch", "    def count():\n        total = torch"),
            (
                "    dist.all_reduce(total)\n",
                "        dist.all_reduce(total)\n        return total\n",
            ),
            ("total.item()", "count().item()"),
        ),
    ),
    Answer(
        "05.2",
        "averages a tied weight under both names",
        "cost",
        changed(
            AVERAGE,
            (
                "for parameter in model.parameters()",
                "for _, parameter in model.named_parameters(remove_duplicate=False)",
            ),
        ),
    ),
    Answer(
        "05.2",
        "starts the sum with the gradient of its own",
        "apart",
        """\
import torch
import torch.distributed as dist
from ddp_lessons.process_group import rank_device

def average_gradients(model, num_samples):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    total = torch.tensor(float(num_samples), dtype=torch.float64, device=rank_device())
    dist.all_reduce(total)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        has_none = parameter.grad is None or num_samples == 0
        own = torch.zeros_like(parameter) if has_none else parameter.grad
        own = own * (num_samples / total.item())
        parts = [torch.empty_like(own) for _ in range(world_size)]
        dist.all_gather(parts, own)
        parameter.grad = sum(parts[(rank + step) % world_size] for step in range(world_size))
""",
    ),
    Answer(
        "05.2",
        "sends gradients times samples, and the number of samples with them",
        "range",
        """\
import torch
import torch.distributed as dist

def average_gradients(model, num_samples):
    trained = [p for p in model.parameters() if p.requires_grad]
    has_none = num_samples == 0
    parts = [torch.zeros_like(p) if has_none or p.grad is None else p.grad for p in trained]
    count = torch.ones(1, dtype=parts[0].dtype, device=parts[0].device)
    flat = num_samples * torch.cat([*(part.flatten() for part in parts), count])
    dist.all_reduce(flat)
    flat /= flat[-1].clone()
    for parameter, part in zip(trained, flat[:-1].split([p.numel() for p in trained])):
        parameter.grad = part.view_as(parameter)
""",
    ),
    Answer(
        "05.2",
        "unusual: gathers, and every rank adds up in one order",
        None,
        """\
import torch
import torch.distributed as dist

def average_gradients(model, num_samples):
    world_size = dist.get_world_size()
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None or num_samples == 0:
            parameter.grad = torch.zeros_like(parameter)
    count = torch.tensor([num_samples], device=next(model.parameters()).device)
    total = [torch.empty_like(count) for _ in range(world_size)]
    dist.all_gather(total, count)
    shares = [number.item() / sum(total).item() for number in total]
    for parameter in model.parameters():
        if parameter.requires_grad:
            parts = [torch.empty_like(parameter.grad) for _ in range(world_size)]
            dist.all_gather(parts, parameter.grad)
            parameter.grad.copy_(sum(share * part for share, part in zip(shares, parts)))
""",
    ),
    # ---- 05.3 ----
    Answer(
        "05.3",
        "returns a dictionary",
        "no-list",
        changed(PLAN, ("    return buckets", "    return dict(enumerate(buckets))")),
    ),
    Answer(
        "05.3",
        "goes from the first parameter to the last",
        "order",
        changed(PLAN, ("reversed(list(model.named_parameters()))", "model.named_parameters()")),
    ),
    Answer(
        "05.3",
        "plans frozen parameters",
        "frozen",
        changed(PLAN, ("        if not parameter.requires_grad:\n            continue\n", "")),
    ),
    Answer(
        "05.3",
        "plans a tied weight under both names",
        "tied",
        changed(PLAN, ("named_parameters()", "named_parameters(remove_duplicate=False)")),
    ),
    Answer("05.3", "counts numbers", "numbers", changed(PLAN, (" * parameter.element_size()", ""))),
    Answer("05.3", "closes a bucket above its cap", "one-late", changed(PLAN, (">= cap", "> cap"))),
    Answer(
        "05.3",
        "closes a bucket before it is above its cap",
        "under-cap",
        """\
def plan_buckets(model, cap_bytes, first_cap_bytes):
    buckets, bucket, num_bytes = [], [], 0
    for name, parameter in reversed(list(model.named_parameters())):
        if not parameter.requires_grad:
            continue
        own = parameter.numel() * parameter.element_size()
        cap = cap_bytes if buckets else first_cap_bytes
        if bucket and num_bytes + own > cap:
            buckets.append(bucket)
            bucket, num_bytes = [], 0
        bucket.append(name)
        num_bytes += own
    return [*buckets, bucket]
""",
    ),
    Answer(
        "05.3",
        "forgets the last open bucket",
        "lost",
        changed(PLAN, ("    if bucket:\n        buckets.append(bucket)\n", "")),
    ),
    Answer(
        "05.3",
        "always adds the open bucket",
        "empty",
        changed(
            PLAN,
            ("    if bucket:\n        buckets.append(bucket)\n", "    buckets.append(bucket)\n"),
        ),
    ),
    Answer(
        "05.3",
        "counts on in the next bucket",
        "not-reset",
        changed(PLAN, ("bucket, num_bytes = [], 0\n    if", "bucket = []\n    if")),
    ),
    Answer(
        "05.3",
        "gives the first bucket the cap of all",
        "first-cap",
        changed(PLAN, ("cap = cap_bytes if buckets else first_cap_bytes", "cap = cap_bytes")),
    ),
    Answer(
        "05.3",
        "gives all buckets the cap of the first",
        "first-cap",
        changed(PLAN, ("cap = cap_bytes if buckets else first_cap_bytes", "cap = first_cap_bytes")),
    ),
    Answer(
        "05.3",
        "plans a message for each parameter",
        "each-alone",
        changed(PLAN, ("if num_bytes >= cap:", "if bucket:")),
    ),
    Answer(
        "05.3",
        "puts names into each bucket in a random order",
        "ranks-differ",
        changed(
            PLAN,
            ("def plan", "import random\n\ndef plan"),
            ("    return buckets", "    return [random.sample(b, len(b)) for b in buckets]"),
        ),
    ),
    Answer(
        "05.3",
        "sorts parameters by size",
        "values",
        changed(
            PLAN,
            (
                "reversed(list(model.named_parameters()))",
                "sorted(model.named_parameters(), key=lambda pair: -pair[1].numel())",
            ),
        ),
    ),
    Answer(
        "05.3",
        "lets rank 0 plan for all",
        "forbidden",
        changed(
            PLAN,
            ("def plan", "import torch.distributed as dist\n\ndef plan"),
            (
                "    return buckets",
                "    plans = [buckets]\n    dist.broadcast_object_list(plans, src=0)\n"
                "    return plans[0]",
            ),
        ),
    ),
    Answer(
        "05.3",
        "unusual: closes what is full when the next parameter comes",
        None,
        """\
def plan_buckets(model, cap_bytes, first_cap_bytes):
    cap, plan = first_cap_bytes, [()]
    num_bytes = 0
    for name, parameter in list(model.named_parameters())[::-1]:
        if parameter.grad is None and not parameter.requires_grad:
            continue
        if num_bytes >= cap:
            cap, num_bytes = cap_bytes, 0
            plan.append(())
        plan[-1] += (name,)
        num_bytes += parameter.nbytes
    return [bucket for bucket in plan if bucket]
""",
    ),
    # ---- 05.4 ----
    Answer(
        "05.4",
        "sends in every micro-batch",
        "each-micro-batch",
        changed(
            REPLICA,
            (
                "        if not self.will_sync:\n            return\n",
                "        if len(self.sent) == len(self.buckets):\n            self.start_step()\n",
            ),
        ),
    ),
    Answer(
        "05.4",
        "one message a parameter",
        "cost",
        """\
import torch.distributed as dist

class OverlappedReplica:
    def __init__(self, model, buckets):
        self.will_sync, self.handles = True, []
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.send)

    def send(self, parameter):
        if self.will_sync:
            parameter.grad /= dist.get_world_size()
            self.handles.append(dist.all_reduce(parameter.grad, async_op=True))

    def wait_for_gradients(self):
        for handle in self.handles:
            handle.wait()
        self.handles.clear()
""",
    ),
    Answer(
        "05.4",
        "sends all gradients in one message",
        "other-plan",
        changed(
            REPLICA,
            (
                "[[named[name] for name in bucket] for bucket in buckets]",
                "[[named[name] for bucket in buckets for name in bucket]]",
            ),
        ),
    ),
    Answer(
        "05.4",
        "never starts a second step",
        "once",
        changed(
            REPLICA,
            (
                "parameter.grad = part.view_as(parameter)\n        self.start_step()\n",
                "parameter.grad = part.view_as(parameter)\n",
            ),
        ),
    ),
    Answer(
        "05.4",
        "sends a bucket when its first gradient is ready",
        "too-early",
        changed(
            REPLICA,
            ("self.num_ready[number] == len(self.buckets[number])", "self.num_ready[number] > 0"),
        ),
    ),
    Answer(
        "05.4",
        "sends whichever bucket is full",
        "order",
        changed(
            REPLICA,
            (
                WHILE,
                "        if self.num_ready[number] == len(self.buckets[number]):\n"
                "            self.send(number)\n",
            ),
            ("        self.sent = []\n", "        self.sent = {}\n"),
            ("def send_next(self)", "def send(self, number)"),
            ("self.buckets[len(self.sent)]", "self.buckets[number]"),
            ("self.sent.append((handle, flat))", "self.sent[number] = handle, flat"),
            (
                "        while len(self.sent) < len(self.buckets):\n            self.send_next()\n",
                "        for number in range(len(self.buckets)):\n"
                "            if number not in self.sent:\n                self.send(number)\n",
            ),
            (
                "zip(self.buckets, self.sent):",
                "zip(self.buckets, [self.sent[n] for n in range(len(self.buckets))]):",
            ),
        ),
    ),
    Answer("05.4", "sends every bucket after backward", "late", changed(REPLICA, (WHILE, ""))),
    Answer(
        "05.4",
        "sends a bucket when the next gradient comes",
        "late",
        changed(REPLICA, (COUNT + WHILE, WHILE + COUNT)),
    ),
    Answer(
        "05.4",
        "waits in the hook",
        "blocks",
        changed(
            REPLICA,
            ("handle = dist.all_reduce(flat, async_op=True)", "dist.all_reduce(flat)"),
            ("((handle, flat))", "(flat)"),
            ("(handle, flat) in zip", "flat in zip"),
            ("            handle.wait()\n", ""),
        ),
    ),
    Answer(
        "05.4",
        "reads flat tensors without waiting",
        "unwaited",
        changed(REPLICA, ("            handle.wait()\n", "")),
    ),
    Answer(
        "05.4",
        "adds up and does not divide",
        "summed",
        changed(REPLICA, ("        flat /= dist.get_world_size()\n", "")),
    ),
    Answer(
        "05.4",
        "divides before and after",
        "twice",
        changed(
            REPLICA, ("part.view_as(parameter)", "part.view_as(parameter) / dist.get_world_size()")
        ),
    ),
    Answer(
        "05.4",
        "averages weights, for it takes the hook's argument for the gradient",
        "local",
        changed(
            REPLICA,
            ("torch.zeros_like(p) if p.grad is None else p.grad", "p.detach()"),
            ("parameter.grad = part", "parameter.data = part"),
        ),
    ),
    Answer(
        "05.4",
        "hooks the tensor, which sees the last micro-batch only",
        "last-only",
        changed(
            REPLICA,
            (
                "hook = partial(self.gradient_ready, number)",
                "hook = partial(self.tensor_ready, number, parameter)",
            ),
            (POST_HOOK, "parameter.register_hook(hook)"),
            (
                "    def gradient_ready",
                "    def tensor_ready(self, number, parameter, gradient):\n"
                "        self.seen[parameter] = gradient\n"
                "        self.gradient_ready(number, parameter)\n\n    def gradient_ready",
            ),
            ("        self.sent = []\n", "        self.sent, self.seen = [], {}\n"),
            (
                "torch.zeros_like(p) if p.grad is None else p.grad",
                "self.seen.get(p, torch.zeros_like(p))",
            ),
        ),
    ),
    Answer(
        "05.4",
        "sends zeros for what the last micro-batch did not use",
        "zeros",
        changed(
            REPLICA,
            (COUNT, COUNT + "        self.used.add(parameter)\n"),
            ("        self.sent = []\n", "        self.sent, self.used = [], set()\n"),
            ("if p.grad is None else", "if p not in self.used else"),
        ),
    ),
    Answer(
        "05.4",
        "takes it that there is a gradient",
        "raised",
        changed(REPLICA, ("torch.zeros_like(p) if p.grad is None else p.grad", "p.grad")),
    ),
    Answer(
        "05.4",
        "sends only buckets that are full",
        "deadlock",
        changed(
            REPLICA,
            (
                "        while len(self.sent) < len(self.buckets):\n            self.send_next()\n",
                "",
            ),
        ),
    ),
    Answer(
        "05.4",
        "unusual: gradients are views of the buckets, and the backend divides by itself",
        None,
        """\
import torch
import torch.distributed as dist

class OverlappedReplica(torch.nn.Module):
    def __init__(self, model, buckets):
        super().__init__()
        named = dict(model.named_parameters())
        self.buckets, self.will_sync, self.handles = [], True, []
        for names in buckets:
            members = [named[name] for name in names]
            flat = torch.cat([torch.zeros_like(p).flatten() for p in members])
            parts = flat.split([p.numel() for p in members])
            views = {p: part.view_as(p) for p, part in zip(members, parts)}
            self.buckets.append((flat, views, set(views)))
            for p in members:
                p.register_post_accumulate_grad_hook(self.arrived)

    def arrived(self, parameter):
        if self.will_sync:
            for _, views, missing in self.buckets:
                missing.discard(parameter)
            self.send(lambda missing: not missing)

    def send(self, may_leave):
        for number, (flat, views, missing) in enumerate(self.buckets):
            if number < len(self.handles):
                continue
            if not may_leave(missing):
                return
            for p, view in views.items():
                view.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
                p.grad = view
            flat.mul_(1 / dist.get_world_size())
            self.handles.append(dist.all_reduce(flat, async_op=True))

    def wait_for_gradients(self):
        self.send(lambda missing: True)
        for handle in self.handles:
            handle.wait()
        self.handles = []
        for _, views, missing in self.buckets:
            missing.update(views)
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
    Answer(
        "05.3",
        "takes the smaller cap for the first bucket",
        "first-cap",
        """\
def plan_buckets(model, cap_bytes, first_cap_bytes):
    plan, bucket, held = [], [], 0
    for name, parameter in reversed(list(model.named_parameters())):
        if not parameter.requires_grad:
            continue
        bucket.append(name)
        held += parameter.numel() * parameter.element_size()
        cap = cap_bytes if plan else min(first_cap_bytes, cap_bytes)
        if held >= cap:
            plan.append(bucket)
            bucket, held = [], 0
    if bucket:
        plan.append(bucket)
    return plan
""",
    ),
    Answer(
        "05.3",
        "remembers a plan for each model and caps",
        "kept",
        """\
from functools import cache

@cache
def plan_buckets(model, cap_bytes, first_cap_bytes):
    plan, bucket, held, cap = [], [], 0, first_cap_bytes
    for name, parameter in reversed(list(model.named_parameters())):
        if not parameter.requires_grad:
            continue
        bucket.append(name)
        held += parameter.numel() * parameter.element_size()
        if held >= cap:
            plan.append(bucket)
            bucket, held, cap = [], 0, cap_bytes
    if bucket:
        plan.append(bucket)
    return plan
""",
    ),
    Answer(
        "05.3",
        "counts the bytes of a parameter's storage",
        "storage",
        """\
def plan_buckets(model, cap_bytes, first_cap_bytes):
    plan, bucket, held, cap = [], [], 0, first_cap_bytes
    for name, parameter in reversed(list(model.named_parameters())):
        if not parameter.requires_grad:
            continue
        bucket.append(name)
        held += parameter.untyped_storage().nbytes()
        if held >= cap:
            plan.append(bucket)
            bucket, held, cap = [], 0, cap_bytes
    if bucket:
        plan.append(bucket)
    return plan
""",
    ),
    Answer(
        "05.2",
        "makes every nan a zero",
        "hidden",
        """\
import torch
import torch.distributed as dist
from ddp_lessons.process_group import rank_device

def average_gradients(model, num_samples):
    total = torch.tensor(num_samples, dtype=torch.int64, device=rank_device())
    dist.all_reduce(total)
    share = num_samples / max(1, total.item())
    for p in model.parameters():
        if p.requires_grad:
            own = torch.zeros_like(p) if p.grad is None else p.grad
            part = (torch.nan_to_num(own) * share).contiguous()
            dist.all_reduce(part)
            p.grad = part
""",
    ),
]
