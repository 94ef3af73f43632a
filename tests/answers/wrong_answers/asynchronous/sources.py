"""
Sources from which the answers of exercise 14 are made.
"""

from bank import changing

IMPORTS = """\
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss


"""

SERVE = """\
def serve(weights, num_steps, bound, rate):
    num_workers = dist.get_world_size() - 1
    made = {worker: 0 for worker in range(1, num_workers + 1)}
    given = dict(made)
    waiting, log = set(), []
    for version in range(num_workers * num_steps):
        gradient = torch.zeros_like(weights)
        worker = dist.recv(gradient)
        weights.sub_(gradient, alpha=rate)
        log.append((worker, version - given[worker]))
        made[worker] += 1
        waiting.add(worker)
        slowest = min(made.values())
        ready = [one for one in waiting if made[one] - slowest <= bound]
        for one in ready:
            dist.send(weights, one)
            given[one] = version + 1
            waiting.remove(one)
    return log
"""

LOCAL = """\
def local_sgd(model, optimizer, batches, every):
    ps = [p for p in model.parameters() if p.requires_grad]
    for number, (x, y) in enumerate(batches, start=1):
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if number % every == 0 or number == len(batches):
            flat = torch.nn.utils.parameters_to_vector(ps).detach()
            dist.all_reduce(flat)
            mean = flat / dist.get_world_size()
            start = 0
            for p in ps:
                p.data.copy_(mean[start : start + p.numel()].view_as(p))
                start += p.numel()
"""

OUTER = """\
def outer_step(model, outer):
    common = outer.param_groups[0]["params"]
    ps = [p for p in model.parameters() if p.requires_grad]
    apart = [(whole - p).detach().flatten() for whole, p in zip(common, ps)]
    flat = torch.cat(apart)
    dist.all_reduce(flat)
    mean = flat / dist.get_world_size()
    start = 0
    for whole in common:
        whole.grad = mean[start : start + whole.numel()].view_as(whole).clone()
        start += whole.numel()
    outer.step()
    for whole, p in zip(common, ps):
        p.data.copy_(whole.data)
"""

SHARE = """\
def share_work(store, sizes, do):
    rank, results = dist.get_rank(), []
    for distance in range(len(sizes)):
        owner = (rank + distance) % len(sizes)
        while True:
            number = store.add(str(owner), 1) - 1
            if number >= sizes[owner]:
                break
            results.append(do(owner, number))
    return results
"""

SOURCES = {"14.1": SERVE, "14.2": LOCAL, "14.3": OUTER, "14.4": SHARE}

altered = changing({number: IMPORTS + source for number, source in SOURCES.items()})
