"""
The check that ranks are usable after a fault, for tests that play their own faults.
"""


def check_usable(kernel, lost):
    """
    Assert that the next collective works after a fault, and that all but the lost ranks kept their
    variables.
    """
    alive = kernel.run(
        "%%px\nimport torch, torch.distributed as dist\n"
        "from ddp_lessons.process_group import rank_device\n"
        "x = torch.ones(3, device=rank_device())\ndist.all_reduce(x)\n"
        "print(x.tolist(), globals().get('keep', 'gone'))"
    )
    assert alive.status == "ok", alive
    total = float(kernel.world_size)
    kept = ["gone" if rank in lost else 100 + rank for rank in range(kernel.world_size)]
    assert alive.text.splitlines() == [
        f"[{rank}] {[total] * 3} {kept[rank]}" for rank in range(kernel.world_size)
    ]
