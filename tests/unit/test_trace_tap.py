"""
The trace's tap in one process: two ranks are two threads, each with its own group.
"""

import _thread
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._C._distributed_c10d import Work
from torch.distributed.utils import _sync_module_states
from torch.nn.parallel import DistributedDataParallel
from waiting import HANGS_AFTER_S, wait_until

from ddp_lessons.trace import clock_offsets_ns, collectives, match, overlaps_backward, trace
from ddp_lessons.trace.awaiting import _MAX_FUTURES, Waits
from ddp_lessons.trace.tap import MAX_HELD_WORKS, TAP, Tap

TIMEOUT = timedelta(seconds=HANGS_AFTER_S)


@pytest.fixture
def one_rank():
    """
    Join a group of one rank, and leave it after the test.
    """
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _group(store, rank):
    group = dist.ProcessGroup(store, rank, 2)
    gloo = dist.ProcessGroupGloo(store, rank, 2, TIMEOUT)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    group._set_group_name("threads")
    return group


def test_tap_hears_a_call_from_a_thread_without_python(one_rank):
    # Autograd's thread for a GPU makes calls without a Python function on its stack.
    gathered, own = torch.zeros(2), torch.ones(2)
    arguments = (gathered, own, dist.group.WORLD.boxed())
    with trace() as events:
        _thread.start_new_thread(torch.ops.c10d._allgather_base_.default._op, arguments)
        wait_until(lambda: len(events), HANGS_AFTER_S, "the call of the thread")
        wait_until(lambda: events[0].end_ns, HANGS_AFTER_S, "its end")
    assert gathered.equal(own)


def test_tap_hears_messages_between_threads():
    """
    Messages between threads are recorded. The sender of a receive from any rank is known only after
    its arrival.
    """
    store, came = dist.HashStore(), []

    def rank_1():
        group = _group(store, 1)
        group.send([torch.ones(3)], 0, 5).wait()
        group.recv([torch.ones(2)], 0, 6).wait()

    def rank_0():
        group = _group(store, 0)
        work = group.recv_anysource([torch.zeros(3)], 5)
        work.wait()
        came.append(work._source_rank())
        group.send([torch.ones(2)], 1, 6).wait()

    with trace() as events:
        threads = [threading.Thread(target=rank) for rank in (rank_0, rank_1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert came == [1]
    told = sorted((e.rank, e.name, e.peer, e.tag, e.input_bytes, e.output_bytes) for e in events)
    assert told == [
        (0, "recv", 1, 5, 0, 12), (0, "send", 1, 6, 8, 0),
        (1, "recv", 0, 6, 0, 8), (1, "send", 0, 5, 12, 0),
    ]  # fmt: skip
    assert all(e.start_ns <= e.wait_start_ns <= e.wait_end_ns for e in events)
    traces = [[event for event in events if event.rank == rank] for rank in range(2)]
    assert len(match(traces)) == 2


@pytest.mark.usefixtures("one_rank")
def test_tap_hears_the_reducer_and_hooks_come_and_go():
    """
    The reducer's calls are recorded, and the learner's own hooks keep their order after the trace.
    """
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3)))
    model[0].bias.requires_grad_(False)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.001)
    called = []
    for number in range(3):
        model[2].weight.register_hook(lambda _, number=number: called.append(number))
    with trace(model) as events:
        for _ in range(2):
            ddp(torch.ones(2, 16)).sum().backward()
    assert called == [0, 1, 2] * 2
    assert len(model[2].weight._backward_hooks) == 3
    assert overlaps_backward(events)
    assert {e.backward for e in events if e.kind == "gradient"} == {0, 1}
    assert len([e for e in events if e.kind == "gradient"]) == 2 * 5
    assert "all_reduce" in collectives(events)
    assert all(e.end_ns for e in events)


@pytest.mark.usefixtures("one_rank")
def test_tap_keeps_few_handles_and_lets_go_of_them():
    """
    Few handles are kept, and they are dropped at the end, because a handle keeps its tensors, and
    on Gloo its sockets, alive.
    """
    handles = []
    with trace() as events:
        for _ in range(MAX_HELD_WORKS + 3):
            handles.append(dist.all_reduce(torch.ones(1), async_op=True))
        assert len(TAP._held) == MAX_HELD_WORKS
        dist.all_reduce(torch.ones(2))
        dist.all_gather([torch.zeros(0)], torch.ones(0))
        dist.all_to_all_single(torch.zeros(4), torch.ones(4))
        dist.monitored_barrier()
    assert not TAP._held
    for handle in handles:
        handle.wait()
    assert [e.output_bytes for e in events[-4:]] == [8, 0, 16, 0]
    assert events[-1].wait_index == events[-1].index + 1


@pytest.mark.usefixtures("one_rank")
def test_tap_hears_sparse_tensors():
    """
    The bytes of a sparse tensor are those of its indices and values.
    """
    with torch.sparse.check_sparse_tensor_invariants():  # torch 2.11 warns without it
        sparse = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (5,))
    with trace() as events:
        dist.all_reduce(sparse)
    assert events[0].input_bytes == 2 * 8 + 2 * 4
    table = torch.nn.Embedding(1000, 3, sparse=True)
    with trace(table) as events:
        table(torch.tensor([4, 7])).sum().backward()
    assert [e.output_bytes for e in events] == [2 * 8 + 2 * 3 * 4]
    assert clock_offsets_ns(machine="here") == [0]


def test_tap_gives_no_end_to_what_nobody_joined():
    """
    A call that failed has no end in the trace, although torch counts its future as complete.
    """
    store, failed = dist.HashStore(), []

    def rank(number):
        gloo = dist.ProcessGroupGloo(store, number, 2, timedelta(seconds=HANGS_AFTER_S))
        here.wait()  # the limit was for connecting too
        gloo._set_default_timeout(timedelta(seconds=0.2))
        group = dist.ProcessGroup(store, number, 2)
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        group._set_group_name("threads")
        if number == 0:
            work = group.allreduce([torch.ones(1)])
            try:
                work.wait()
            except RuntimeError:
                failed.append(number)
        here.wait()  # rank 1 is in the group, but calls no collective

    here = threading.Barrier(2)
    with trace() as events:
        threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == [0]
    assert [(e.name, e.end_ns, e.wait_end_ns) for e in events] == [("all_reduce", None, None)]


def test_tap_lets_backend_threads_finish_telling(monkeypatch):
    """
    The tap waits for threads of the backend at its end: a thread that calls Python while the
    interpreter ends would crash the process.
    """
    tap, asked = Tap(), []

    class Future:
        def done(self):
            asked.append(len(asked))
            if len(asked) == 3:
                tap._untold.clear()  # the thread has reported the end
            return True

    monkeypatch.setattr("ddp_lessons.trace.tap.is_done", Future.done)
    tap._untold[0] = Future()
    tap.close(object())
    assert asked == [0, 1, 2]
    assert Tap().close(object()) is None


class _Recorder:
    def __init__(self):
        self.noted = []

    def completed(self, event):
        self.noted.append(("completed", event.name))

    def waited(self, event, start_ns):
        self.noted.append(("waited", event.name))


def test_messages_of_a_batch_share_the_work_at_its_end(one_rank):
    """
    Messages of a batch share the work at its end, as with NCCL. A synchronous call has no work
    there, so it is complete at once.
    """
    tap, recorder = Tap(), _Recorder()
    names = ("send", "recv", "all_reduce")
    events = [
        SimpleNamespace(name=n, is_send=n == "send", is_receive=n == "recv", peer=0, start_ns=0)
        for n in names
    ]
    tap._watch([(recorder, event) for event in events], None)
    assert recorder.noted == [("completed", "all_reduce"), ("waited", "all_reduce")]
    work = dist.barrier(async_op=True)
    tap.batch_ended(work)
    work.wait()
    tap.batch_ended(None)
    recorder.noted.clear()
    tap.waited(work, 0)
    assert recorder.noted == [
        (what, name) for name in ("send", "recv") for what in ("completed", "waited")
    ]


def test_work_of_a_batch_is_told_and_given_back():
    """
    The work of a batch is noted by the tap and returned to the caller that ends the batch.
    """
    works = []
    waits = Waits(SimpleNamespace(batch_ended=works.append))
    given = waits._end_coalescing(lambda group, device: (group, device), "group", "cuda")
    assert given == ("group", "cuda")
    assert works == [given]


def _spin(work):
    while not work.is_completed():
        pass


def _ask_its_future(work):
    while not work.get_future().done():
        pass


WAYS_TO_WAIT = {
    "wait": lambda work: work.wait(),
    "is_completed": _spin,
    "future": lambda work: work.get_future().wait(),
    "done": _ask_its_future,
    "then": lambda work: work.get_future().then(lambda future: None).wait(),
    "collect_all": lambda work: torch.futures.collect_all([work.get_future()]).wait(),
    "wait_all": lambda work: torch.futures.wait_all([work.get_future()]),
}


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("way", WAYS_TO_WAIT)
def test_tap_hears_every_way_to_wait(way):
    """
    Every way to wait counts: by a future, or by polling until the call is complete. A check must
    not report a missing wait.
    """
    with trace() as events:
        left = dist.all_reduce(torch.ones(3), async_op=True)
        WAYS_TO_WAIT[way](dist.all_reduce(torch.ones(3), async_op=True))
    assert [event.wait_index is None for event in events] == [True, False]
    assert events[1].end_ns  # the first call may still be under way, because nothing waited for it
    assert left.wait()


@pytest.mark.usefixtures("one_rank")
def test_a_callback_that_reads_what_came_waits_for_nothing():
    """
    A callback that reads the result does not count as a wait, because it runs in any thread after
    completion.
    """
    read = []
    with trace() as events:
        future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
        future.add_done_callback(lambda done: read.append(done.value()))
        tripled = future.then(lambda done: [3 * done.value()[0]])
        while len(read) < 1:
            pass
        assert events[0].wait_index is None
        assert tripled.wait()[0].sum() == 9
    assert events[0].wait_index is not None


@pytest.mark.usefixtures("one_rank")
def test_tap_hears_waits_for_functional_collectives():
    """
    Functional collectives are waited for by reading their tensor.
    """
    with trace() as events:
        kept = functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
        read = functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
        assert (read + 1).sum() == 6
    assert [event.wait_index is None for event in events] == [True, False]
    assert functional.wait_tensor(kept).sum() == 3


@pytest.mark.usefixtures("one_rank")
def test_tap_knows_what_waits_in_cpp():
    """
    A wait inside C++ counts: torch's broadcast of a module's states returns when it is complete.
    """
    model = torch.nn.Linear(3, 3)
    with trace() as events:
        _sync_module_states(model, dist.group.WORLD, 1 << 20, 0, set())
    assert [(event.name, event.wait_index is None) for event in events] == [("broadcast", False)]


def test_tap_leaves_torchs_methods_as_they_were():
    """
    Outside of a trace torch's methods are unchanged.
    """

    def methods():
        of_work = [getattr(Work, name) for name in ("wait", "is_completed", "get_future")]
        names = ("wait", "value", "done", "then", "add_done_callback")
        of_future = [getattr(torch._C.Future, name) for name in names]
        return [*of_work, *of_future, torch._C._collect_all]

    before = methods()
    with trace():
        assert all(one is not other for one, other in zip(before, methods(), strict=True))
    assert all(one is other for one, other in zip(before, methods(), strict=True))


class _Noted:
    def __init__(self):
        self.told = []

    def waited(self, work, start_ns):
        """
        Record the work that was waited for, and since when.
        """
        self.told.append((work, start_ns))


def test_a_loop_of_looks_waits_from_the_first_look_on():
    """
    A loop that polls until completion counts as waiting since its first poll.
    """
    noted, work = _Noted(), object()
    waits = Waits(noted)
    before_ns = time.monotonic_ns()
    assert not waits._is_completed(lambda _: False, work)
    after_ns = time.monotonic_ns()
    assert not waits._is_completed(lambda _: False, work)
    assert waits._is_completed(lambda _: True, work)
    ((who, since_ns),) = noted.told
    assert who is work
    assert before_ns <= since_ns <= after_ns


def test_only_so_many_futures_are_kept():
    """
    The number of futures that are kept is limited, because each keeps its work and its tensors
    alive.
    """
    waits = Waits(_Noted())
    futures = [waits._stands_for(object(), [number]) for number in range(_MAX_FUTURES + 1)]
    assert waits._works_of(futures[0]) == []
    assert [waits._works_of(one) for one in futures[1:3]] == [[1], [2]]
