"""
What lesson 17 runs on real hosts, under torchrun: `-m ddp_lessons.many_machines.on_hosts`.

It counts the bytes that leave the host by its cable, times DDP on one host and on all, and then
makes small all-reduces until one of them fails. Rank 0 prints.
"""

import os
import re
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from .averages import hierarchical, hierarchical_hook
from .doors import listening
from .hosts import Hosts, even_layout, split_hosts
from .roads import Road

TIMEOUT_S = 6
NUM_NUMBERS = 250_000
NUM_STEPS = 3
GAP_S = 1.0
"""
An all-reduce that took longer has waited for a cable.
"""


def cable_bytes(interface: str) -> int:
    """
    Return the bytes that have left this host by an interface since it is up.

    Lesson: 17_many_machines; Linux only.
    """
    return int(Path(f"/sys/class/net/{interface}/statistics/tx_bytes").read_text())


def cable_share(average: Callable[[torch.Tensor], object], interface: str) -> float:
    """
    Return how many times its gradient a host sends out by its cable in one averaging.

    Collective: every rank must call it.

    Args:
        average: Function of a gradient (n,), which averages it.
        interface: Name of the cable's interface.
    """
    gradient = torch.ones(NUM_NUMBERS)
    dist.barrier()
    before = cable_bytes(interface)
    average(gradient)
    dist.barrier()
    return (cable_bytes(interface) - before) / gradient.nbytes


def step_s(
    hook: Callable[..., torch.futures.Future[torch.Tensor]] | None = None,
    state: object = None,
    group: dist.ProcessGroup | None = None,
) -> float:
    """
    Return the median of some steps of DDP, in seconds.

    Collective: every rank of the group must call it.

    Args:
        hook: A communication hook; None: DDP's own way.
        state: The hook's state.
        group: The process group, or None for the default group.
    """
    layers = [torch.nn.Linear(250, 250, bias=False) for _ in range(4)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), process_group=group)
    if hook is not None:
        model.register_comm_hook(state, hook)
    images, times_s = torch.ones(16, 250), []
    for _ in range(1 + NUM_STEPS):
        began_s = time.perf_counter()
        model(images).sum().backward()
        times_s.append(time.perf_counter() - began_s)
    return median(times_s[1:])


def rounds(most_s: float, say: Callable[[str], object] = print) -> int | None:
    """
    Make all-reduces until one fails, and say what became of the long ones.

    Collective: every rank must call it.

    Args:
        most_s: After how many seconds it is enough.
        say: Function of a line.

    Returns:
        int or None: Whole seconds that the failed one has waited; None if none failed.
    """
    began_s = time.monotonic()
    while True:
        # The first number says whether to go on, so that all ranks stop together.
        row = torch.tensor([float(time.monotonic() - began_s > most_s), 1.0])
        called_s = time.monotonic()
        try:
            dist.all_reduce(row)
        except RuntimeError as error:
            # To the nearest: who gives up first takes the others along, a moment early.
            waited_s = round(time.monotonic() - called_s)
            say(f"an all-reduce failed after {waited_s} s: {_first_words(error)}")
            return waited_s
        if time.monotonic() - called_s > GAP_S:
            say(f"an all-reduce took longer, and came out: sum {row[1].item():.0f}")
        if row[0]:
            return None


def _first_words(error):
    # Without what differs from run to run: the place in Gloo's source, addresses, milliseconds.
    words = re.sub(r"\[[^]]*\]", "", str(error))
    return re.split(r" waiting| for|[.:]", words.strip())[0].strip()


def doors() -> list[str]:
    """
    Return who can reach this process, in words: its own address is told by the host's name.

    Lesson: 17_many_machines.
    """
    name = socket.gethostname()
    own = {socket.gethostbyname(name): f"the network of {name}"}
    return sorted({own.get(who, who) for who, _ in listening()})


def report(interface: str, hosts: Hosts, say: Callable[[str], object] = print) -> None:
    """
    Say what crosses, and how long DDP takes.

    Collective: every rank must call it.

    Args:
        interface: Name of the cable's interface.
        hosts: Hosts.
        say: Function of a line.
    """
    say(f"rank 0 can be reached from: {', '.join(doors())}")
    road = Road(hosts)
    flat = cable_share(dist.all_reduce, interface)
    less = cable_share(lambda gradient: hierarchical(gradient, road), interface)
    # Headers are 5 % more on both ways, so they leave this as it is.
    say(f"round a flat ring a host sends {flat / less:.1f} times as much as hierarchically")
    one_s, all_s = step_s(group=hosts.local), step_s()
    gain = len(hosts.layout) * one_s / all_s
    say(f"{len(hosts.layout)} hosts see fewer samples a second than one: {gain < 1}")
    for name, hook, state in (
        ("half precision", fp16_compress_hook, None),
        ("hierarchical", hierarchical_hook, road),
    ):
        say(f"{name} is faster than plain DDP: {step_s(hook, state) < all_s}")


def main() -> int | None:
    """
    Join, report, and go on until a host is gone.

    Returns:
        int or None: As `rounds` returns it.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    per_host = int(os.environ["LOCAL_WORLD_SIZE"])
    hosts = split_hosts(even_layout(dist.get_world_size() // per_host, per_host))

    def say(line):
        if dist.get_rank() == 0:
            print(line, flush=True)

    report(os.environ.get("CABLE", "eth0"), hosts, say)
    say("rounds begin")
    waited_s = rounds(float(os.environ.get("ROUNDS_S", "60")), say)
    if waited_s is None:  # of a group that has failed nobody takes leave
        dist.destroy_process_group()
    return waited_s


if __name__ == "__main__":
    main()
