"""
More answers to exercise 02: worlds of more than 4 ranks, and messages that do not fit.
"""

from bank import Answer, changed

from wrong_answers.collectives import (
    _BROADCAST,
    _EXCHANGE,
    _GATHER,
    _IMPORTS,
    _exchange,
    _receives_first,
)

_PLANNED = f"""{_IMPORTS}
def broadcast(tensor, src):
    rank, w = dist.get_rank(), dist.get_world_size()
    got, plans = tensor.clone(), {{1: [], 2: [(0, 1)], 3: [(0, 1), (0, 2)]}}
    plans[4] = [*plans[3], (1, 3)]
    for sender, other in plans[w]:
        if (rank - src) % w == sender:
            dist.send(got, dst=(other + src) % w)
        if (rank - src) % w == other:
            dist.recv(got, src=(sender + src) % w)
    return got
"""

_FROM_ANYONE = f"""{_IMPORTS}
def broadcast(tensor, src):
    rank, w = dist.get_rank(), dist.get_world_size()
    got, distance = tensor.clone(), 1
    if not tensor.numel():
        return got
    if rank != src:
        sender = dist.recv(got)
        distance = 2 * ((rank - sender) % w)
    while (rank - src) % w + distance < w:
        dist.send(got, dst=(rank + distance) % w)
        distance *= 2
    return got
"""

# fmt: off
ANSWERS = [
    Answer(*row)
    for row in [
        ("02.2", "sends lengths as float32 where the tensor is empty", "died",
         changed(_GATHER, ("[len(tensor)], ", "[len(tensor) or 0.0], "))),
        ("02.2", "sends lengths as float64 from rank 0", "raised",
         changed(_GATHER, ("[len(tensor)], ", "[len(tensor)], "
                           "dtype=None if dist.get_rank() else torch.float64, "))),
        ("02.2", "sends lengths as int32 into places of int64", "raised",
         changed(_GATHER, ("gather(lengths, length)", "gather(lengths, length.int())"))),
        ("02.3", "knows the turns of 4 ranks only", "turns",
         _receives_first("rank not in (0, 2)")),
        ("02.3", "sends to one of 4 ranks", "more-ranks",
         changed(_EXCHANGE, ("dist.get_world_size()", "min(dist.get_world_size(), 4)"))),
        ("02.3", "keeps its own also if there are two", "own",
         changed(_EXCHANGE, ("world_size == 1", "world_size <= 2"))),
        ("02.3", "receives into float32", "died",
         changed(_EXCHANGE, ("torch.empty_like(tensor)", "torch.empty(tensor.shape)"))),
        ("02.3", "receives into more room than it need", None,
         changed(
             _EXCHANGE,
             ("torch.empty_like(tensor)", "tensor.new_empty(tensor.numel() + 1)"),
             ("return arrived", "return arrived[:-1].view(tensor.shape).clone()"),
         )),
        ("02.3", "sends from a thread", None,
         "import threading\n" + _exchange("""\
    thread = threading.Thread(target=dist.send, args=(tensor, right))
    thread.start()
    dist.recv(arrived, src=left)
    thread.join()
""")),
        ("02.4", "has a plan for up to 4 ranks", "more-ranks",
         _PLANNED),
        ("02.4", "goes by the plan for 4 ranks if there are more", "not-everywhere",
         changed(_PLANNED, ("plans[w]", "plans.get(w, plans[4])"))),
        ("02.4", "sends in 3 rounds at most", "more-ranks",
         changed(
             _BROADCAST,
             ("while distance < world_size:", "for distance in (1, 2, 4):"),
             ("        distance *= 2\n", ""),
             ("return got", "if place >= 8:\n        dist.recv(got, src=src)\n    return got"),
         )),
        ("02.4", "receives into float32", "died",
         changed(_BROADCAST, ("tensor.clone()", "torch.empty(tensor.shape)"),
                 ("    while", "    if rank == src:\n        got = tensor.clone()\n    while"))),
        ("02.4", "passes on what it has not waited for", "other-root",
         changed(_BROADCAST, ("dist.recv(", "handle = dist.irecv("),
                 ("return got", "if place:\n        handle.wait()\n    return got"))),
        ("02.4", "receives from anyone", None,
         _FROM_ANYONE),
        ("02.4", "sends from threads", None,
         "from concurrent.futures import ThreadPoolExecutor\n"
         + changed(_BROADCAST, ("dist.send(got, ", "ThreadPoolExecutor().submit(dist.send, got, "),
                   ("+ distance) % world_size)", "+ distance) % world_size).result()"))),
    ]
]
# fmt: on
