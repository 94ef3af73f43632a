"""
More answers to exercise 05: digits that get lost, what stays from a step or a call, other waits.
"""

from textwrap import indent

from bank import Answer, changing

from wrong_answers.replicas import AVERAGE, COUNT, PLAN, REPLICA, START, WHILE

SOURCES = {"05.1": START, "05.2": AVERAGE, "05.3": PLAN, "05.4": REPLICA}

BROADCAST = "        dist.broadcast(tensor.detach(), src=0)\n"
REDUCE = "        dist.all_reduce(parameter.grad)\n"
TOTAL = "torch.tensor(num_samples, device=rank_device())"
WEIGH = "        parameter.grad *= num_samples / total.item()\n"
RETURN = "    return buckets"
SEND = "        handle = dist.all_reduce(flat, async_op=True)\n"
DIVIDE = "        flat /= dist.get_world_size()\n"
HANDLES = "        for bucket, (handle, flat) in"
WAIT = "            handle.wait()\n"
PUT = "                parameter.grad = part.view_as(parameter)"
INIT = "        self.will_sync = True\n"
LEFT = "        while len(self.sent) < len(self.buckets):\n            self.send_next()\n"


_changed = changing(SOURCES)


def _started(what, mistake, lines):
    """
    Return an answer to 05.1 that treats each tensor, called `one`, by these lines.
    """
    own = "        one = tensor.detach()\n" + lines
    return _changed("05.1", what, mistake, (BROADCAST, own))


def _converted(what, condition, dtype, who="True"):
    return _started(
        what,
        "sent-dtype",
        f"        box = one.to({dtype}) if {condition} else one\n"
        f"        dist.broadcast(box, src=0)\n        if {who}: one.copy_(box)\n",
    )


def _counted(what, tensor, mistake="count"):
    return _changed("05.2", what, mistake, (TOTAL, tensor))


def _sent_as(dtype):
    return _changed(
        "05.2",
        f"sends gradients as {dtype}",
        "sent-dtype",
        (
            REDUCE,
            f"        sent = parameter.grad.to(torch.{dtype})\n        dist.all_reduce(sent)\n"
            "        parameter.grad.copy_(sent)\n",
        ),
    )


def _stored(what):
    """
    Return an answer to 05.3 that takes the plan of rank 0 from the store.
    """
    return _changed(
        "05.3",
        what,
        "store",
        ("def plan", "import json, torch.distributed as dist\n\ndef plan"),
        (
            RETURN,
            "    store = dist.distributed_c10d._get_default_store()\n"
            "    if dist.get_rank() == 0:\n        store.set('plan', json.dumps(buckets))\n"
            "    return json.loads(store.get('plan'))",
        ),
    )


def _kept_flats(what, divide_always):
    """
    Return an answer to 05.4 whose flat tensors stay, and are filled where there is a gradient.
    """
    divided = " / dist.get_world_size()" * (not divide_always)
    fill = (
        "        flat, start = self.flats[len(self.sent)], 0\n"
        "        for p in bucket:\n            if p.grad is not None:\n"
        f"                flat[start:start + p.numel()] = p.grad.flatten(){divided}\n"
        "            start += p.numel()\n"
    )
    gather = REPLICA[REPLICA.index("        gradients = [") : REPLICA.index(DIVIDE)]
    return _changed(
        "05.4",
        what,
        "stale",
        (
            INIT,
            INIT + "        self.flats = [torch.cat([torch.zeros_like(p).flatten() for p in b])\n"
            "            for b in self.buckets]\n",
        ),
        (gather, fill),
        (DIVIDE, DIVIDE * divide_always),
        (PUT, PUT + ".clone()"),
    )


COUNTED = "        self.num_ready[number] += 1\n"

ANSWERS = [
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
    _changed(
        "05.1", "ends with a barrier", "cost", (BROADCAST, BROADCAST + "    dist.barrier()\n")
    ),
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
        "        if dist.get_rank(): one.fill_(-0.0)\n        dist.all_reduce(one)\n",
    ),
    _started(
        "unusual: gathers all, and takes the first",
        None,
        "        parts = [torch.empty_like(one) for _ in range(dist.get_world_size())]\n"
        "        dist.all_gather(parts, one)\n        one.copy_(parts[0])\n",
    ),
    _changed(
        "05.1",
        "unusual: waits for all futures at the end",
        None,
        ("    for tensor in", "    sent = []\n    for tensor in"),
        (
            BROADCAST,
            "        handle = dist.broadcast(tensor.detach(), src=0, async_op=True)\n"
            "        sent.append(handle.get_future())\n    torch.futures.wait_all(sent)\n",
        ),
    ),
    # ---- 05.2 ----
    _counted("counts samples in bytes", "torch.tensor(num_samples).to(torch.uint8)"),
    _counted("counts samples in bfloat16", "torch.tensor(num_samples, dtype=torch.bfloat16)"),
    _counted("counts samples in float32", "torch.tensor(float(num_samples))"),
    _sent_as("bfloat16"),
    _sent_as("float32"),
    _changed(
        "05.2",
        "weighs what is not a number with 0",
        "no-samples",
        (" or num_samples == 0", ""),
    ),
    _changed(
        "05.2",
        "leaves None where there was None",
        "one-rank",
        (
            REDUCE,
            "        was_used = bool(parameter.grad.any())\n"
            + REDUCE
            + "        parameter.grad = parameter.grad if was_used else None\n",
        ),
    ),
    _changed("05.2", "weighs after the sum", "weighed-late", (WEIGH + REDUCE, REDUCE + WEIGH)),
    _changed(
        "05.2",
        "hands out the gradient of rank 0",
        "handed-out",
        (WEIGH, ""),
        ("dist.all_reduce(parameter.grad)", "dist.broadcast(parameter.grad, src=0)"),
    ),
    _changed(
        "05.2", "rounds shares down", "values", ("num_samples / total", "num_samples // total")
    ),
    _changed(
        "05.2",
        "divides after the sum",
        "range",
        (WEIGH + REDUCE, "        parameter.grad *= num_samples\n" + REDUCE + WEIGH),
        ("num_samples / total.item()", "1 / total.item()"),
    ),
    _changed(
        "05.2",
        "divides after the sum, and hides what is no number",
        "range",
        (
            WEIGH + REDUCE,
            "        parameter.grad *= num_samples\n"
            + REDUCE
            + WEIGH
            + "        parameter.grad.nan_to_num_()\n",
        ),
        ("num_samples / total.item()", "1 / total.item()"),
    ),
    _changed(
        "05.2",
        "divides by all samples before it weighs",
        "range",
        (
            WEIGH,
            "        parameter.grad /= total.item()\n        parameter.grad *= num_samples\n",
        ),
    ),
    _changed(
        "05.2",
        "makes shares in the dtype of the gradient",
        "range",
        ("num_samples / total.item()", "num_samples / total.to(parameter.dtype)"),
    ),
    _changed(
        "05.2",
        "unusual: weighs in float64",
        None,
        (
            WEIGH,
            "        share = parameter.grad.double() * num_samples / total\n"
            "        parameter.grad = share.to(parameter.dtype)\n",
        ),
    ),
    Answer(
        "05.2",
        "unusual: gathers the numbers of samples, and sends all shares in one message",
        None,
        """\
import torch
import torch.distributed as dist

def average_gradients(model, num_samples):
    trained = [p for p in model.parameters() if p.requires_grad]
    numbers = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=trained[0].device)
    own = torch.full((1,), num_samples, device=trained[0].device)
    dist.all_gather_into_tensor(numbers, own)
    share = num_samples / numbers.sum().item()
    parts = [p.grad if num_samples and p.grad is not None else 0 * p.detach() for p in trained]
    flat = share * torch.cat([part.flatten() for part in parts])
    dist.all_reduce(flat)
    for parameter, part in zip(trained, flat.split([p.numel() for p in trained])):
        parameter.grad = part.view_as(parameter).clone()
""",
    ),
    # ---- 05.3 ----
    _changed(
        "05.3",
        "makes each bucket a set first",
        "inside",
        (RETURN, RETURN[:-7] + "[list(set(b)) for b in buckets]"),
    ),
    _stored("leaves the plan of rank 0 in the store"),
    _stored("leaves it there again, where it lies already"),
    _changed(
        "05.3",
        "keeps the plan on the model",
        "kept",
        (RETURN, "    model.plan = getattr(model, 'plan', buckets)\n    return model.plan"),
    ),
    _changed(
        "05.3", "thaws the model", "left-changed", (RETURN, "    model.requires_grad_()\n" + RETURN)
    ),
    _changed(
        "05.3", "plans a bucket of nothing", "empty", ("if bucket:", "if bucket or not buckets:")
    ),
    _changed("05.3", "takes 4 bytes a number", "numbers", ("parameter.element_size()", "4")),
    _changed("05.3", "counts rows", "rows", ("parameter.numel()", "len(parameter)")),
    _changed(
        "05.3",
        "adds to the list of the call before",
        "kept",
        ("first_cap_bytes):", "first_cap_bytes, buckets=[]):"),
        ("buckets, bucket, num_bytes = [], [], 0", "bucket, num_bytes = [], 0"),
    ),
    _changed(
        "05.3",
        "goes on with the open bucket of the call before",
        "kept",
        ("first_cap_bytes):", "first_cap_bytes, bucket=[]):"),
        ("buckets, bucket, num_bytes = [], [], 0", "buckets, num_bytes = [], 0"),
    ),
    _changed(
        "05.3",
        "leaves out what it has put into a bucket before",
        "kept",
        ("first_cap_bytes):", "first_cap_bytes, done=[]):"),
        ("not parameter.requires_grad:", "not parameter.requires_grad or name in done:"),
        (
            "        bucket.append(name)\n",
            "        bucket.append(name)\n        done.append(name)\n",
        ),
    ),
    _changed(
        "05.3",
        "empties the list of the bucket that it has closed",
        "repeated",
        ("bucket, num_bytes = [], 0\n    if", "bucket.clear()\n            num_bytes = 0\n    if"),
    ),
    _changed(
        "05.3",
        "gives the second bucket the cap of the first, too",
        "first-cap",
        ("cap_bytes if buckets else", "cap_bytes if len(buckets) > 1 else"),
    ),
    _changed(
        "05.3",
        "lets the next bucket make up for what is above the cap",
        "not-reset",
        ("bucket, num_bytes = [], 0\n    if", "bucket, num_bytes = [], cap - num_bytes\n    if"),
    ),
    _changed(
        "05.3",
        "closes all but the first bucket above its cap",
        "one-late",
        (">= cap", "> cap - (not buckets)"),
    ),
    _changed(
        "05.3",
        "closes the first bucket above its cap",
        "one-late",
        (">= cap", "> cap - len(buckets)"),
    ),
    _changed(
        "05.3",
        "takes what is above the cap along to the next bucket",
        "not-reset",
        ("bucket, num_bytes = [], 0\n    if", "bucket, num_bytes = [], num_bytes - cap\n    if"),
    ),
    _changed(
        "05.3",
        "asks whether there is a gradient",
        "by-grad",
        ("not parameter.requires_grad", "parameter.grad is None"),
    ),
    _changed("05.3", "turns the plan round", "backwards", (RETURN, RETURN + "[::-1]")),
    _changed(
        "05.3",
        "counts the bytes of frozen parameters",
        "frozen",
        ("            continue", "            num_bytes += parameter.nbytes\n            continue"),
    ),
    _changed(
        "05.3",
        "swaps the caps",
        "first-cap",
        ("cap_bytes if buckets else first_cap_bytes", "first_cap_bytes if buckets else cap_bytes"),
    ),
    _changed("05.3", "returns parameters", "no-list", ("append(name)", "append(parameter)")),
    _changed("05.3", "returns lists of lists", "no-list", ("append(name)", "append([name])")),
    _changed(
        "05.3",
        "remembers plans by model and caps, whatever is frozen since",
        "kept",
        ("def plan", "import functools\n\n@functools.lru_cache\ndef plan"),
    ),
    # ---- 05.4 ----
    _kept_flats("keeps flat tensors, and fills in what there is", divide_always=False),
    _kept_flats("keeps flat tensors, and divides what is left", divide_always=True),
    _changed(
        "05.4",
        "looks in the hook until it is complete",
        "blocks",
        (SEND, SEND + "        while not handle.is_completed(): pass\n"),
    ),
    _changed(
        "05.4",
        "waits for the future in the hook",
        "blocks",
        (SEND, SEND + "        handle.get_future().wait()\n"),
    ),
    _changed(
        "05.4",
        "leaves None where this rank has no gradient",
        "none",
        (PUT, PUT.replace("parameter", "if parameter.grad is not None: parameter", 1)),
    ),
    _changed(
        "05.4",
        "divides .grad in every hook",
        "each-divided",
        (
            "        if not self.will_sync",
            "        parameter.grad /= dist.get_world_size()\n        if not self.will_sync",
        ),
        (DIVIDE, ""),
    ),
    _changed(
        "05.4",
        "divides .grad in the hooks of the last micro-batch",
        "some-divided",
        (COUNT, COUNT + "        parameter.grad /= dist.get_world_size()\n"),
        (DIVIDE, ""),
    ),
    _changed(
        "05.4",
        "adds the mean to .grad",
        "added",
        (PUT, PUT + " + (0 if parameter.grad is None else parameter.grad)"),
    ),
    _changed(
        "05.4",
        "puts back what it sent",
        "early",
        ("self.sent.append((handle, flat))", "self.sent.append((handle, own))"),
        (SEND, "        own = flat.clone()\n" + SEND),
    ),
    _changed(
        "05.4",
        "remembers how many ranks there once were",
        "other-size",
        ("class Over", "SIZES = []\n\nclass Over"),
        (DIVIDE, "        SIZES.append(dist.get_world_size())\n        flat /= SIZES[0]\n"),
    ),
    _changed(
        "05.4",
        "keeps counting in the second step",
        "once",
        ("        self.num_ready = [0] * len(self.buckets)\n", ""),
        (INIT, INIT + "        self.num_ready = [0] * len(self.buckets)\n"),
        ("== len(self.buckets[number])", ">= len(self.buckets[number])"),
    ),
    _changed(
        "05.4",
        "empties a count only where its bucket leaves in a hook",
        "once",
        ("        self.num_ready = [0] * len(self.buckets)\n", ""),
        (INIT, INIT + "        self.num_ready = [0] * len(self.buckets)\n"),
        (
            WHILE,
            "        while self.next_is_full():\n"
            "            self.num_ready[len(self.sent)] = 0\n            self.send_next()\n",
        ),
    ),
    _changed(
        "05.4",
        "expects in each step what the one before used",
        "once",
        (INIT, INIT + "        self.wanted = [len(bucket) for bucket in self.buckets]\n"),
        ("== len(self.buckets[number])", "== self.wanted[number]"),
        (
            "    def wait_for_gradients(self):\n",
            "    def wait_for_gradients(self):\n        self.wanted = self.num_ready\n",
        ),
    ),
    _changed(
        "05.4",
        "sends what is left in the hook of the last parameter",
        "deadlock",
        (LEFT, ""),
        (
            WHILE,
            WHILE + "        if parameter is self.buckets[-1][-1]:\n" + indent(LEFT, " " * 4),
        ),
    ),
    _changed(
        "05.4",
        "sends what is left up to the last bucket that is full",
        "deadlock",
        (
            LEFT,
            "        pairs = zip(self.num_ready, self.buckets)\n"
            "        last = max([n for n, (k, b) in enumerate(pairs) if k == len(b)], default=-1)\n"
            + LEFT.replace("< len(self.buckets)", "<= last"),
        ),
    ),
    _changed(
        "05.4",
        "starts a step in the hook of the first parameter",
        "deadlock",
        ("= part.view_as(parameter)\n        self.start_step()\n", "= part.view_as(parameter)\n"),
        (
            COUNT,
            "        if parameter is self.buckets[0][0]:\n            self.start_step()\n" + COUNT,
        ),
    ),
    _changed(
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
    _changed(
        "05.4",
        "sends one bucket a hook",
        "behind",
        (WHILE, WHILE.replace("while", "if")),
    ),
    _changed(
        "05.4",
        "sends in bfloat16",
        "sent-dtype",
        (SEND, "        whole, flat = flat, flat.bfloat16()\n" + SEND),
        (WAIT, WAIT + "            flat = flat.to(bucket[0].dtype)\n"),
    ),
    _changed(
        "05.4",
        "thaws the model",
        "left-changed",
        (INIT, INIT + "        model.requires_grad_(True)\n"),
    ),
    _changed(
        "05.4",
        "has one flat tensor for all buckets",
        "values",
        (
            INIT,
            INIT
            + "        self.flat = torch.cat([p.flatten() for b in self.buckets for p in b])\n",
        ),
        (DIVIDE, DIVIDE + "        flat = self.flat[: len(flat)].detach().copy_(flat)\n"),
    ),
    _changed(
        "05.4",
        "puts parts back in another order",
        "values",
        ("gradient in gradients]", "gradient in gradients[::-1]]"),
    ),
    _changed("05.4", "forgets the shape", "raised", ("part.view_as(parameter)", "part")),
    _changed(
        "05.4",
        "unusual: waits for futures",
        None,
        (SEND, SEND[:-1] + ".get_future()\n"),
    ),
    _changed(
        "05.4",
        "counts rows",
        "raised",
        ("parameter.numel() for", "len(parameter) for"),
    ),
    _changed(
        "05.4",
        "unusual: reads what came in a callback",
        None,
        (SEND, SEND[:-1] + ".get_future().then(lambda future: future.value())\n"),
    ),
    _changed(
        "05.4",
        "unusual: looks after backward until all is complete",
        None,
        (WAIT, "            while not handle.is_completed(): pass\n"),
    ),
    _changed(
        "05.4",
        "waits in the next hook",
        "blocks",
        (COUNTED, "        for handle, _ in self.sent: handle.wait()\n" + COUNTED),
    ),
    _changed(
        "05.4",
        "looks in the next hook until all is complete",
        "blocks",
        (
            COUNTED,
            "        while not all(handle.is_completed() for handle, _ in self.sent): pass\n"
            + COUNTED,
        ),
    ),
]
