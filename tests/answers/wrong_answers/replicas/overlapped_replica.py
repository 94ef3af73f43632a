"""
Answers to task 05.4.
"""

from bank import Answer, changed

from wrong_answers.replicas.sources import REPLICA, altered

COUNT = "        self.num_ready[number] += 1\n"

WHILE = "        while self.next_is_full():\n            self.send_next()\n"

POST_HOOK = "parameter.register_post_accumulate_grad_hook(hook)"

SEND = "        handle = dist.all_reduce(flat, async_op=True)\n"

DIVIDE = "        flat /= dist.get_world_size()\n"

WAIT = "            handle.wait()\n"

PUT = "                parameter.grad = part.view_as(parameter)"

INIT = "        self.will_sync = True\n"


ANSWERS = [
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
    altered(
        "05.4",
        "counts the gradients of every micro-batch, and waits for at least all",
        "earlier-parts",
        ("        if not self.will_sync:\n            return\n" + COUNT, COUNT),
        (WHILE, "        if not self.will_sync:\n            return\n" + WHILE),
        ("self.num_ready[number] == len", "self.num_ready[number] >= len"),
    ),
    Answer("05.4", "sends every bucket after backward", "late", changed(REPLICA, (WHILE, ""))),
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
    # ---- 05.4 ----
    altered(
        "05.4",
        "leaves None where this rank has no gradient",
        "none",
        (PUT, PUT.replace("parameter", "if parameter.grad is not None: parameter", 1)),
    ),
    altered(
        "05.4",
        "unusual: empties each count as its bucket leaves",
        None,
        ("        self.num_ready = [0] * len(self.buckets)\n", ""),
        (INIT, INIT + "        self.num_ready = [0] * len(self.buckets)\n"),
        (
            "        bucket = self.buckets[len(self.sent)]\n",
            "        bucket = self.buckets[len(self.sent)]\n"
            "        self.num_ready[len(self.sent)] = 0\n",
        ),
    ),
    altered(
        "05.4",
        "thaws the model",
        "left-changed",
        (INIT, INIT + "        model.requires_grad_(True)\n"),
    ),
    altered(
        "05.4",
        "has one flat tensor for all buckets",
        "mean",
        (
            INIT,
            INIT
            + "        self.flat = torch.cat([p.flatten() for b in self.buckets for p in b])\n",
        ),
        (DIVIDE, DIVIDE + "        flat = self.flat[: len(flat)].detach().copy_(flat)\n"),
    ),
    altered(
        "05.4",
        "unusual: waits for futures",
        None,
        (SEND, SEND[:-1] + ".get_future()\n"),
    ),
    altered(
        "05.4",
        "unusual: reads what came in a callback",
        None,
        (SEND, SEND[:-1] + ".get_future().then(lambda future: future.value())\n"),
    ),
    altered(
        "05.4",
        "unusual: looks after backward until all is complete",
        None,
        (WAIT, "            while not handle.is_completed(): pass\n"),
    ),
]
