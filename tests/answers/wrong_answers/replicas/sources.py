"""
Sources from which the answers of exercise 05 are made.
"""

from bank import changing

START = """\
import torch
import torch.distributed as dist

def start_equal(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        numbers = tensor.detach().contiguous()
        dist.broadcast(numbers, src=0)
        tensor.detach().copy_(numbers)
"""

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

SOURCES = {"05.1": START, "05.2": AVERAGE, "05.3": PLAN, "05.4": REPLICA}

altered = changing(SOURCES)
