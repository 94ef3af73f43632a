"""
Answers to exercise 03. Most are a right one with one thing changed: what is changed stands first.
"""

from bank import Answer, changed

# ---- what an answer begins with, and how a rank may send and receive in one step ----

_HEAD = """\
import torch
import torch.distributed as dist

def places():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return rank, world_size, (rank + 1) % world_size, (rank - 1) % world_size


def swap(leaving, arriving, right, left):
    handle = dist.irecv(arrived := arriving, src=left)
    dist.send(leaving, dst=right)
    handle.wait()
    return arrived

"""
_SWAP = """\
    handle = dist.irecv(arrived := arriving, src=left)
    dist.send(leaving, dst=right)
    handle.wait()
"""
_SEND_FIRST = """\
    dist.send(leaving, dst=right)
    dist.recv(arrived := arriving, src=left)
"""
_SEND_FIRST_IF_LARGE = """\
    works = [dist.irecv(arrived := arriving, src=left)] if leaving.nbytes < 2**16 else []
    dist.send(leaving, dst=right)
    if not works:
        dist.recv(arrived := arriving, src=left)
    for work in works:
        work.wait()
"""
_IN_TURN = """\
    if dist.get_rank() == 0:
        dist.send(leaving, dst=right)
        dist.recv(arrived := arriving, src=left)
    else:
        dist.recv(arrived := arriving, src=left)
        dist.send(leaving, dst=right)
"""
_EVEN_FIRST = _IN_TURN.replace("dist.get_rank() == 0", "dist.get_rank() % 2 == 0")
_IN_PIECES = """\
    arrived = arriving
    for mine, theirs in zip(leaving.tensor_split(2), arriving.tensor_split(2)):
        handle = dist.irecv(theirs, src=left)
        dist.send(mine, dst=right)
        handle.wait()
"""
_LAST_RECEIVES_FIRST = _IN_TURN.replace(
    "dist.get_rank() == 0", "dist.get_rank() != dist.get_world_size() - 1"
)
_SKIPS_EMPTY = """\
    arrived = arriving
    works = [dist.irecv(arriving, src=left)] if len(arriving) else []
    if len(leaving):
        dist.send(leaving, dst=right)
    for work in works:
        work.wait()
"""
_UNWAITED = """\
    dist.isend(leaving, dst=right)
    dist.recv(arrived := arriving, src=left)
"""
_ALL_AT_ONCE = """\
    works.append(dist.irecv(arrived := arriving, src=left))
    dist.send(leaving, dst=right)
"""
_BATCH = """\
    arrived = arriving
    sides = [(dist.isend, leaving, right), (dist.irecv, arriving, left)]
    for work in dist.batch_isend_irecv([dist.P2POp(*side) for side in sides]):
        work.wait()
"""


def _waiting_at_the_end(source):
    """
    Return an answer that waits for all that it receives when it has sent all.
    """
    return changed(
        _HEAD, (_SWAP, _ALL_AT_ONCE), ("def swap", "works = []\n\n\ndef swap")
    ) + changed(source, ("    return", "    while works:\n        works.pop(0).wait()\n    return"))


# What an answer that keeps its tensors begins with.
_KEPT = """\
import torch
_kept = {}

def _like(tensor, number=0):
    key = number, tensor.shape, tensor.dtype
    return _kept.setdefault(key, torch.empty(tensor.shape, dtype=tensor.dtype))

"""


# ---- 03.1 ----

_SCATTER = """\
def reduce_scatter(chunks):
    rank, world_size, right, left = places()
    passing = chunks[left].clone()
    for step in range(world_size - 1):
        growing = chunks[(rank - 2 - step) % world_size]
        arrived = swap(passing, torch.empty_like(growing), right, left)
        passing = arrived + growing
    return passing
"""
_SCATTER_WHOLE = """\
def reduce_scatter(chunks):
    rank, world_size, right, left = places()
    passing = torch.cat(chunks)
    total = passing.clone()
    for step in range(world_size - 1):
        passing = swap(passing, torch.empty_like(total), right, left)
        total += passing
    return total.split([len(chunk) for chunk in chunks])[rank].clone()
"""
_SCATTER_DIRECT = """\
def reduce_scatter(chunks):
    rank, world_size, right, left = places()
    total = chunks[rank].clone()
    for far in range(1, world_size):
        to, come = (rank + far) % world_size, (rank - far) % world_size
        total += swap(chunks[to], torch.empty_like(total), to, come)
    return total
"""
_SCATTER_LEFTWARDS = """\
def reduce_scatter(chunks):
    rank, world_size, right, left = places()
    order = [(rank + 1 + step) % world_size for step in range(world_size)]
    sums = {c: chunks[c].clone() for c in order}
    for leaving, growing in zip(order, order[1:]):
        arrived = torch.empty_like(sums[growing])
        handle = dist.isend(sums[leaving], dst=left)
        dist.recv(arrived, src=right)
        handle.wait()
        sums[growing].add_(arrived)
    return sums[rank]
"""

_SCATTER_FILLED_UP = """\
def reduce_scatter(chunks):
    rank, world_size, right, left = places()
    most = {0}
    filled = [torch.cat([chunk, chunk.new_zeros(most - len(chunk))]) for chunk in chunks]
    passing = filled[left]
    for step in range(world_size - 1):
        growing = filled[(rank - 2 - step) % world_size]
        passing = swap(passing, torch.empty_like(growing), right, left) + growing
    return passing[: len(chunks[rank])].clone()
"""


def _scatter_in(dtype):
    return _HEAD + changed(
        _SCATTER,
        ("chunks[left].clone()", f"chunks[left].to({dtype})"),
        ("chunks[(rank - 2 - step) % world_size]", f"chunks[rank - 2 - step].to({dtype})"),
        ("return passing", "return passing.to(chunks[0].dtype, copy=True)"),
    )


_ADDS_EARLY = (
    "        arrived = swap(passing, torch.empty_like(growing), right, left)\n"
    "        passing = arrived + growing\n",
    "        arrived = torch.empty_like(growing)\n"
    "        handle = dist.irecv(arrived, src=left)\n"
    "        dist.send(passing, dst=right)\n"
    "        passing = arrived + growing\n"
    "        handle.wait()\n",
)
# One tensor holds the chunk that comes, beside the one that is passed on.
_SCATTER_IN_HALVES = """\
def reduce_scatter(chunks):
    rank, world_size, right, left = places()
    room = chunks[0].new_empty(2, max(map(len, chunks)))
    passing = room[0, : len(chunks[left])].copy_(chunks[left])
    for step in range(world_size - 1):
        growing = chunks[(rank - 2 - step) % world_size]
        arrived = room[1 - step % 2, : len(growing)]
        handle = dist.irecv(arrived, src=left)
        dist.send(passing.clone(), dst=right)
        total = torch.zeros_like(arrived)
        handle.wait()
        passing = arrived.add_(total.add_(growing))
    return passing.clone()
"""

# fmt: off
_SCATTERS = [
    ("adds what has come, and waits then", "early", _HEAD + changed(_SCATTER, _ADDS_EARLY)),
    ("waits for all at the end", "early", _waiting_at_the_end(_SCATTER)),
    ("adds its numbers of another chunk", "mixed",
     _HEAD + changed(_SCATTER, ("rank - 2 - step", "rank - 1 - step"))),
    ("receives beside what it sends, and makes a tensor like what comes", None,
     _HEAD + _SCATTER_IN_HALVES),
    ("adds with torch.stack and sum", "dtype",
     _HEAD + changed(_SCATTER, ("arrived + growing", "torch.stack([arrived, growing]).sum(0)"))),
    ("adds with numpy, which has no bfloat16", "raised",
     _HEAD + changed(
         _SCATTER,
         ("arrived + growing", "torch.from_numpy(arrived.numpy() + growing.numpy())"))),
    ("lets the last rank receive first, and all others send", "turns",
     changed(_HEAD, (_SWAP, _LAST_RECEIVES_FIRST)) + _SCATTER),
    ("fills up to the longest chunk", "filled-up",
     _HEAD + _SCATTER_FILLED_UP.format("max(map(len, chunks))")),
    ("fills up to 10 numbers", "too-long", _HEAD + _SCATTER_FILLED_UP.format("10")),
    ("adds and sends in float32", "sent-dtype", _scatter_in("torch.float32")),
    ("adds and sends in float64", "sent-dtype", _scatter_in("torch.float64")),
    ("adds and sends in bfloat16", "sent-dtype", _scatter_in("torch.bfloat16")),
    ("puts the sum into the caller's list", "input-changed",
     _HEAD + changed(
         _SCATTER, ("return passing", "chunks[rank] = passing\n    return passing.clone()"))),
    ("starts at home, and takes a step more", "cost",
     _HEAD + changed(
         _SCATTER,
         ("chunks[left]", "chunks[rank]"),
         ("range(world_size - 1)", "range(world_size if world_size > 1 else 0)"),
         ("rank - 2 - step", "rank - 1 - step"),
         ("arrived + growing", "arrived + growing if step < world_size - 1 else arrived"))),
    ("keeps its sum for the next call", "kept",
     _KEPT + _HEAD + changed(
         _SCATTER, ("return passing", "return _like(passing).copy_(passing)"))),
    ("sends no empty chunks", None, changed(_HEAD, (_SWAP, _SKIPS_EMPTY)) + _SCATTER),
    ("passes the whole tensor round and adds", "whole-tensor", _HEAD + _SCATTER_WHOLE),
    ("waits in send before it receives", "deadlock",
     changed(_HEAD, (_SWAP, _SEND_FIRST)) + _SCATTER),
    ("takes turns, from rank 0 on", "turns", changed(_HEAD, (_SWAP, _IN_TURN)) + _SCATTER),
    ("sends a chunk in two messages", "cost", changed(_HEAD, (_SWAP, _IN_PIECES)) + _SCATTER),
    ("does not wait for its sends", "unwaited", changed(_HEAD, (_SWAP, _UNWAITED)) + _SCATTER),
    ("sends each chunk straight to its rank", "not-ring", _HEAD + _SCATTER_DIRECT),
    (
        "starts with its own chunk, which ends one rank before home",
        "wrong-chunk",
        _HEAD
        + changed(
            _SCATTER, ("chunks[left]", "chunks[rank]"), ("rank - 2 - step", "rank - 1 - step")
        ),
    ),
    (
        "passes on its own numbers only",
        "not-all",
        _HEAD
        + changed(
            _SCATTER,
            ("(passing, ", "(chunks[(rank - 1 - step) % world_size], "),
        ),
    ),
    (
        "passes on what came, and adds at the end only",
        "not-all",
        _HEAD
        + changed(
            _SCATTER,
            ("= arrived + growing", "= arrived"),
            ("return passing", "return passing + chunks[rank]"),
        ),
    ),
    ("adds its own numbers once more at the end", "twice",
     _HEAD + changed(_SCATTER, ("return passing", "return passing + chunks[rank]"))),
    ("makes every buffer as long as its own chunk", "died",
     _HEAD + changed(_SCATTER, ("torch.empty_like(growing)", "torch.empty_like(chunks[rank])"))),
    (
        "adds into the chunks that it was given",
        "input-changed",
        _HEAD
        + changed(_SCATTER, ("passing = arrived + growing", "passing = growing.add_(arrived)")),
    ),
    ("alone, returns its argument", "view", _HEAD + changed(_SCATTER, (".clone()", ""))),
    (
        "calls torch's reduce_scatter",
        "forbidden",
        _HEAD
        + """\
def reduce_scatter(chunks):
    total = torch.empty_like(chunks[dist.get_rank()])
    dist.reduce_scatter(total, chunks)
    return total
""",
    ),
    ("runs to the left, and sends before it receives", None, _HEAD + _SCATTER_LEFTWARDS),
    ("lets even ranks send first", None, changed(_HEAD, (_SWAP, _EVEN_FIRST)) + _SCATTER),
    ("posts both sides in a batch", None, changed(_HEAD, (_SWAP, _BATCH)) + _SCATTER),
]
# fmt: on

# ---- 03.2 ----

_GATHER = """\
def all_gather(chunk, lengths):
    rank, world_size, right, left = places()
    parts = [chunk.new_empty(n) for n in lengths]
    parts[rank].copy_(chunk)
    for step in range(world_size - 1):
        leaving = parts[(rank - step) % world_size]
        swap(leaving, parts[(rank - 1 - step) % world_size], right, left)
    return parts
"""
_GATHER_IN_ORDER_OF_ARRIVAL = """\
def all_gather(chunk, lengths):
    rank, world_size, right, left = places()
    parts = [chunk.clone()]
    for step in range(world_size - 1):
        coming = chunk.new_empty(lengths[(rank - 1 - step) % world_size])
        parts.append(swap(parts[-1], coming, right, left))
    return parts
"""
_GATHER_ONE_BUFFER = """\
def all_gather(chunk, lengths):
    rank, world_size, right, left = places()
    room = chunk.new_empty(max(lengths))
    parts = [room[:n] for n in lengths]
    passing = chunk
    for step in range(world_size - 1):
        c = (rank - 1 - step) % world_size
        passing = swap(passing.clone(), parts[c], right, left)
    parts[rank] = chunk.clone()
    return parts
"""
_GATHER_DIRECT = """\
def all_gather(chunk, lengths):
    rank, world_size, right, left = places()
    parts = [chunk.new_empty(n) for n in lengths]
    parts[rank].copy_(chunk)
    for far in range(1, world_size):
        to, come = (rank + far) % world_size, (rank - far) % world_size
        swap(chunk, parts[come], to, come)
    return parts
"""
_GATHER_LEFTWARDS = """\
def all_gather(chunk, lengths):
    rank, world_size, right, left = places()
    parts = {rank: chunk.clone()}
    for step in range(1, world_size):
        c = (rank + step) % world_size
        parts[c] = torch.empty(lengths[c], dtype=chunk.dtype, device=chunk.device)
        swap(parts[(c - 1) % world_size], parts[c], left, right)
    return tuple(parts[c] for c in range(world_size))
"""
_GATHER_FILLED_UP = """\
def all_gather(chunk, lengths):
    rank, world_size, right, left = places()
    parts = [chunk.new_zeros(max(lengths)) for _ in lengths]
    parts[rank][: len(chunk)] = chunk
    for step in range(world_size - 1):
        leaving = parts[(rank - step) % world_size]
        swap(leaving, parts[(rank - 1 - step) % world_size], right, left)
    return [part[:n] for part, n in zip(parts, lengths)]
"""
_GATHER_TWO_AT_ONCE = """\
def all_gather(chunk, lengths):
    rank, world_size, right, left = places()
    held = [chunk.clone()]
    for step in range(world_size - 1):
        sent = held if step else held[:1]
        coming = [lengths[(rank - 1 - k) % world_size] for k in range(len(sent))]
        arrived = swap(torch.cat(sent), chunk.new_empty(sum(coming)), right, left)
        held = [chunk.clone(), *arrived.split(coming)]
    return [held[(rank - c) % world_size] for c in range(world_size)]
"""


def _gather_in(dtype):
    return _HEAD + changed(
        _GATHER,
        ("[chunk.new_empty(n) for", f"[torch.empty(n, dtype={dtype}) for"),
        ("return parts", "return [part.to(chunk.dtype, copy=True) for part in parts]"),
    )


# fmt: off
_GATHERS = [
    ("passes on what may not have come, and waits at the end", "early",
     _waiting_at_the_end(_GATHER)),
    ("puts what arrives where the right neighbour's belongs", "order",
     _HEAD + changed(_GATHER_LEFTWARDS, ("], left, right)", "], right, left)"))),
    ("lets the last rank receive first, and all others send", "turns",
     changed(_HEAD, (_SWAP, _LAST_RECEIVES_FIRST)) + _GATHER),
    ("fills up to the longest chunk", "filled-up", _HEAD + _GATHER_FILLED_UP),
    ("sends all that it has in every step", "filled-up", _HEAD + _GATHER_TWO_AT_ONCE),
    ("sends float64", "sent-dtype", _gather_in("torch.float64")),
    ("sends bfloat16", "sent-dtype", _gather_in("torch.bfloat16")),
    ("receives in float32 whatever is sent", "died",
     _HEAD + changed(
         _GATHER,
         ("[chunk.new_empty(n) for", "[torch.empty(n) for"),
         ("parts[rank].copy_(chunk)", "parts[rank] = chunk.clone()"))),
    ("empties the caller's list", "input-changed",
     _HEAD + changed(_GATHER, ("return parts", "lengths.clear()\n    return parts"))),
    ("keeps its tensors for the next call", "kept",
     _KEPT + _HEAD + changed(
         _GATHER,
         ("[chunk.new_empty(n) for n in lengths]",
          "[_like(chunk.new_empty(n), c) for c, n in enumerate(lengths)]"))),
    ("cuts one tensor into places for all", None,
     _HEAD + changed(
         _GATHER,
         ("[chunk.new_empty(n) for n in lengths]",
          "list(chunk.new_empty(sum(lengths)).split(lengths))"))),
    ("keeps the order of arrival", "order", _HEAD + _GATHER_IN_ORDER_OF_ARRIVAL),
    ("returns one tensor", "no-list",
     _HEAD + changed(_GATHER, ("return parts", "return torch.cat(parts)"))),
    ("sends its own chunk in every step", "own-again",
     _HEAD + changed(_GATHER, ("parts[(rank - step) % world_size]", "chunk"))),
    ("receives all chunks into one buffer", "one-buffer", _HEAD + _GATHER_ONE_BUFFER),
    (
        "leaves its own place empty",
        "own-missing",
        _HEAD
        + changed(
            _GATHER,
            ("    parts[rank].copy_(chunk)\n", "    parts[rank].zero_()\n"),
            (
                "parts[(rank - step) % world_size]",
                "chunk if step == 0 else parts[(rank - step) % world_size]",
            ),
        ),
    ),
    (
        "makes every part as long as its own",
        "died",
        _HEAD
        + changed(
            _GATHER,
            ("chunk.new_empty(n) for n in lengths", "torch.empty_like(chunk) for _ in lengths"),
        ),
    ),
    ("puts the argument itself in the list", "view",
     _HEAD + changed(_GATHER, ("parts[rank].copy_(chunk)", "parts[rank] = chunk"))),
    ("sends its chunk straight to each rank", "not-ring", _HEAD + _GATHER_DIRECT),
    ("waits in send before it receives", "deadlock",
     changed(_HEAD, (_SWAP, _SEND_FIRST)) + _GATHER),
    ("takes turns, from rank 0 on", "turns", changed(_HEAD, (_SWAP, _IN_TURN)) + _GATHER),
    (
        "goes once round completely, so that its own chunk comes home",
        "cost",
        _HEAD
        + changed(
            _GATHER, ("range(world_size - 1)", "range(world_size if world_size > 1 else 0)")
        ),
    ),
    (
        "calls torch's all_gather",
        "forbidden",
        _HEAD
        + """\
def all_gather(chunk, lengths):
    parts = [chunk.new_empty(n) for n in lengths]
    dist.all_gather(parts, chunk)
    return parts
""",
    ),
    ("runs to the left, and returns a tuple", None, _HEAD + _GATHER_LEFTWARDS),
    ("lets even ranks send first", None, changed(_HEAD, (_SWAP, _EVEN_FIRST)) + _GATHER),
]
# fmt: on

# ---- 03.3 ----

_REDUCE = """\
def all_reduce(tensor):
    rank, world_size, right, left = places()
    flat = tensor.flatten()
    chunks = [chunk.clone() for chunk in flat.tensor_split(world_size)]
    for step in range(world_size - 1):
        growing = chunks[(rank - 2 - step) % world_size]
        leaving = chunks[(rank - 1 - step) % world_size]
        growing += swap(leaving, torch.empty_like(growing), right, left)
    for step in range(world_size - 1):
        leaving = chunks[(rank - step) % world_size]
        swap(leaving, chunks[(rank - 1 - step) % world_size], right, left)
    return torch.cat(chunks).view(tensor.shape)
"""
_REDUCE_WHOLE = """\
def all_reduce(tensor):
    rank, world_size, right, left = places()
    passing = tensor.contiguous()
    total = passing.clone()
    for step in range(world_size - 1):
        passing = swap(passing, torch.empty_like(total), right, left)
        total += passing
    return total
"""
_REDUCE_HUB = """\
def all_reduce(tensor):
    rank, world_size, right, left = places()
    total = tensor.clone(memory_format=torch.contiguous_format)
    for chunk in total.view(-1).tensor_split(world_size):
        for other in range(1, world_size):
            if rank == 0:
                arrived = torch.empty_like(chunk)
                dist.recv(arrived, src=other)
                chunk += arrived
            elif rank == other:
                dist.send(chunk, dst=0)
        for other in range(1, world_size):
            if rank == 0:
                dist.send(chunk, dst=other)
            elif rank == other:
                dist.recv(chunk, src=0)
    return total
"""
_REDUCE_PADDED = """\
def all_reduce(tensor):
    rank, world_size, right, left = places()
    length = -(-tensor.numel() // world_size)
    table = tensor.new_zeros(world_size * length)
    table[: tensor.numel()] = tensor.reshape(-1)
    table = table.view(world_size, length)
    for step in range(2 * (world_size - 1)):
        arrived = swap(
            table[(rank - step) % world_size], tensor.new_empty(length), right, left
        )
        c = (rank - 1 - step) % world_size
        table[c] = table[c] + arrived if step < world_size - 1 else arrived
    return table.view(-1)[: tensor.numel()].view(tensor.shape)
"""
_GROWS = "growing += swap(leaving, torch.empty_like(growing), right, left)"
_ITS_RESULT = "torch.cat(chunks).view(tensor.shape)"


_IN_A_CLONE = (
    ("flat = tensor.flatten()", "total = tensor.clone()"),
    ("[chunk.clone() for chunk in flat.tensor_split(world_size)]",
     "total.flatten().tensor_split(world_size)"),
    (_ITS_RESULT, "total"),
)  # fmt: skip


def _reduce_in(dtype):
    return _HEAD + changed(
        _REDUCE,
        ("tensor.flatten()", f"tensor.flatten().to({dtype})"),
        (_ITS_RESULT, f"{_ITS_RESULT}.to(tensor.dtype)"),
    )


def _reduce_if_empty(line):
    return _HEAD + changed(
        _REDUCE, ("    flat = ", f"    if not tensor.numel():\n        {line}\n    flat = ")
    )


# fmt: off
_REDUCES = [
    ("adds into a clone made flat, and returns the clone", "copied",
     _HEAD + changed(_REDUCE, *_IN_A_CLONE)),
    ("writes the sum into an empty tensor made flat", "copied",
     _HEAD + changed(
         _REDUCE,
         (f"return {_ITS_RESULT}",
          "total = torch.zeros_like(tensor)\n"
          "    total.reshape(-1).copy_(torch.cat(chunks))\n    return total"))),
    ("passes on what may not have come, and waits at the end of each half", "early",
     _HEAD + changed(
         _REDUCE,
         ("        swap(leaving, chunks[(rank - 1 - step) % world_size], right, left)\n",
          "        works.append(dist.irecv(chunks[(rank - 1 - step) % world_size], src=left))\n"
          "        dist.send(leaving, dst=right)\n"),
         ("    flat =", "    works = []\n    flat ="),
         ("    return", "    for work in works:\n        work.wait()\n    return"))),
    ("adds into a clone that lies in one piece", None,
     _HEAD + changed(
         _REDUCE,
         *_IN_A_CLONE,
         ("tensor.clone()", "tensor.clone(memory_format=torch.contiguous_format)"))),
    ("knows nothing of empty tensors", "raised", _reduce_if_empty("tensor.max()")),
    ("returns its argument if it is empty", "view", _reduce_if_empty("return tensor")),
    ("returns any empty tensor if it is empty", "dtype",
     _reduce_if_empty("return torch.zeros(0)")),
    ("returns an empty tensor of one dimension", "shape",
     _reduce_if_empty("return tensor.new_zeros(0)")),
    ("adds means, and multiplies them at the end", "digits",
     _HEAD + changed(
         _REDUCE,
         ("tensor.flatten()", "tensor.flatten() / world_size"),
         (_ITS_RESULT, f"({_ITS_RESULT} * world_size).to(tensor.dtype)"))),
    ("adds with torch.stack and sum", "died",
     _HEAD + changed(
         _REDUCE,
         (_GROWS,
          "arrived = swap(leaving, torch.empty_like(growing), right, left)\n"
          "        both = torch.stack([growing, arrived])\n"
          "        chunks[(rank - 2 - step) % world_size] = both.sum(0)"))),
    ("adds with numpy, which has no bfloat16", "raised",
     _HEAD + changed(
         _REDUCE,
         (_GROWS,
          "arrived = swap(leaving, torch.empty_like(growing), right, left)\n"
          "        growing += torch.from_numpy(arrived.numpy())"))),
    ("keeps its sum for the next call", "kept",
     _KEPT + _HEAD + changed(_REDUCE, (_ITS_RESULT, f"_like(tensor).copy_({_ITS_RESULT})"))),
    ("adds in float32", "digits", _reduce_in("torch.float32")),
    ("adds in float64", "sent-dtype", _reduce_in("torch.float64")),
    ("takes the numbers as they lie in memory", "memory",
     _HEAD + changed(
         _REDUCE, ("tensor.flatten()", "tensor.clone().as_strided((tensor.numel(),), (1,))"))),
    ("gives all that is left over to the last chunk", "too-long",
     _HEAD + changed(
         _REDUCE,
         ("tensor_split(world_size)",
          "tensor_split([len(flat) // world_size * c for c in range(1, world_size)])"))),
    ("gives the sum the strides of the tensor", "raised",
     _HEAD + changed(
         _REDUCE,
         (f"return {_ITS_RESULT}",
          "total = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)\n"
          f"    return total.copy_({_ITS_RESULT})"))),
    ("lets the last rank receive first, and all others send", "turns",
     changed(_HEAD, (_SWAP, _LAST_RECEIVES_FIRST)) + _REDUCE),
    ("sends nothing if the tensor is empty", None, _reduce_if_empty("return tensor.clone()")),
    ("passes the whole tensor round and adds", "whole-tensor", _HEAD + _REDUCE_WHOLE),
    ("waits in send before it receives", "deadlock",
     changed(_HEAD, (_SWAP, _SEND_FIRST)) + _REDUCE),
    ("waits in send before it receives, if the chunk is large", "deadlock",
     changed(_HEAD, (_SWAP, _SEND_FIRST_IF_LARGE)) + _REDUCE),
    ("takes turns, from rank 0 on", "turns", changed(_HEAD, (_SWAP, _IN_TURN)) + _REDUCE),
    ("sends a chunk in two messages", "cost", changed(_HEAD, (_SWAP, _IN_PIECES)) + _REDUCE),
    ("sends each chunk over a hub", "not-ring", _HEAD + _REDUCE_HUB),
    ("divides by the number of ranks", "average",
     _HEAD + changed(_REDUCE, ("torch.cat(chunks)", "(torch.cat(chunks) / world_size)"))),
    (
        "leaves out what is left over when the length is divided",
        "tail",
        _HEAD
        + changed(
            _REDUCE,
            (
                "flat.tensor_split(world_size)]",
                "flat[: len(flat) // world_size * world_size].chunk(world_size)]",
            ),
            (
                "torch.cat(chunks)",
                "torch.cat([*chunks, flat[len(flat) // world_size * world_size :]])",
            ),
        ),
    ),
    (
        "stops after the reduce-scatter",
        "half-done",
        _HEAD
        + changed(
            _REDUCE,
            (
                "        swap(leaving, chunks[(rank - 1 - step) % world_size], right, left)\n",
                "        pass\n",
            ),
        ),
    ),
    (
        "sends finished chunks as bfloat16, to save bytes",
        "bits",
        _HEAD
        + changed(
            _REDUCE,
            (
                "        swap(leaving, chunks[(rank - 1 - step) % world_size], right, left)\n",
                "        arriving = chunks[(rank - 1 - step) % world_size]\n"
                "        half = torch.empty_like(arriving, dtype=torch.bfloat16)\n"
                "        arriving.copy_(swap(leaving.bfloat16(), half, right, left))\n",
            ),
        ),
    ),
    ("wants a length that divides", "raised",
     _HEAD + changed(_REDUCE, ("flat.tensor_split(world_size)]", "flat.view(world_size, -1)]"))),
    ("cuts by chunk, which may make fewer", "raised",
     _HEAD + changed(_REDUCE, ("flat.tensor_split(world_size)]", "flat.chunk(world_size)]"))),
    ("wants a tensor that lies in one piece", "raised",
     _HEAD + changed(_REDUCE, ("tensor.flatten()", "tensor.view(-1)"))),
    ("returns it flat", "shape", _HEAD + changed(_REDUCE, (".view(tensor.shape)", ""))),
    (
        "adds into views of its argument",
        "input-changed",
        _HEAD
        + changed(
            _REDUCE,
            (
                "[chunk.clone() for chunk in flat.tensor_split(world_size)]",
                "flat.tensor_split(world_size)",
            ),
        ),
    ),
    (
        "calls torch's all_reduce",
        "forbidden",
        _HEAD
        + """\
def all_reduce(tensor):
    total = tensor.clone()
    dist.all_reduce(total)
    return total
""",
    ),
    ("fills up with zeros, and finishes chunks one rank before home", None, _HEAD + _REDUCE_PADDED),
    ("lets even ranks send first", None, changed(_HEAD, (_SWAP, _EVEN_FIRST)) + _REDUCE),
]
# fmt: on

# ---- 03.4 ----

_FIT = """\
import numpy as np

def fit_link(times):
    sizes = np.array(list(times), dtype=np.float64)
    least = np.array([min(tries) for tries in times.values()])
    slope, latency_s = np.polyfit(sizes, least, 1, w=1 / least)
    return latency_s, 1 / slope
"""
_FIT_ENDS = """\
def fit_link(times):
    points = sorted((n, min(tries)) for n, tries in times.items())
    (n_first, first_s), (n_last, last_s) = points[0], points[-1]
    bandwidth = (n_last - n_first) / (last_s - first_s)
    return first_s - n_first / bandwidth, bandwidth
"""
_FIT_PACKAGE = """\
from statistics import median
from ddp_lessons.costs import fit

def fit_link(times):
    link = fit([(n, median(tries)) for n, tries in times.items()]).link
    return [link.latency_s, link.bandwidth_bytes_per_s]
"""
_FIT_PLACES = """\
def fit_link(times):
    sizes, least = list(times), [min(tries) for tries in times.values()]
    bandwidth = (sizes[-1] - sizes[{0}]) / (least[-1] - least[{0}])
    return least[0] - sizes[0] / bandwidth, bandwidth
"""
# fmt: off
_FITS = [
    ("takes the last size for the largest", "no-order", _FIT_PLACES.format("0")),
    ("takes the first time for the smallest's", "no-order",
     changed(_FIT, ("return latency_s", "return least[0] - sizes.min() * slope"))),
    ("sorts the caller's lists", "input-changed",
     changed(_FIT, ("    sizes", "    [tries.sort() for tries in times.values()]\n    sizes"))),
    ("weighs by one divided by the size", "small-say",
     changed(_FIT, ("w=1 / least", "w=1 / sizes"))),
    ("fits seconds a byte", "small-say",
     changed(
         _FIT,
         ("latency_s = np", "per_byte = np"),
         ("sizes, least, 1, w=1 / least", "1 / sizes, least / sizes, 1"),
         ("return latency_s, 1 / slope", "return slope, 1 / per_byte"))),
    ("takes the mean of sizes divided by their times", "slope",
     changed(_FIT, ("1 / slope", "np.mean(sizes / least)"))),
    ("divides by the number of sizes, too", "slope",
     changed(_FIT, ("1 / slope", "1 / slope / len(sizes)"))),
    ("takes the sum of the tries", "times-over", changed(_FIT, ("min(tries)", "sum(tries)"))),
    ("divides the sum of the tries by the number of sizes", "times-over",
     changed(_FIT, ("min(tries)", "sum(tries) / len(times)"))),
    ("weighs each try by one divided by its time", "interrupted",
     changed(
         _FIT,
         ("list(times), dtype=np.float64)", "[n for n in times for _ in range(5)], dtype=float)"),
         ("[min(tries) for tries in times.values()]", "sum(times.values(), [])"))),
    ("weighs by size", "no-say", changed(_FIT, ("w=1 / least", "w=sizes"))),
    ("takes the longest try", "interrupted", changed(_FIT, ("min(tries)", "max(tries)"))),
    ("returns MiB a second", "unit", changed(_FIT, ("1 / slope", "1 / slope / 2**20"))),
    ("returns bits a second", "unit", changed(_FIT, ("1 / slope", "8 / slope"))),
    ("returns microseconds", "unit", changed(_FIT, ("return lat", "return 1e6 * lat"))),
    ("fits logarithms", "logarithms",
     changed(
         _FIT,
         ("sizes, least, 1, w=1 / least", "np.log(sizes), np.log(least), 1"),
         ("return latency_s", "return np.exp(latency_s)"))),
    ("gives all points the say of their seconds", "no-say", changed(_FIT, (", w=1 / least", ""))),
    ("weighs by the time, not by its inverse", "no-say",
     changed(_FIT, ("w=1 / least", "w=least"))),
    ("takes the mean of the tries", "interrupted",
     changed(_FIT, ("min(tries)", "sum(tries) / len(tries)"))),
    ("takes the first try", "interrupted", changed(_FIT, ("min(tries)", "tries[0]"))),
    ("returns the bandwidth first", "swapped",
     changed(_FIT, ("latency_s, 1 / slope", "1 / slope, latency_s"))),
    ("returns seconds a byte", "inverse",
     changed(_FIT, ("latency_s, 1 / slope", "latency_s, slope"))),
    ("returns the bandwidth only", "no-pair", changed(_FIT, ("return latency_s, 1", "return 1"))),
    (
        "takes the smallest message's time for the latency",
        "smallest",
        """\
def fit_link(times):
    least = {n: min(tries) for n, tries in times.items()}
    small, large = min(least), max(least)
    return least[small], (large - small) / (least[large] - least[small])
""",
    ),
    ("divides the largest message by its time", "largest",
     changed(_FIT, ("1 / slope", "sizes[-1] / least[-1]"))),
    (
        "measures once more",
        "forbidden",
        "import torch.distributed as dist\n"
        + changed(_FIT, ("    slope,", "    dist.barrier()\n    slope,")),
    ),
    ("draws a line through both ends", None, _FIT_ENDS),
    ("returns an array", None,
     changed(_FIT, ("latency_s, 1 / slope", "np.array([latency_s, 1 / slope])"))),
    ("fits bytes over seconds, each with the same say", None,
     changed(
         _FIT,
         ("sizes, least, 1, w=1 / least", "least, sizes, 1, w=1 / least"),
         ("return latency_s, 1 / slope", "return -latency_s / slope, slope"))),
    ("takes medians and the package's fit", None, _FIT_PACKAGE),
]
# fmt: on

# ---- 03.5 ----

_PREDICT = """\
def predict_bytes(way, rank, world_size, num_elements, element_bytes):
    if way == "hub":
        num_sent = (world_size - 1 if rank == 0 else 1) * num_elements
        return num_sent * element_bytes
    length, num_longer = divmod(num_elements, world_size)
    lengths = [length + (c < num_longer) for c in range(world_size)]
    stays, last = lengths[rank], lengths[(rank + 1) % world_size]
    return (2 * num_elements - stays - last) * element_bytes
"""
_PREDICT_STEPS = """\
def predict_bytes(way, rank, world_size, num_elements, element_bytes):
    if way == "hub":
        copies = world_size - 1 if rank == 0 else 1
        return copies * num_elements * element_bytes
    ends = [c * (num_elements // world_size) + min(c, num_elements % world_size)
            for c in range(world_size + 1)]
    num_sent = 0
    for first in (rank - 1, rank):
        for step in range(world_size - 1):
            c = (first - step) % world_size
            num_sent += ends[c + 1] - ends[c]
    return float(num_sent * element_bytes)
"""
_RING_BYTES = "(2 * num_elements - stays - last) * element_bytes"
# fmt: off
_PREDICTS = [
    ("counts 4 bytes a number", "four-bytes", _PREDICT.replace("* element_bytes", "* 4")),
    ("asks torch which rank it is", "asked",
     "import torch.distributed as dist\n"
     + changed(_PREDICT, ("    if way", "    rank = dist.get_rank()\n    if way"))),
    ("asks torch how many ranks there are", "raised",
     "import torch.distributed as dist\n"
     + changed(_PREDICT, ("    if way", "    world_size = dist.get_world_size()\n    if way"))),
    ("makes the last chunks longer", "uneven",
     changed(_PREDICT, ("c < num_longer", "c >= world_size - num_longer"))),
    ("drops what is left over", "uneven",
     changed(
         _PREDICT,
         (_RING_BYTES,
          "2 * (world_size - 1) * (num_elements // world_size) * element_bytes"))),
    ("takes a hub for a place where all send alike", "hub-root",
     changed(_PREDICT, ("(world_size - 1 if rank == 0 else 1)", "(world_size - 1)"))),
    (
        "forgets that nobody sends where there is one rank",
        "hub-root",
        changed(
            _PREDICT,
            (
                "(world_size - 1 if rank == 0 else 1)",
                "(world_size - 1 if world_size > 1 and rank == 0 else 1)",
            ),
        ),
    ),
    (
        "takes the formula for lengths that divide",
        "uneven",
        changed(
            _PREDICT,
            (_RING_BYTES, "2 * (world_size - 1) / world_size * num_elements * element_bytes"),
        ),
    ),
    ("takes all chunks to be as long as the longest", "uneven",
     changed(_PREDICT, (_RING_BYTES, "2 * (world_size - 1) * lengths[0] * element_bytes"))),
    ("counts what it receives", "received",
     changed(_PREDICT, ("lengths[(rank + 1) % world_size]", "lengths[rank - 1]"))),
    ("keeps its own chunk at home in both halves", "second-half",
     changed(_PREDICT, ("lengths[(rank + 1) % world_size]", "lengths[rank]"))),
    ("counts the reduce-scatter only", "one-half",
     changed(_PREDICT, ("2 * num_elements - stays - last", "num_elements - stays"))),
    ("forgets how long a number is", "numbers",
     _PREDICT.replace(" * element_bytes", "")),
    ("tells what all ranks send together", "together",
     _PREDICT.replace("(world_size - 1 if rank == 0 else 1)", "2 * (world_size - 1)")),
    (
        "returns a sentence",
        "no-number",
        _PREDICT.replace(
            "return num_sent * element_bytes", 'return f"{num_sent * element_bytes} bytes"'
        ),
    ),
    (
        "runs it and looks",
        "forbidden",
        """\
import torch
from ddp_lessons.ring import textbook
from ddp_lessons.collectives import naive
from ddp_lessons.trace import trace

def predict_bytes(way, rank, world_size, num_elements, element_bytes):
    calls = naive if way == "hub" else textbook
    with trace() as events:
        calls.all_reduce(torch.zeros(num_elements * element_bytes, dtype=torch.uint8))
    return sum(event.input_bytes for event in events)
""",
    ),
    ("counts step by step, and returns a float", None, _PREDICT_STEPS),
    (
        "asks the package's schedules",
        None,
        """\
from ddp_lessons.costs import sent_bytes

def predict_bytes(way, rank, *counts):
    return sent_bytes("all_reduce", way, *counts)[rank]
""",
    ),
]
# fmt: on

ANSWERS = [
    Answer(task, *answer)
    for task, answers in {
        "03.1": _SCATTERS,
        "03.2": _GATHERS,
        "03.3": _REDUCES,
        "03.4": _FITS,
        "03.5": _PREDICTS,
    }.items()
    for answer in answers
]
