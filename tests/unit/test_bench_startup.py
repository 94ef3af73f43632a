"""
The benchmark's arithmetic, its table, and its description of a machine. No test here measures.
"""

import getpass
import importlib
import io
import json
import platform
import socket
from pathlib import Path

import pytest
from paths import BENCHMARKS

XEON = {"cpu": "Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz", "num_cores": 2, "memory_mib": 24152}


@pytest.fixture
def bench(monkeypatch):
    """
    Return a function that imports a module of the benchmark, as running its script does.
    """
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.fixture
def figures(bench):
    """
    Return the module `figures`.
    """
    return bench("figures")


def test_figure_value_is_the_median_and_not_the_mean(figures):
    """
    A figure's value is the median, so that one slow round does not decide.
    """
    figure = figures.Figure("start", "s", (2.0, 9.0, 1.0), "other", (4.0, 4.0, 40.0))
    assert (figure.value, figure.reference, figure.ratio) == (2.0, 4.0, 0.5)


def test_figure_ratio_of_pairs_is_within_rounds(figures):
    """
    The ratio of paired samples is formed within each round. Here two of three rounds were slow, one
    for each side, so the medians come from different rounds.
    """
    samples, reference_samples = (1.0, 10.0, 30.0), (2.0, 40.0, 10.0)
    figure = figures.Figure("step", "ms", samples, "other", reference_samples, is_paired=True)
    assert figure.ratio == 0.5
    assert figures.Figure("step", "ms", samples, "other", reference_samples).ratio == 1.0


@pytest.mark.parametrize(
    ("limit", "limit_on", "verdict"),
    [
        (0.5, "ratio", "pass"),
        (0.49, "ratio", "FAIL"),
        (2.0, "value", "pass"),
        (1.99, "value", "FAIL"),
        (None, "value", ""),
    ],
)
def test_figure_verdict_holds_the_limit(figures, limit, limit_on, verdict):
    """
    A value that equals its limit passes, and one just above it fails.
    """
    figure = figures.Figure("start", "s", (2.0,), "other", (4.0,), limit, limit_on)
    assert figure.verdict == verdict
    assert bool(figures.missed([figure])) == (verdict == "FAIL")


def test_figure_without_reference_fails_a_limit_on_its_ratio(figures):
    """
    A figure whose reference was not measured fails a limit on its ratio.
    """
    figure = figures.Figure("start", "s", (2.0,), "other", (), 0.5, figures.RATIO)
    assert (figure.reference, figure.ratio, figure.verdict) == (None, None, "FAIL")


def test_make_figures_leaves_out_what_was_not_measured(figures):
    """
    Figures without samples are left out, so `--only`, and systems that do not report a process's
    memory, give a part of the table.
    """
    plans = [figures.Plan("a", "s", "a_s"), figures.Plan("b", "s", "b_s", "c", "c_s")]
    made = figures.make_figures(plans, {"b_s": [1.0, 3.0], "c_s": [4.0, 4.0]})
    assert [(figure.name, figure.value, figure.ratio) for figure in made] == [("b", 2.0, 0.5)]


def test_show_figures_prints_one_line_for_each(figures):
    """
    Each figure is one line, because a table that wraps or cuts its numbers cannot be read, also in
    a pipe.
    """
    shown = io.StringIO()
    figures.show_figures(
        [
            figures.Figure("start", "s", (2.0,), "torchrun", (4.0,), 0.5, figures.RATIO),
            figures.Figure("a cell", "ms", (123.4,), limit=15.0),
            figures.Figure("memory", "MiB", (64.5,)),
        ],
        shown,
    )
    _, start, cell, memory = shown.getvalue().splitlines()
    expected = "start 2.00 s 4.00 s 0.50 ratio 0.50 pass torchrun"
    assert start.split() == expected.split()
    assert cell.split() == ["a", "cell", "123", "ms", "15", "ms", "FAIL"]
    assert memory.split() == ["memory", "64.50", "MiB"]


def test_plans_of_startup_hold_the_course_to_its_figures(bench):
    """
    The limits are promises, so a change of one must be repeated here. All names differ.
    """
    startup = bench("startup")
    limits = {plan.name: (plan.limit_on, plan.limit) for plan in startup.PLANS if plan.limit}
    assert limits == {
        "first all-reduce, 4 ranks": ("ratio", 0.4),
        "%%px cell: x = 1": ("value", 10.0),
        "memory of an idle rank": ("value", 80.0),
        "memory of a rank that has trained": ("value", 120.0),
        "memory of a learner who has trained": ("value", 750.0),
        "first DDP and optimizer: CPU of a rank": ("value", 0.3),
        "a rank raises: prompt": ("value", 2.0),
        "a rank is killed: prompt": ("value", 2.0),
        "deadlock: prompt": ("value", 2.0),
        "deadlock, Stop: prompt": ("value", 2.0),
    }
    keys = [(plan.name, plan.reference_name) for plan in startup.PLANS + startup.SIZE_PLANS]
    assert len(set(keys)) == len(keys)


def test_plans_of_sizes_hold_the_course_to_its_figures(bench):
    """
    The limits for 4 ranks grow only a little up to 32 ranks, because a node or a class has as many.
    """
    startup = bench("startup")
    limits = {plan.sample: plan.limit for plan in startup.SIZE_PLANS}
    assert [limits.pop(f"start_{n}_s") for n in (4, 8, 16, 32)] == [1.1, 1.2, 1.5, 2.2]
    trips = [limits.pop(f"round_trip_{n}_ms") for n in (4, 8, 16, 32)]
    assert trips == [10.0, 12.0, 18.0, 32.0]
    faults = ("raise", "die", "deadlock", "stop")
    assert limits == {f"{fault}_{n}_s": 2.0 for fault in faults for n in (4, 8, 16, 32)}


def test_results_file_is_not_replaced_by_a_short_or_partial_run(bench):
    """
    A run with few repeats or few figures does not replace the stored results.
    """
    startup = bench("startup")

    def path(*argv):
        return startup.results_file(startup.parse_arguments(argv), XEON)

    assert path() == BENCHMARKS / "results/startup-intel-xeon-platinum-8480c-2-cores-24-gib.json"
    assert path("--repeats", "9") == path()
    assert path("--repeats", "4") is None
    assert path("--only", "memory") is None
    assert path("--repeats", "1", "--json", "somewhere.json") == Path("somewhere.json")


def test_document_keeps_raw_samples_and_a_command_without_paths(bench, figures):
    """
    A result holds the raw samples and the command, so that a reader can judge its spread and
    measure again. It holds no path.
    """
    startup = bench("startup")
    arguments = startup.parse_arguments(["--only", "start", "--json", "/home/someone/x.json"])
    figure = figures.Figure("start", "s", (2.0, 3.0), "torchrun", (4.0,), 0.5, figures.RATIO)
    document = json.loads(json.dumps(startup.as_document(arguments, XEON, [figure])))
    assert document["command"] == "python benchmarks/startup.py --repeats 5 --only start"
    assert document["figures"][0]["samples"] == [2.0, 3.0]
    assert document["figures"][0]["verdict"] == "FAIL"
    assert "someone" not in json.dumps(document)


@pytest.mark.parametrize("argv", [["--repeats", "0"], ["--only", "nothing"]])
def test_parse_arguments_refuses_what_it_does_not_know(bench, argv, capsys):
    """
    Unknown arguments are refused, so that a typing error starts no measurement of minutes.
    """
    with pytest.raises(SystemExit):
        bench("startup").parse_arguments(argv)
    assert argv[0] in capsys.readouterr().err


def test_describe_machine_does_not_say_whose_it_is(bench, monkeypatch):
    """
    Results are committed, so they name no host, user or path, and no kernel suffix from its
    builder.
    """
    for module, name in ((platform, "node"), (socket, "gethostname"), (getpass, "getuser")):
        monkeypatch.setattr(module, name, lambda: "sesame")
    monkeypatch.setattr(platform, "release", lambda: "6.1.0-21-sesame")
    machine = bench("machine").describe_machine()
    assert sorted(machine) == [
        "cpu", "ipykernel", "ipyparallel", "kernel", "load", "memory_mib", "num_cores", "python",
        "pyzmq", "system", "torch",
    ]  # fmt: skip
    text = json.dumps(machine)
    assert "sesame" not in text
    assert str(Path.home()) not in text
    assert machine["kernel"] == "6.1.0"


def test_cpu_model_reads_what_linux_lists(bench, tmp_path):
    """
    The CPU's name is read from /proc/cpuinfo, because it distinguishes two machines.
    """
    listing = tmp_path / "cpuinfo"
    listing.write_text("processor\t: 0\nmodel\t\t: 207\nmodel name\t: AMD EPYC  9654\n")
    assert bench("machine").cpu_model(listing) == "AMD EPYC 9654"


def test_machine_slug_is_a_plain_file_name(bench):
    """
    The machine's name is a valid file name on every system, without trademark signs.
    """
    slug = bench("machine").machine_slug
    assert slug(XEON) == "intel-xeon-platinum-8480c-2-cores-24-gib"
    apple = {"cpu": "Apple M3 Pro", "num_cores": 12, "memory_mib": 36864}
    assert slug(apple) == "apple-m3-pro-12-cores-36-gib"
