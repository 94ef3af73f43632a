"""
Answers to task 08.4.
"""

from bank import Answer

from wrong_answers.checkpoint.sources import RESHARD, altered, reshard

SIZE = "    size = -(-num_rows // dist.get_world_size())\n    begin = dist.get_rank() * size\n"

ANSWERS = [
    Answer(
        "08.4",
        "reads everything, and cuts",
        "reads",
        """
import torch, torch.distributed as dist
def reshard(own, num_rows, table, read):
    table = sorted(table, key=lambda piece: piece[1:])
    whole = torch.cat([read(name, 0, stop - start) for name, start, stop in table])
    begin = dist.get_rank() * -(-num_rows // dist.get_world_size())
    own.copy_(whole[begin : begin + len(own)])
""",
    ),
    reshard(
        "counts a file's rows from the whole", "raised", ("low - start, high - start", "low, high")
    ),
    Answer(
        "08.4",
        "takes the file of its own number",
        "missing-rows",
        """
import torch.distributed as dist
def reshard(own, num_rows, table, read):
    name, start, stop = table[dist.get_rank()]
    own[: stop - start] = read(name, 0, stop - start)
""",
    ),
    Answer(
        "08.4",
        "makes a new tensor",
        "empty",
        RESHARD.replace("    size =", "    own = own.clone()\n    size ="),
    ),
    Answer(
        "08.4",
        "takes the files as they come",
        "order",
        """
import torch, torch.distributed as dist
def reshard(own, num_rows, table, read):
    begin = dist.get_rank() * -(-num_rows // dist.get_world_size())
    end, parts = begin + len(own), []
    for name, start, stop in table:
        low, high = max(start, begin), min(stop, end)
        if low < high:
            parts.append(read(name, low - start, high - start))
    if parts:
        own.copy_(torch.cat(parts))
""",
    ),
    Answer(
        "08.4",
        "rank 0 reads, and sends to all",
        "forbidden",
        """
import torch, torch.distributed as dist
def reshard(own, num_rows, table, read):
    whole = torch.zeros(num_rows, own.shape[1])
    if dist.get_rank() == 0:
        for name, start, stop in table:
            whole[start:stop] = read(name, 0, stop - start)
    dist.broadcast(whole, src=0)
    begin = dist.get_rank() * -(-num_rows // dist.get_world_size())
    own.copy_(whole[begin : begin + len(own)])
""",
    ),
    Answer(
        "08.4",
        "deals rows out in turn",
        "values",
        """
import torch.distributed as dist
def reshard(own, num_rows, table, read):
    for place in range(len(own)):
        row = dist.get_rank() + place * dist.get_world_size()
        for name, start, stop in table:
            if start <= row < stop:
                own[place] = read(name, row - start, row - start + 1)[0]
""",
    ),
    Answer(
        "08.4",
        "unusual: row by row, sets of rows, from the last to the first",
        None,
        """
import torch, torch.distributed as dist
def reshard(own, num_rows, table, read):
    parts = torch.arange(num_rows).split(-(-num_rows // dist.get_world_size()))
    mine = parts[dist.get_rank()].tolist() if dist.get_rank() < len(parts) else []
    for place, row in reversed(list(enumerate(mine))):
        for name, start, stop in table:
            if row in range(start, stop):
                own[place] = read(name, row - start, row - start + 1)[0]
""",
    ),
    altered(
        "08.4",
        "shares out evenly",
        "other-rows",
        (SIZE, "    begin = num_rows * dist.get_rank() // dist.get_world_size()\n"),
    ),
    altered(
        "08.4",
        "unusual: ends by the number of rows",
        None,
        ("begin + len(own)", "min(begin + size, num_rows)"),
    ),
    altered(
        "08.4",
        "remembers what it has read by its name",
        "kept",
        ("def reshard", "seen = {}\ndef reshard"),
        (
            "            own[low - begin : high - begin] = read(name, low - start, high - start)\n",
            "            piece = name, low - start, high - start\n"
            "            seen[piece] = seen[piece] if piece in seen else read(*piece)\n"
            "            own[low - begin : high - begin] = seen[piece]\n",
        ),
    ),
    altered("08.4", "adds to what own held", "added", ("] = read", "] += read")),
    altered(
        "08.4",
        "sorts the table itself",
        "input-changed",
        ("    for name", "    table.sort(key=lambda piece: piece[1])\n    for name"),
    ),
    altered(
        "08.4",
        "unusual: row by row",
        None,
        (
            "            own[low - begin : high - begin] = read(name, low - start, high - start)\n",
            "            for row in range(low, high):\n"
            "                own[row - begin].copy_(read(name, row - start, row + 1 - start)[0])\n",
        ),
    ),
]
