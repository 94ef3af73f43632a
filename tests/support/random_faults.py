"""
Random faults: the kind, the number of ranks, the culprit and the times are drawn from a seed.

    make fault ARGS=17                        plays the fault of seed 17
    make fault ARGS="0 100"                   plays those of seeds 0 to 99
    make fault ARGS="--kind missing_call 5"   plays five faults of a kind
"""

import itertools
import random
import sys
import time

from fault_player import PROMPT_S, Fault, Player
from faults import KINDS
from kernels import running_kernel

WORLD_SIZES = range(2, 9)
_PAUSE_S = 0.6
_FIRST_STOP_S = (0.3, 1.5)


def plan(seed):
    """
    Return the fault of a seed.
    """
    draw = random.Random(seed)
    # Each run of `len(KINDS)` seeds plays every kind once, in an order of its own.
    deck, position = divmod(seed, len(KINDS))
    kind = random.Random(-deck - 1).sample(sorted(KINDS), len(KINDS))[position]
    world_size = draw.choice(WORLD_SIZES)
    culprit, other = draw.sample(range(world_size), 2)
    has_model, is_under_load = draw.random() < 0.5, draw.random() < 0.2
    first_s = draw.uniform(*_FIRST_STOP_S)
    presses = [first_s + draw.uniform(0, 0.6) for _ in range(draw.choice([0, 0, 1, 2]))]
    return Fault(
        seed, kind, world_size, culprit, other,
        pause_s=0.0 if KINDS[kind].needs_stop else draw.choice([0.0, draw.uniform(0, _PAUSE_S)]),
        stop_presses_s=(first_s, *sorted(presses)) if KINDS[kind].needs_stop else (),
        kill_s=draw.uniform(0.2, 1.5),
        has_model=has_model or KINDS[kind].needs_model,
        is_under_load=is_under_load,
    )  # fmt: skip


def plan_of_kind(kind, number):
    """
    Return `number` faults of one kind: those of the first seeds that give it.
    """
    drawn = (fault for fault in map(plan, itertools.count()) if fault.kind == kind)
    return list(itertools.islice(drawn, number))


def play_all(faults):
    """
    Play faults, and print the result of each. A fault that fails ends its kernel, and a new kernel
    plays the rest.

    Returns:
        int: The number of faults that failed.
    """
    num_failed = 0
    for world_size, group in itertools.groupby(
        sorted(faults, key=lambda fault: fault.world_size), lambda fault: fault.world_size
    ):
        left = list(group)
        while left:
            with running_kernel() as kernel:
                num_failed += _play_until_one_fails(Player(kernel, world_size), left)
    return num_failed


def _play_until_one_fails(player, left):
    while left:
        fault, began = left.pop(0), time.monotonic()
        name = f"seed {fault.seed}: {fault.kind} on {fault.world_size}"
        try:
            took_s = player.play(fault, limit_s=PROMPT_S)
        except (AssertionError, TimeoutError) as error:
            print(f"FAILED {name}\n{fault}\n{error}")
            return 1
        print(f"{name}, prompt {took_s:.2f} s, in all {time.monotonic() - began:.1f} s")
    return 0


def main(arguments):
    """
    Play the faults that the command line names, and return the exit status.
    """
    if arguments[0] == "--kind":
        faults = plan_of_kind(arguments[1], int(arguments[2]))
    else:
        first = int(arguments[0])
        last = int(arguments[1]) if len(arguments) > 1 else first + 1
        faults = [plan(seed) for seed in range(first, last)]
    num_failed = play_all(faults)
    print(f"{len(faults) - num_failed} of {len(faults)} faults came out right")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
