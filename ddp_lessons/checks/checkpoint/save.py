"""
Task 08.1: an atomic save.

On each rank: `_act`, `_fault_after_a_kill`, `_fault_of_the_next`; in both: `_state`, `_unsealed`.
In the kernel: the rest.
"""

import shutil

import torch
import torch.distributed as dist

from ddp_lessons.checks.kit import Case, Mistake, Task, equal, normal_numbers
from ddp_lessons.checks.kit.on_rank.file_watch import LEFT, FileWatch, left_by_kills, open_below
from ddp_lessons.checks.kit.on_rank.snapshots import plain
from ddp_lessons.pictures import holdings_picture
from ddp_lessons.trace import match

# Files of another run in the same folder, with those of a save that it has not finished.
_NEIGHBOURS = ["epoch-7.pt", *(f"epoch-7.pt.{end}" for end in ("tmp", "new", "part", "bak"))]


def _cases(draw):
    yield Case(4, {"numbers": 5000, "old file": True}, seed=0)
    for world_size in (1, 2, 3):
        old = world_size != 2
        # A case of one rank is killed during a save: only a file larger than a buffer is cut then.
        fewest = 5000 if world_size == 1 else 100
        yield Case(world_size, {"numbers": draw.randint(fewest, 9000), "old file": old})
    # Python's buffer holds the whole file, so that nothing is on the disk before a flush.
    yield Case(2, {"numbers": 10, "old file": True})


def _state(case, rank, step):
    return {
        "step": step,
        "weights": normal_numbers(case, rank, [case["numbers"]]) + step,
        "rates": [0.1, 0.05],
    }


def _act(context, save):
    path = context.folder / f"case-{context.case.seed}" / "run.pt"
    if context.rank == 0:
        path.parent.mkdir()
        if context["old file"]:
            torch.save(_state(context.case, 0, 1), path)
        for name in _NEIGHBOURS:
            path.with_name(name).touch()
    dist.barrier()
    watch = FileWatch(path)
    with watch:
        context.call(save, _state(context.case, context.rank, 2), path)
    still_open = open_below(path.parent)
    try:
        found = torch.load(path, weights_only=True)
    except Exception:
        found = None  # the kernel judges it
    names = ("num_saves", "num_moves", "synced", "was_beside", "was_written_over")
    kept = {name: vars(watch)[name] for name in names}
    dist.barrier()
    others = sorted({file.name for file in path.parent.iterdir()} ^ {path.name, *_NEIGHBOURS})
    fault = _fault_after_a_kill(context, save) if context.world_size == 1 else None
    kept |= {"versions": watch.versions, "found": found, "others": others, "fault": fault}
    return kept | {"open": still_open}


def _fault_after_a_kill(context, save):
    # Return what is wrong with the save after one that was killed at some moment, or None.
    path = context.folder / f"killed-{context.case.seed}" / "run.pt"
    path.parent.mkdir()
    torch.save(_state(context.case, 0, 1), path)
    for folder in left_by_kills(path, lambda: save(_state(context.case, 0, 2), path)):
        shutil.rmtree(path.parent)
        folder.rename(path.parent)
        fault = _fault_of_the_next(context, save, path)
        if fault is not None:
            return fault
    return None


def _fault_of_the_next(context, save, path):
    try:
        with FileWatch(path) as watch:
            save(_state(context.case, 0, 3), path)
    except Exception as error:
        return f"it raises {type(error).__name__}"
    try:
        found = torch.load(path, weights_only=True)
    except Exception:
        return "torch.load cannot read its file"
    if LEFT in path.read_bytes():  # torch.load may accept such a file
        return "bytes of the killed save are still in the file"
    if not equal(plain(_unsealed(found)), _state(context.case, 0, 3)):
        return "its file holds another state than the given one"
    whole = (watch.versions[0], watch.versions[-1])
    if any(version not in whole for version in watch.versions):
        return "for a moment, the name has neither the old file nor the new one"
    return None


def _writes_elsewhere(view):
    if view.rank and (view.output["num_saves"] or view.output["num_moves"]):
        return f"Rank {view.rank} writes a file, or renames one."
    return ""


def _at_rank_0(shows):
    """
    Return a function of a View that applies `shows` to rank 0's notes, and is "" for other ranks.
    """
    return lambda view: "" if view.rank else shows(view.output)


def _saves_nothing(kept):
    old, new = (kept["versions"][place][1] for place in (0, -1))
    if new is None:
        return "After the call, there is no file."
    return "After the call, the old file is still there." if new == old else ""


def _has_a_gap(kept):
    if any(content is None for _, content in kept["versions"][1:-1]):
        return "A kill at one moment of the save leaves no file of that name at all."
    return ""


def _writes_in_place(kept):
    contents = [content for _, content in kept["versions"]]
    half = next((one for one in contents if one not in (contents[0], contents[-1])), None)
    if half is not None:
        fact = f"A kill at one moment of the save leaves {len(half):,} bytes under the name: "
        return f"{fact}neither the old file nor the new one."
    if kept["was_written_over"]:
        return "The new bytes were written into the old file: a kill in between leaves half of it."
    return ""


def _leaves_something(kept):
    gone = [name for name in _NEIGHBOURS if name in kept["others"]]
    if gone:
        return f"It removes {gone[0]}, which was in the folder before."
    if kept["others"]:
        return f"It leaves other files in the folder: {', '.join(kept['others'])[:80]}."
    if kept["open"]:
        return f"After the call, rank 0 has open files: {', '.join(kept['open'])[:80]}."
    return ""


def _waits_too_little(view):
    """
    Return a fact if this rank may return before rank 0 has given the file its name.
    """
    replaced_ns, told = view.case_result.seen[0].output["versions"][-1][0], {0}
    for met in match(view.case_result.traces):
        own = met.get(0)
        if own is None or own.start_ns < replaced_ns or own.is_receive:
            continue
        rooted = own.name in ("reduce", "gather", "broadcast", "scatter")
        if not rooted or (own.name in ("broadcast", "scatter") and own.peer == 0):
            told |= set(met)
    if view.rank in told:
        return ""
    return f"Rank {view.rank} may return before the file is there: nothing makes it wait."


def _unsealed(found):
    # ddp_lessons.checkpoint puts a state into an envelope.
    return found["state"] if isinstance(found, dict) and "state" in found else found


def _draw(case_result):
    old, new = (case_result.seen[0].output["versions"][place][1] for place in (0, -1))
    words = {old: "step 1", None: "nothing", new: "step 2"}
    left = dict.fromkeys(words[content] for _, content in case_result.seen[0].output["versions"])
    both = {"file before": words[old], "after a kill": " or ".join(left)}
    rows = [
        both | {"on return": f"step {_unsealed(seen.output['found'])['step']}"}
        for seen in case_result.seen
    ]
    return holdings_picture(["file before", "after a kill", "on return"], rows)


save = Task(
    number="08.1",
    must_join_threads=True,
    uses_store=True,
    name="save",
    cases=_cases,
    act=_act,
    ok="the old file or the new one at every moment, and no rank returns too soon",
    draw=_draw,
    hints=(
        "Opening a file for writing empties it. So the old file must keep its name until the new "
        "one is whole.",
        "Write the new file under another name in the same folder, and wait until it is on the "
        "disk. Then rename it by os.replace, which is atomic: it happens wholly or not at all.",
        "To wait for the disk you need the open file: with open(other, 'wb') as file, torch.save "
        "into it, file.flush(), and os.fsync(file.fileno()).",
        "Rank 0 does all of that under `if dist.get_rank() == 0:`. After the block, every rank "
        "calls dist.barrier().",
    ),
    mistakes=(
        Mistake("every-rank", "Let rank 0 write, and no other rank.", shows=_writes_elsewhere),
        Mistake(
            "not-saved",
            "After the call, the file at path must hold the new state.",
            shows=_at_rank_0(_saves_nothing),
        ),
        Mistake(
            "gap",
            "Do not remove the old file. os.replace replaces it by the new file atomically.",
            shows=_at_rank_0(_has_a_gap),
        ),
        Mistake(
            "in-place",
            "Write under another name, and rename the file when it is complete: written, flushed "
            "and closed. A copy writes in place, and shutil.move copies if the file is on another "
            "file system.",
            shows=_at_rank_0(_writes_in_place),
        ),
        Mistake(
            "other-state",
            "The file must hold the state of rank 0, as torch.save writes it.",
            "torch.load does not find the state of rank 0 in the file.",
            shows=lambda view: (
                not view.rank
                and not equal(_unsealed(view.output["found"]), _state(view.case, 0, 2))
            ),
        ),
        Mistake(
            "other-folder",
            "A rename is atomic only within one file system. Write the new file beside the old "
            "one: path.with_name(...).",
            "The new file was not in the folder, or below it, before it got the name.",
            shows=_at_rank_0(lambda kept: not kept["was_beside"]),
        ),
        Mistake(
            "unsynced",
            "Call os.fsync on the new file, not on its folder, after all bytes are written and "
            "flushed, and before the rename. Python keeps a small file in a buffer until "
            "file.flush().",
            "The file got its name before all of it was on the disk.",
            shows=_at_rank_0(lambda kept: not kept["synced"]),
        ),
        Mistake(
            "no-wait",
            "A barrier belongs after the rename, and every rank must call it.",
            shows=_waits_too_little,
        ),
        Mistake(
            "left-over",
            "Leave one new file and no open file: rename the file that you wrote, remove any other "
            "file that you made, and close each file that you opened. Leave the files of others "
            "alone: another run may be in the middle of a save.",
            shows=_at_rank_0(_leaves_something),
        ),
        Mistake(
            "after-kill",
            "A kill may leave a part of the new file, of any length, and any other file that you "
            "made. The next save must write the whole file again, and must not fail because an old "
            "file is there.",
            shows=_at_rank_0(
                lambda kept: (
                    kept["fault"] and f"The save after a killed save goes wrong: {kept['fault']}."
                )
            ),
        ),
        Mistake("deadlock", "Every rank must reach the barrier, not only the rank that writes."),
        Mistake(
            "raised",
            "Only one rank may touch the new file: after the rename, no file has its first name.",
        ),
    ),
    must_return=False,
)
