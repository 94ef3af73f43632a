"""
The scale of the runtime's clocks, as a kernel with ranks has it.
"""

from kernels import running_kernel

from ddp_lessons.ranks.system import clocks


def test_scale_reaches_the_kernel_the_supervisor_and_the_ranks():
    """
    A limit that is stretched in one process only is overtaken by that of another one.
    """
    with running_kernel(**{clocks.SCALE_VARIABLE: "2.5"}) as kernel:
        start = "from ddp_lessons import start_ranks\nranks = start_ranks(2, device='cpu')"
        assert kernel.run(start).status == "ok"
        table = "from ddp_lessons.ranks.system import clocks\nprint(clocks.SCALE, clocks.STORE_S)"
        assert kernel.run(table).text == "2.5 150.0\n"
        assert kernel.run(f"%%px\n{table}").text == "[0] 2.5 150.0\n[1] 2.5 150.0\n"
        supervisor = "__import__('psutil').Process(ranks.supervisor.supervisor_pid)"
        assert kernel.value(f"{supervisor}.environ()['{clocks.SCALE_VARIABLE}']") == "2.5"
