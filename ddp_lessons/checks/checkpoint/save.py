"""
Task 08.1: an atomic save.
"""

import shutil

import torch
import torch.distributed as dist

from ddp_lessons.checks.kit import Case, Task, equal, normal_numbers
from ddp_lessons.checks.kit.inside.disk import LEFT, FileWatch, left_by_kills, open_below
from ddp_lessons.checks.kit.inside.plain import plain
from ddp_lessons.pictures import holdings_picture
from ddp_lessons.trace import match

# Another run saves into this folder, and what it has not finished is there as well.
_NEIGHBOURS = ["epoch-7.pt", *(f"epoch-7.pt.{end}" for end in ("tmp", "new", "part", "bak"))]


def _cases(draw):
    yield Case(4, {"numbers": 5000, "old file": True}, seed=0)
    for world_size in (1, 2, 3):
        old = world_size != 2
        # One rank is killed in mid-save: only what is larger than a buffer is cut then.
        fewest = 5000 if world_size == 1 else 100
        yield Case(world_size, {"numbers": draw.randint(fewest, 9000), "old file": old})


def _state(case, rank, step):
    return {
        "step": step,
        "weights": normal_numbers(case, rank, [case["numbers"]]) + step,
        "rates": [0.1, 0.05],
    }


def _act(here, save):
    path = here.folder / f"case-{here.case.seed}" / "run.pt"
    if here.rank == 0:
        path.parent.mkdir()
        if here["old file"]:
            torch.save(_state(here.case, 0, 1), path)
        for name in _NEIGHBOURS:
            path.with_name(name).touch()
    dist.barrier()
    watch = FileWatch(path)
    with watch:
        here.call(save, _state(here.case, here.rank, 2), path)
    still_open = open_below(path.parent)
    try:
        found = torch.load(path, weights_only=True)
    except Exception:
        found = None  # that is for the kernel to judge
    names = ("num_saves", "num_moves", "synced", "was_beside", "was_written_over")
    kept = {name: vars(watch)[name] for name in names}
    dist.barrier()
    others = sorted({file.name for file in path.parent.iterdir()} ^ {path.name, *_NEIGHBOURS})
    fault = _fault_after_a_kill(here, save) if here.world_size == 1 else None
    kept |= {"versions": watch.versions, "found": found, "others": others, "fault": fault}
    return kept | {"open": still_open}


def _fault_after_a_kill(here, save):
    # Of a save by one rank that was killed at some moment. None: the next one is all right.
    path = here.folder / f"killed-{here.case.seed}" / "run.pt"
    path.parent.mkdir()
    torch.save(_state(here.case, 0, 1), path)
    for folder in left_by_kills(path, lambda: save(_state(here.case, 0, 2), path)):
        shutil.rmtree(path.parent)
        folder.rename(path.parent)
        fault = _fault_of_the_next(here, save, path)
        if fault is not None:
            return fault
    return None


def _fault_of_the_next(here, save, path):
    try:
        with FileWatch(path) as watch:
            save(_state(here.case, 0, 3), path)
    except Exception as error:
        return f"it raises {type(error).__name__}"
    try:
        found = torch.load(path, weights_only=True)
    except Exception:
        return "it leaves no file that torch.load takes"
    if LEFT in path.read_bytes():  # torch.load may not mind
        return "what was left is still in the file"
    if not equal(plain(_unsealed(found)), _state(here.case, 0, 3)):
        return "it leaves another state than its own"
    whole = (watch.versions[0], watch.versions[-1])
    if any(version not in whole for version in watch.versions):
        return "for a moment, the name has neither the old file nor the new one"
    return None


def _judge(played):
    for rank, seen in enumerate(played.seen[1:], start=1):
        if seen.kept["num_saves"] or seen.kept["num_moves"]:
            fact = f"Rank {rank} writes a file, or gives one the name."
            raise played.wrong("every-rank", rank, fact=fact)
    seen = played.seen[0].kept
    contents = [content for _, content in seen["versions"]]
    old, new = contents[0], contents[-1]
    if new is None or new == old:
        raise played.wrong("not-saved", 0, fact=f"After the call, {_under('the old', old)}.")
    for content in contents[1:-1]:
        if content is None:
            fact = "Killed at one moment of the save, it leaves no file of that name at all."
            raise played.wrong("gap", 0, fact=fact)
        if content not in (old, new):
            fact = f"Killed at one moment of the save, it leaves {len(content):,} bytes under the "
            fact += "name: neither the old file nor the new one."
            raise played.wrong("in-place", 0, fact=fact)
    expected = _state(played.case, 0, 2)
    if not equal(_unsealed(seen["found"]), expected):
        fact = "What torch.load finds in the file is not the state of rank 0."
        raise played.wrong("other-state", 0, fact=fact)
    if seen["was_written_over"]:
        fact = "The new bytes were written into the old file: a kill in between leaves half of it."
        raise played.wrong("in-place", 0, fact=fact)
    if not seen["was_beside"]:
        fact = "No file with that content lay in the folder, or below it, before it got the name."
        raise played.wrong("other-folder", 0, fact=fact)
    if not seen["synced"]:
        fact = "The file got its name before all of it was on the disk."
        raise played.wrong("unsynced", 0, fact=fact)
    _judge_wait(played, replaced_ns=seen["versions"][-1][0])
    gone = [name for name in _NEIGHBOURS if name in seen["others"]]
    if gone:
        fact = f"It takes away {gone[0]}, which was in the folder before."
        raise played.wrong("neighbour", 0, fact=fact)
    if seen["others"]:
        fact = f"These files are left beside it: {', '.join(seen['others'])[:80]}."
        raise played.wrong("left-over", 0, fact=fact)
    if seen["open"]:
        fact = f"After it, rank 0 has still open: {', '.join(seen['open'])[:80]}."
        raise played.wrong("left-open", 0, fact=fact)
    if seen["fault"]:
        fact = f"Killed while it saved, and called again: {seen['fault']}."
        raise played.wrong("after-kill", 0, fact=fact)


def _under(what, content):
    return "there is no file" if content is None else f"{what} file is still there"


def _unsealed(found):
    # ddp_lessons.checkpoint puts a state into an envelope.
    return found["state"] if isinstance(found, dict) and "state" in found else found


def _judge_wait(played, replaced_ns):
    told = {0}
    for met in match(played.traces):
        own = met.get(0)
        if own is None or own.start_ns < replaced_ns or own.is_receive:
            continue
        rooted = own.name in ("reduce", "gather", "broadcast", "scatter")
        if not rooted or (own.name in ("broadcast", "scatter") and own.peer == 0):
            told |= set(met)
    for rank in range(played.case.world_size):
        if rank not in told:
            fact = f"Rank {rank} may return before the file is there: nothing makes it wait."
            raise played.wrong("no-wait", rank, fact=fact)


def _draw(played):
    old, new = (played.seen[0].kept["versions"][place][1] for place in (0, -1))
    words = {old: "step 1", None: "nothing", new: "step 2"}
    left = dict.fromkeys(words[content] for _, content in played.seen[0].kept["versions"])
    both = {"file before": words[old], "after a kill": " or ".join(left)}
    rows = [
        both | {"on return": f"step {_unsealed(seen.kept['found'])['step']}"}
        for seen in played.seen
    ]
    return holdings_picture(["file before", "after a kill", "on return"], rows)


save = Task(
    number="08.1",
    ends_threads=True,
    uses_store=True,
    name="save",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="the old file or the new one at every moment, and nobody returns too soon",
    draw=_draw,
    hints=(
        "Opening a file for writing empties it. So the old file must keep its name until the new "
        "one is whole.",
        "Write under another name in the same folder, and wait until that is on the disk. Then "
        "give it the name: os.replace is done wholly or not at all.",
        "To wait for the disk you need the open file: with open(other, 'wb') as file, torch.save "
        "into it, file.flush(), and os.fsync(file.fileno()).",
        "Rank 0 does all of that under `if dist.get_rank() == 0:`. After it, on every rank: "
        "dist.barrier().",
    ),
    mistakes={
        "every-rank": "Let rank 0 write, and nobody else.",
        "not-saved": "After the call, the new state must be under the name that was given.",
        "in-place": "Write under another name, and rename what is whole. A copy writes in place, "
        "also that of shutil.move from another file system.",
        "gap": "Do not remove the old file. os.replace puts the new one in its place in one act.",
        "other-state": "The file must hold what rank 0 was given, as torch.save writes it.",
        "other-folder": "A rename is atomic within one file system only. Write the new file beside "
        "the old one: path.with_name(...).",
        "unsynced": "Call os.fsync on the new file, not on its folder, after all is written and "
        "flushed, and before the rename.",
        "after-kill": "A kill may leave a part of the new file behind, of any length, and what "
        "else you made. The next save has to begin all of it anew, and must not fail because it is "
        "there.",
        "no-wait": "A barrier belongs after the rename, and every rank must call it.",
        "left-over": "Leave one file: rename what you wrote, and remove what else you made, also a "
        "second name for the old file.",
        "left-open": "Close what you have opened: `with open(...)` does so by itself, os.open does "
        "not. A run that saves often has no handles left in the end.",
        "neighbour": "Remove only what a save of this file makes: other files in the folder belong "
        "to others, who may be in the middle of a save.",
        "deadlock": "Every rank must come to the barrier, not only the one that writes.",
        "raised": "Only one rank may touch the new file: it is gone when it has been renamed.",
    },
    returns=False,
)
