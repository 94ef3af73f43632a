"""
Sources from which the answers of exercise 11 are made.
"""

from bank import changing

SPLIT = """\
def union(pairs):
    found = []
    for start, end in sorted(pairs):
        if found and start <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    return found

def minus(pairs, taken):
    found = union(pairs)
    for s, e in union(taken):
        parts = [[a, min(b, s)] for a, b in found] + [[max(a, e), b] for a, b in found]
        found = [[a, b] for a, b in parts if a < b]
    return found

def total(pairs):
    return sum(end - start for start, end in union(pairs))

def of(track, kind):
    return [span[1:] for span in track if span[0] == kind]

def split_step(tracks):
    calls = [sorted(of(track, "communication")) for track in tracks]
    last = [max(call[0] for call in met) for met in zip(*calls)]
    rows = []
    for track, own in zip(tracks, calls):
        work = of(track, "compute")
        after = [(max(s, l), e) for (s, e), l in zip(own, last) if max(s, l) < e]
        before = [(s, min(e, l)) for (s, e), l in zip(own, last) if s < min(e, l)]
        compute = total(work)
        talk = total(minus(after, work))
        wait = total(minus(minus(before, after), work))
        hidden = total(own) - total(minus(own, work))
        rows.append((compute, talk, wait, hidden))
    return rows
"""

STRAGGLER = """\
import torch
import torch.distributed as dist
from statistics import mean, median

def find_straggler(steps):
    number = median(call - start for start, call, end in steps[1:])
    own = torch.tensor([number], dtype=torch.float64)
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, own)
    times = [one.item() for one in everyone]
    if len(times) == 1:
        return None
    longest = max(range(len(times)), key=times.__getitem__)
    others = [time for rank, time in enumerate(times) if rank != longest]
    return longest if times[longest] > 1.25 * max(others) else None
"""

PREDICT = """\
def predict_step(w, forward_s, backward_s, sizes, optimizer_s, latency_s, bandwidth):
    def ring_s(size):
        return 2 * (w - 1) * latency_s + 2 * (w - 1) / w * size / bandwidth

    now = free = 0.0
    for part_s, size in zip(backward_s, sizes):
        now += part_s
        begin = max(now, free)
        free = begin + ring_s(size)
    return forward_s + max(now, free) + optimizer_s
"""

REPORT = """\
import torch
import torch.distributed as dist
from statistics import mean, median

def report_speedup(before_s, before_samples, own_s, own_samples, num_warm_up):
    world_size = dist.get_world_size()
    everyone = [None] * world_size
    dist.all_gather_object(everyone, (own_s, own_samples))
    steps = [max(times) for times in zip(*(own for own, _ in everyone))]
    samples = sum(num for _, num in everyone)
    one, many = before_s[num_warm_up:], steps[num_warm_up:]
    speedup = (samples / median(many)) / (before_samples / median(one))
    efficiency = speedup / world_size
    fastest, slowest = min(many), max(many)
    return {
        "speedup": speedup,
        "efficiency": efficiency,
        "fastest_s": fastest,
        "slowest_s": slowest,
    }
"""

altered = changing({"11.1": SPLIT, "11.2": STRAGGLER, "11.3": PREDICT, "11.4": REPORT})
