"""
Answers to task 13.3.
"""

from bank import Answer

from wrong_answers.sharded_optimizer.sources import IMPORTS, altered

ANSWERS = [
    altered(
        "13.3",
        "saves under each rank's own numbers",
        "other-parameter",
        ('{owned[i]: one for i, one in state["state"].items()}', 'state["state"]'),
        ("known[owned[i]]", "known.get(owned[i], known[0])"),
    ),
    altered(
        "13.3",
        "reads as many files as ranks run",
        "missing",
        ("range(num)", "range(dist.get_world_size())"),
        ("known[owned[i]]", "known.get(owned[i], {})"),
    ),
    altered(
        "13.3",
        "begins the count of steps anew",
        "step-count",
        (
            "            optimizer.state[p] = known[owned[i]]\n",
            "            optimizer.state[p] = known[owned[i]]\n"
            "            if 'step' in optimizer.state[p]: optimizer.state[p]['step'].zero_()\n",
        ),
    ),
    altered(
        "13.3",
        "keeps the settings that it was made with",
        "settings",
        ("        optimizer.param_groups[0].update(group)\n", ""),
    ),
    altered(
        "13.3",
        "saves in float32",
        "state",
        (
            'one for i, one in state["state"].items()',
            '{k: v.float() for k, v in one.items()} for i, one in state["state"].items()',
        ),
    ),
    altered(
        "13.3",
        "goes by the times of files",
        "stale",
        (
            "        for rank in range(num):\n",
            "        for path in sorted(folder.iterdir(), key=lambda p: p.stat().st_mtime_ns):\n",
        ),
        ('torch.load(folder / f"{rank}.pt")[0]', "torch.load(path)[0]"),
    ),
    altered(
        "13.3",
        "keeps what belongs to others",
        "too-much",
        (
            "        optimizer.param_groups[0].update(group)\n",
            "        optimizer.param_groups[0].update(group)\n"
            "        for number in known.keys() - set(owned):\n"
            "            optimizer.state[number] = known[number]\n",
        ),
    ),
    altered(
        "13.3",
        "takes the state away",
        "save-changes",
        ("        whole = (part", "        optimizer.state.clear()\n        whole = (part"),
    ),
    altered(
        "13.3",
        "has a file for each parameter that runs out",
        "raised",
        (
            '        _, group, num = torch.load(folder / "0.pt")\n',
            '        _, group, num = torch.load(folder / f"{dist.get_rank() + 2}.pt")\n',
        ),
    ),
    altered(
        "13.3",
        "lets rank 0 wait for all",
        "deadlock",
        (
            "        whole = (part",
            "        if dist.get_rank() == 0: dist.barrier()\n        whole = (part",
        ),
    ),
    altered(
        "13.3",
        "loads into the parameters, too",
        "left-changed",
        (
            "            optimizer.state[p] = known[owned[i]]\n",
            "            optimizer.state[p] = known[owned[i]]\n            p.data.zero_()\n",
        ),
    ),
    Answer(
        "13.3",
        "gathers on rank 0, and all read",
        None,
        IMPORTS
        + """\
class OwnedState:
    def save(self, folder, optimizer, owned):
        state = optimizer.state_dict()
        group = {k: v for k, v in state["param_groups"][0].items() if k != "params"}
        part = {owned[i]: one for i, one in state["state"].items()}
        parts = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(part, parts)
        if dist.get_rank() == 0:
            whole = {n: s for one in parts for n, s in one.items()}
            torch.save((whole, group), folder / "state.pt")
        dist.barrier()

    def load(self, folder, optimizer, owned):
        whole, group = torch.load(folder / "state.pt")
        state = optimizer.state_dict()
        state["state"] = {i: whole[n] for i, n in enumerate(owned)}
        state["param_groups"][0].update(group)
        optimizer.load_state_dict(state)
""",
    ),
    Answer(
        "13.3",
        "has a file for each parameter",
        None,
        IMPORTS
        + """\
class OwnedState:
    def save(self, folder, optimizer, owned):
        group = optimizer.param_groups[0]
        settings = {key: group[key] for key in group if key != "params"}
        for number, p in zip(owned, group["params"]):
            torch.save((optimizer.state[p], settings), folder / str(number))

    def load(self, folder, optimizer, owned):
        group = optimizer.param_groups[0]
        for number, p in zip(owned, group["params"]):
            optimizer.state[p], settings = torch.load(folder / str(number), weights_only=False)
            group.update(settings)
""",
    ),
    Answer(
        "13.3",
        "writes in the background",
        "left-running",
        """\
import threading
import torch
import torch.distributed as dist


class OwnedState:

    def save(self, folder, optimizer, owned):
        saved = optimizer.state_dict()
        part = {
            "world": dist.get_world_size(),
            "state": {number: saved["state"][index] for index, number in enumerate(owned)},
            "settings": {k: v for k, v in saved["param_groups"][0].items() if k != "params"},
        }
        path = folder / f"rank{dist.get_rank()}.pt"
        threading.Thread(target=torch.save, args=(part, path)).start()

    def load(self, folder, optimizer, owned):
        first = torch.load(folder / "rank0.pt")
        state = {}
        for rank in range(first["world"]):
            state.update(torch.load(folder / f"rank{rank}.pt")["state"])
        optimizer.load_state_dict({
            "state": {index: state[number] for index, number in enumerate(owned)},
            "param_groups": [{**first["settings"], "params": list(range(len(owned)))}],
        })
""",
    ),
]
