"""
A test of the scale of the runtime's clocks in a kernel with ranks.
"""

from kernels import running_kernel

from ddp_lessons.ranks.system import clocks


def test_scale_reaches_the_kernel_the_supervisor_and_the_ranks():
    """
    The scale is the same in the kernel, the supervisor and the ranks: if only one process stretched
    its time limits, another would give up first.
    """
    with running_kernel(**{clocks.SCALE_VARIABLE: "2.5"}) as kernel:
        start = "from ddp_lessons import start_ranks\nranks = start_ranks(2, device='cpu')"
        assert kernel.run(start).status == "ok"
        table = "from ddp_lessons.ranks.system import clocks\nprint(clocks.SCALE, clocks.STORE_S)"
        assert kernel.run(table).text == "2.5 150.0\n"
        assert kernel.run(f"%%px\n{table}").text == "[0] 2.5 150.0\n[1] 2.5 150.0\n"
        supervisor = "__import__('psutil').Process(ranks.supervisor.supervisor_pid)"
        assert kernel.value(f"{supervisor}.environ()['{clocks.SCALE_VARIABLE}']") == "2.5"
