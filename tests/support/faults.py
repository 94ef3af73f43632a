# ruff: noqa: E501 - a kind's cell and what is said of it stand side by side
"""
All kinds of faults that tests play on ranks: each with its cell, and how the message must name the
culprit.

In the texts `{C}` is the culprit, `{D}` another rank, `{V}` all ranks but the culprit, `{ALL}` all
ranks.
"""

from dataclasses import dataclass

PREPARE = """%%px
import ctypes, gc, os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from ddp_lessons.process_group import rank_device
rank, world_size = dist.get_rank(), dist.get_world_size()
if rank_device().type == "cuda":  # tensors lie where NCCL, or Gloo for a GPU, takes them
    torch.set_default_device(rank_device())
t = torch.ones(4)
keep = 100 + rank
for name in ("model", "pair", "first", "second", "store", "handle"):
    globals().pop(name, None)
"""
MODEL = """%%px
model = DistributedDataParallel(torch.nn.Linear(4, 4))
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
"""


@dataclass(frozen=True)
class Kind:
    """
    A kind of fault.

    Args:
        cell: The code that the ranks run.
        message_pattern: A regular expression for the beginning of the message.
        loses_variables: The ranks that lose their variables: "", "C", "CD", or "?" if any rank may
            crash, because Gloo writes past the end of a buffer that is too small.
        needs_stop: Whether Stop must be pressed, because nothing else ends the cell.
        needs_model: Whether the fault needs a live DDP model. If not, half of the random plays have
            one all the same, which keeps its group's connections open.
        magic: The cell's first line.
        prepare: A cell that runs before it.
        killed: Ranks that are killed from outside: "", "C" or "CD".
        message_contains: A text that the message must also contain.
    """

    cell: str
    message_pattern: str
    loses_variables: str = ""
    needs_stop: bool = False
    needs_model: bool = False
    magic: str = "%%px"
    prepare: str = ""
    killed: str = ""
    message_contains: str = ""


IF_C = "if rank == {C}:\n    "
PAIR = "%%px\npair = dist.new_group([{C}, {D}])"
PAIRS = """%%px
first = dist.new_group([{C}, {D}])
second = dist.new_group([{C}, {D}])
"""
LOADER = """
class Shard(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        {fault}
        return torch.ones(2, device="cpu")  # a forked worker cannot use a GPU

for batch in torch.utils.data.DataLoader(Shard(), num_workers=1):
    pass
dist.barrier()
"""
TRAINING = """
for step in range(100_000):
    model(torch.ones(2, 4)).sum().backward()
"""
LARGE = "large = torch.ones(2_000_000)\nwhile True:\n    dist.all_reduce(large)"
"""
Messages of many pieces, so that a piece is always under way.
"""
ENDED = r"rank {C} died: its process was ended by "

FAMILIES = {
    "raise": {
        "raise_before": Kind(
            IF_C + "raise ValueError('bad shard')\ndist.all_reduce(t)",
            r"rank {C} raised ValueError: bad shard at line \d+: raise ValueError",
        ),
        "raise_between": Kind(
            "dist.all_reduce(t)\n" + IF_C + "1 / 0\ndist.broadcast(t, 0)\ndist.all_gather([torch.ones(4) for _ in range(world_size)], t)",
            r"rank {C} raised ZeroDivisionError: division by zero at line \d+: 1 / 0",
        ),
        "raise_after": Kind(
            "dist.all_reduce(t)\n" + IF_C + "{}['key']",
            r"rank {C} raised KeyError: 'key' at line \d+: \{\}\['key'\]",
        ),
        "raise_in_two": Kind(
            "if rank in ({C}, {D}):\n    raise OSError(f'disk {rank}')\ndist.barrier()",
            r"rank \d raised OSError: disk \d at line \d+: raise OSError[^\n]*\nrank \d raised OSError",
        ),
        "raise_in_all": Kind("raise LookupError('everybody')", r"{ALL} raised LookupError: everybody at line \d+"),
        "raise_interrupt": Kind(IF_C + "raise KeyboardInterrupt\ndist.barrier()", r"rank {C} raised KeyboardInterrupt at line \d+"),
        "recursion": Kind(
            "def deeper(n):\n    return deeper(n + 1)\n" + IF_C + "deeper(0)\ndist.barrier()",
            r"rank {C} raised RecursionError: maximum recursion depth exceeded.* at line \d+: return deeper",
        ),
        "gil_held": Kind(
            IF_C + "ctypes.PyDLL(None).usleep(900_000)\n    raise ValueError('awake')\ndist.barrier()",
            r"rank {C} raised ValueError: awake at line \d+",
        ),
        "abort_in_python": Kind(
            IF_C + "raise SystemError('odd')\nhandle = dist.all_reduce(t, async_op=True)\nhandle.wait()",
            r"rank {C} raised SystemError: odd at line \d+",
        ),
        "raise_after_await": Kind(
            "import asyncio\nawait asyncio.sleep(0.01)\n" + IF_C + "raise LookupError('awaited')\ndist.barrier()",
            r"rank {C} raised LookupError: awaited at line \d+",
        ),
        "raise_beside_an_await": Kind(
            "import asyncio\n" + IF_C + "raise LookupError('alone')\nawait asyncio.Event().wait()",
            r"rank {C} raised LookupError: alone at line \d+",
        ),
        "syntax_error": Kind("print(rank", r"{ALL} raised SyntaxError: .* at line \d+: print\(rank"),
    },
    "exit": {
        "exit": Kind(IF_C + "exit()\ndist.barrier()", r"rank {C} raised SystemExit: exit\(\) in a cell.* at line \d+: exit\(\)"),
        "sys_exit": Kind(IF_C + "sys.exit(3)\ndist.barrier()", r"rank {C} raised SystemExit: 3 at line \d+: sys.exit\(3\)"),
    },
    "output": {
        "huge_output": Kind(
            IF_C + "print('x' * 99 + '\\n' * 20_000)\n    raise ValueError('after much')\ndist.barrier()",
            r"rank {C} raised ValueError: after much at line \d+",
        ),
        "stream_without_flush": Kind(
            IF_C + "sys.stderr = type('Log', (), {'write': lambda self, text: None})()\n    raise ValueError('logged')\ndist.barrier()",
            r"rank {C} raised ValueError: logged at line \d+",
        ),
        "text_not_utf_8": Kind(
            IF_C + "raise ValueError('name \\udce9 half \\ud800')\ndist.barrier()",
            r"rank {C} raised ValueError: name \ufffd half \ufffd at line \d+",
        ),
        "result_cannot_be_shown": Kind(
            "class Odd:\n    def __repr__(self):\n        raise LookupError('no words')\nOdd() if rank == {C} else None",
            r"rank {C} raised LookupError: the cell's result cannot be shown: no words",
        ),
        "callback_raises": Kind(
            "def once(result):\n    get_ipython().events.unregister('post_run_cell', once)\n    raise ValueError('callback')\n"
            + IF_C + "get_ipython().events.register('post_run_cell', once)\n    raise LookupError('own')\ndist.barrier()",
            r"rank {C} raised LookupError: own at line \d+",
        ),
        "error_handler_raises": Kind(
            "def broken(*args, **options):\n    raise ValueError('handler')\n"
            + IF_C + "get_ipython().set_custom_exc((LookupError,), broken)\n    raise LookupError('own')\ndist.barrier()",
            r"rank {C} raised LookupError: own at line \d+",
        ),
        "closed_descriptors": Kind(
            IF_C + "os.closerange(0, 3)\n    raise LookupError('closed')\ndist.barrier()",
            r"rank {C} raised LookupError: closed at line \d+",
        ),
        "lost_reply": Kind(
            "session = get_ipython().kernel.session\nsend = session.send\n"
            "def lose(stream, kind, content=None, *args, **options):\n"
            "    if kind != 'execute_reply':\n        return send(stream, kind, content, *args, **options)\n"
            "    session.send = send\n    return session.msg(kind, content)\n"
            + IF_C + "session.send = lose\nelse:\n    dist.barrier()",
            r"rank {C} raised ReplyLost: the cell has ended",
        ),
    },
    "helper process": {
        "raise_in_loader": Kind(
            LOADER.replace("{fault}", "1 / (i - 2 if rank == {C} else 1)"),
            r"rank {C} raised ZeroDivisionError: Caught ZeroDivisionError in DataLoader worker process 0",
        ),
        "kill_a_loader": Kind(
            LOADER.replace("{fault}", "os.kill(os.getpid(), 9) if rank == {C} else None"),
            r"rank {C} raised RuntimeError: DataLoader worker",
        ),
    },
    "death": {
        "sigkill": Kind(IF_C + "os.kill(os.getpid(), 9)\ndist.all_reduce(t)", ENDED + "SIGKILL", "C"),
        "sigsegv": Kind(IF_C + "ctypes.string_at(0)\ndist.all_reduce(t)", ENDED + "SIGSEGV", "C"),
        "sigabrt": Kind("dist.all_reduce(t)\n" + IF_C + "os.abort()\ndist.barrier()", ENDED + "SIGABRT", "C"),
        "os_exit": Kind(IF_C + "os._exit(7)\ndist.all_reduce(t)", "rank {C} died: its process exited with code 7", "C"),
        "die_in_two": Kind(
            "if rank in ({C}, {D}):\n    os._exit(3)\ndist.barrier()",
            r"rank \d died: its process exited with code 3[^\n]*\nrank \d died: its process exited with code 3",
            "CD",
        ),
        "kill_in_training": Kind(TRAINING, ENDED + "SIGKILL", "C", needs_model=True, killed="C"),
        "kill_in_reduces": Kind("while True:\n    dist.all_reduce(t)", ENDED + "SIGKILL", "C", killed="C"),
        "kill_in_large_reduces": Kind(LARGE, ENDED + "SIGKILL", "C", killed="C"),
        "kill_in_a_wait": Kind(
            "if rank != {C}:\n    dist.barrier()\nelse:\n    time.sleep(60)", ENDED + "SIGKILL", "C", killed="C"
        ),
        "kill_two": Kind("while True:\n    dist.all_reduce(t)", r"rank \d died: [^\n]*SIGKILL", "CD", killed="CD"),
    },
    "missing call": {
        "missing_call": Kind(
            "if rank != {C}:\n    dist.all_reduce(t)",
            r"Deadlock: rank {C} finished the cell without all_reduce \d+; {V} waits? in all_reduce \d+",
        ),
        "missing_async": Kind(
            "if rank != {C}:\n    handle = dist.all_reduce(t, async_op=True)\n    handle.wait()",
            r"Deadlock: rank {C} finished the cell without all_reduce \d+ in wait; {V} waits? in all_reduce \d+ in wait",
        ),
        "leave_the_group": Kind(  # the group of a rank with a live DDP model keeps its sockets: then it is a deadlock
            IF_C + "dist.destroy_process_group()\nelse:\n    dist.all_reduce(t)",
            r"Deadlock: rank {C} finished the cell without all_reduce \d+; {V} waits? in all_reduce \d+|"
            r"rank {C} finished the cell and is in no process group, such as after destroy_process_group: [^\n]*\n"
            r"ranks? [\d, and-]+ raised RuntimeError: [^\n]*(Connection (closed|reset) by peer|Broken pipe)[^\n]* at line \d+",
        ),
        "not_asked": Kind(
            "dist.barrier()",
            r"Deadlock: {V} (was|were) not asked to run this cell; rank {C} waits for (it|them) in barrier \d+",
            magic="%%px --targets {C}",
        ),
    },
    "other call": {
        "other_call": Kind(
            IF_C + "dist.broadcast(t, 0)\nelse:\n    dist.all_reduce(t)",
            r"(Deadlock: )?rank \d called .* as collective \d+, where .* called ",
        ),
        "other_order": Kind(
            IF_C + "dist.all_reduce(t, group=first)\n    dist.all_reduce(t, group=second)\n"
            "elif rank == {D}:\n    dist.all_reduce(t, group=second)\n    dist.all_reduce(t, group=first)",
            r"Deadlock: rank \d waits in all_reduce \d+ for rank \d; rank \d waits in all_reduce \d+ for rank \d",
            prepare=PAIRS,
        ),
        "other_root": Kind(  # two ranks may be left, each with its own root: then both are named
            "dist.broadcast(t, src={C} if rank == {C} else {D})", r"Deadlock: ranks? (\d and )?{C}( and \d)? called broadcast float\[4\] "
        ),
        "own_root": Kind("dist.broadcast(t, src=rank)", r"Deadlock: ranks [\d, and-]+ called broadcast float\[4\] as collective \d+, each from itself"),
        "other_shape": Kind(
            "x = torch.ones(3 if rank == {C} else 4)\ndist.all_reduce(x)",
            r"(Deadlock: )?ranks? [\d, and-]+ called all_reduce float\[\d\] as collective \d+, where .* all_reduce float\[\d\]|rank \d died: .* (SIGABRT|SIGSEGV)",
            "?",
        ),
        "other_dtype": Kind(
            "x = torch.ones(4, dtype=torch.int64 if rank == {C} else torch.float32)\ndist.all_reduce(x)",
            r"(Deadlock: )?ranks? [\d, and-]+ called all_reduce (long|float)\[4\] as collective \d+, where .* all_reduce (long|float)\[4\]|rank \d died: .* (SIGABRT|SIGSEGV)",
            "?",
        ),
    },
    "point to point": {
        "recv_without_send": Kind(
            IF_C + "dist.recv(t, {D})", r"Deadlock: rank {D} finished the cell without a send; rank {C} waits in recv"
        ),
        "all_recv": Kind("dist.recv(t, (rank + 1) % world_size)", r"Deadlock: {ALL} all wait in recv \(line \d+\), and none sends"),
        "all_irecv": Kind(
            "dist.all_reduce(t)\nhandle = dist.irecv(t, (rank + 1) % world_size)\nhandle.wait()",
            r"Deadlock: {ALL} all wait in recv \(line \d+\), and none sends",
        ),
        "other_tag": Kind(
            IF_C + "dist.recv(t, {D}, tag=1)\nelif rank == {D}:\n    dist.send(torch.ones(4_000_000), {C}, tag=2)",
            r"Deadlock: ",
        ),
        "all_send": Kind("dist.send(torch.ones(4_000_000), (rank + 1) % world_size)", r"Deadlock: {ALL} all wait in send \(line \d+\), and none receives"),
    },
    "store": {
        "store_get": Kind(
            IF_C + "store.get('never')\ndist.barrier()",
            r"Deadlock: rank {C} is waiting for a store's key at line \d+: store.get\('never'\); {V} waits? for it",
            prepare="%%px\nstore = dist.distributed_c10d._get_default_store()",
        ),
        "store_key": Kind("store.wait([f'never{rank}'])", r"Deadlock: {ALL} all wait for a store's key", prepare="%%px\nstore = dist.distributed_c10d._get_default_store()"),
        "store_without_its_file": Kind(
            "import tempfile\npath = tempfile.mkdtemp() + '/store'\nstore = dist.FileStore(path, 2)\n"
            "store.set('a', '1')\nos.remove(path)\nstore.get('b')",
            r"Deadlock: {ALL} all wait for a store's key",
        ),
    },
    "subgroup": {
        "subgroup_deadlock": Kind(
            "if rank == {D}:\n    dist.all_reduce(t, group=pair)",
            r"Deadlock: rank {C} finished the cell without all_reduce 1; rank {D} waits in all_reduce 1 \(line \d+\)",
            prepare=PAIR,
        ),
        "group_of_some": Kind(
            IF_C + "dist.new_group([{C}, {D}])", r"Deadlock: rank {D} finished the cell without new_group; rank {C} waits in new_group"
        ),
        "raise_beside_a_subgroup": Kind(
            IF_C + "raise ValueError('bad shard')\nif rank == {D}:\n    dist.all_reduce(t, group=pair)",
            r"rank {C} raised ValueError: bad shard at line \d+",
            prepare=PAIR,
            message_contains="`pair` hold",
        ),
    },
    "backward": {
        "missing_in_backward": Kind(
            "if rank != {C}:\n    model(torch.ones(2, 4)).sum().backward()",
            r"Deadlock: rank {C} finished the cell without .*; {V} waits? in ",
            needs_model=True,
        ),
        "raise_in_backward": Kind(
            IF_C + "handle = model.module.weight.register_hook(lambda gradient: gradient.missing)\n"
            "model(torch.ones(2, 4)).sum().backward()",
            r"rank {C} raised AttributeError: .*missing",
            needs_model=True,
        ),
        "raise_in_forward_hook": Kind(
            IF_C + "handle = model.module.register_forward_pre_hook(lambda *_: 1 / 0)\n"
            "model(torch.ones(2, 4)).sum().backward()",
            r"rank {C} raised ZeroDivisionError: division by zero at line \d+",
            needs_model=True,
        ),
    },
    "stop": {
        "stop_in_a_wait": Kind(
            IF_C + "time.sleep(60)\ndist.barrier()",
            r"Stopped: rank {C} is at line \d+: time.sleep\(60\); {V} waits? for it in barrier \d+",
            needs_stop=True,
        ),
        "stop_a_stopped_rank": Kind(
            IF_C + "os.kill(os.getpid(), 19)\ndist.barrier()",
            r"Stopped: rank {C} (is stopped by a signal|does not answer); {V} waits? for it in barrier \d+",
            needs_stop=True,
        ),
        "stop_in_python": Kind("n = 0\nwhile True:\n    n += 1", r"Stopped: .*at line \d+: ", needs_stop=True),
        "stop_in_sleep": Kind("time.sleep(60)", r"Stopped: {ALL} were at line \d+: time.sleep\(60\)", needs_stop=True),
        "stop_in_training": Kind(TRAINING, r"Stopped: ", needs_stop=True, needs_model=True),
        "stop_in_large_reduces": Kind(LARGE, r"Stopped: ", needs_stop=True),
        "stop_in_reduces": Kind("while True:\n    dist.all_reduce(t)", r"Stopped: ", needs_stop=True),
        "stop_gil_held": Kind(
            IF_C + "sleep = ctypes.PyDLL(None).sleep\n    while sleep(60):\n        pass\ndist.barrier()",
            r"Stopped: rank {C} is at line \d+: while sleep\(60\):; {V} waits? for it in barrier \d+",
            "C",
            needs_stop=True,
        ),
        "stop_at_a_missing_call": Kind(  # Stop may come after the cell was ended as a deadlock
            "if rank != {C}:\n    dist.all_reduce(t)",
            r"(Stopped|Deadlock): rank {C} finished the cell without all_reduce \d+; {V} waits? in all_reduce \d+",
            needs_stop=True,
        ),
        "stop_in_backward": Kind(
            IF_C + "time.sleep(60)\nmodel(torch.ones(2, 4)).sum().backward()",
            r"Stopped: rank {C} is at line \d+: time.sleep\(60\); {V} waits? for it in .* \(line \d+\)",
            needs_stop=True,
            needs_model=True,
            message_contains="`model` holds the old group: run the cell that makes it again.",
        ),
    },
}  # fmt: skip
"""
{family: {name: Kind}}. A family is named for what the culprit does, or for where ranks wait: a rank
raises an error, ends itself, breaks its output or reply, loses a helper process such as a worker of
a DataLoader, or dies; a rank makes no call, or another call than its peers; ranks wait for each
other in send and recv, for a store's key, in a subgroup, or inside of a backward; or nothing ends
the wait but Stop.
"""
KINDS = {name: kind for family in FAMILIES.values() for name, kind in family.items()}
GOLDEN = (
    "raise_between", "exit", "huge_output", "raise_in_loader", "sigkill", "missing_call", "other_call",
    "all_recv", "store_get", "subgroup_deadlock", "missing_in_backward", "stop_in_a_wait",
)  # fmt: skip
"""
One kind from each family, whose message does not depend on time: `make test` plays these.
"""
