"""
The mistakes in the runs of task 08.5. Each function looks for one: it returns a sentence, or "".

Legend: a life is a run of one process: without a kill, until a kill, or after it.
"""

from itertools import pairwise

from ddp_lessons.checks.checkpoint.noted_runs import RightGradients, is_update
from ddp_lessons.checks.kit import equal

NUM_STEPS, EVERY, GLOBAL_BATCH, MICRO_BATCH = 5, 2, 48, 4


def _lives(view):
    """
    Yield for each life of this rank its name, its notes, and the steps that it should make.
    """
    killed_in, lives = view.case["killed in step"], view.output["lives"]
    done = (killed_in - 1) // EVERY * EVERY
    if "killed" in lives:
        yield "Without a kill", lives["whole"], [*range(1, NUM_STEPS + 1)]
        yield "Until the kill", lives["killed"], [*range(1, killed_in)]
    when = f"After the kill, with {done} steps on the disk"
    yield when, lives["resumed"], [*range(done + 1, NUM_STEPS + 1)]


def _first_fault(view):
    """
    Return the first function that finds a fault in a life, and its sentence, or (None, "").

    A fault in a later life may be a consequence of this one, except that ranks communicate too
    often: this only costs time, so it is looked for last, in all lives.
    """
    kept = view.output
    if "fault" not in kept:
        facts = (
            (fact_of, f"{when}: {fact}")
            for functions in (_OF_A_LIFE, (talks_too_much,))
            for when, *life in _lives(view)
            for fact_of in functions
            if (fact := fact_of(view, *life))
        )
        kept["fault"] = next(facts, (None, ""))
    return kept["fault"]


def in_a_life(fact_of):
    """
    Return a `shows` for the faults that one of these functions finds in a life.
    """

    def shows(view):
        found, fact = _first_fault(view)
        return fact if found is fact_of else ""

    return shows


def counts_wrongly(view, life, expected):
    """
    Return a fact if steps are counted too early, too late or never.
    """
    numbers = [step["number"] for step in life["steps"]]
    is_early = numbers and numbers == [number + 1 for number in expected]
    is_stuck = len(set(numbers)) == 1 < len(numbers)
    if is_early or is_stuck:
        return f"run.step + 1 is {numbers} in its steps, and {expected} is right."
    if numbers != expected:
        return ""
    done, saved = min(expected, default=1) - 1, [step for _, step in life["saves"]]
    if any(step < done + made for step, made in zip(saved, life["made"], strict=False)):
        return f"it saves when run.step is {saved}, and has not counted the last step then."
    return ""


def makes_other_steps(view, life, expected):
    """
    Return a fact if the run makes other steps than those that are left.
    """
    numbers = [step["number"] for step in life["steps"]]
    if numbers == expected:
        return ""
    return f"it makes the steps {numbers}, and {expected} is right."


def saves_other_steps(view, life, expected):
    """
    Return a fact if the run saves after other steps than those that are due.
    """
    due = [step for step in expected if step % EVERY == 0]
    saved = [step for _, step in life["saves"]]
    is_over = expected[-1:] == [NUM_STEPS]  # then one more save does no harm
    if saved == due or (is_over and saved == [*due, NUM_STEPS]):
        return ""
    return f"it saves when run.step is {saved}, and saves were due at {due}."


def writes_alone(view, life, expected):
    """
    Return a fact if one rank writes the whole checkpoint.
    """
    is_alone = any(name == "save" for name, _ in life["saves"])
    return "rank 0 writes the whole checkpoint alone." if is_alone else ""


def takes_too_many(view, life, expected):
    """
    Return a fact if a forward takes more samples than a micro-batch has.
    """
    largest = max((step["largest"] for step in life["steps"]), default=0)
    if largest <= MICRO_BATCH:
        return ""
    return f"a forward takes {largest} samples, and may take at most {MICRO_BATCH}."


def takes_other_share(view, life, expected):
    """
    Return a fact if a rank takes another number of samples of the batch than its share.
    """
    share = GLOBAL_BATCH // view.case.world_size
    taken = {step["samples"] for step in life["steps"]} - {share}
    return f"it takes {min(taken)} samples a step; its share is {share}." if taken else ""


def _gradients(view, life):
    first = view.case_result.seen[0].output
    right = first.setdefault("right", RightGradients(first))  # ranks share it
    for step in life["steps"]:
        yield step["number"], step["gradient"].double(), *right.of(step)


def is_undivided(view, life, expected):
    """
    Return a fact if a gradient is the sum over the parts of a step.
    """
    num_parts = GLOBAL_BATCH // view.case.world_size // MICRO_BATCH
    for number, got, right, error in _gradients(view, life):
        is_off = bool(((got - right).abs() > error).any())
        if is_off and bool(((got - num_parts * right).abs() <= num_parts * error).all()):
            return f"the gradient of step {number} is {num_parts} times the mean over its samples."
    return ""


def is_no_mean(view, life, expected):
    """
    Return a fact if a gradient is not the mean over the batch, with its distance.
    """
    for number, got, right, error in _gradients(view, life):
        if not bool(((got - right).abs() <= error).all()):
            off = float((got - right).norm() / right.norm())
            return (
                f"the gradient of step {number} is not the mean over all its samples. The distance "
                f"between the two is {off:.2g} of the norm of the mean."
            )
    return ""


def talks_too_much(view, life, expected):
    """
    Return a fact if ranks communicate more than once in a step.
    """
    most, num = len(expected), life["num_syncs"]
    if num > most:
        return f"backward makes {num} all-reduces in {most} steps."
    between = life["num_between"]
    if num + between > most:
        return f"there are {between} other calls in {most} steps, apart from loading and saving."
    return ""


_OF_A_LIFE = (
    counts_wrongly,
    makes_other_steps,
    saves_other_steps,
    writes_alone,
    takes_too_many,
    takes_other_share,
    is_undivided,
    is_no_mean,
)
"""
The functions that find a wrong result of a life, in the order in which they are tried.
"""


def _differs_in_bits(view):
    """
    Return a fact if two runs with equally many ranks have other weights at a step before a kill.
    """
    lives = view.output["lives"]
    pairs = zip(lives.get("killed", {"steps": []})["steps"], lives["whole"]["steps"], strict=False)
    for step, other in pairs:
        if not equal(step["weights"], other["weights"]):
            return (
                f"Step {step['number']} does not begin with the same weights, to the last bit, in "
                "two runs on the same number of ranks."
            )
    return ""


def restores_otherwise(view):
    """
    Return a fact if a resumed run does not begin with the saved state.
    """
    if _differs_in_bits(view):
        return ""  # the restored state may be right then
    lives = view.output["lives"]
    done = (view.case["killed in step"] - 1) // EVERY * EVERY
    for part in ("weights", "optimizer"):
        if not equal(lives["resumed"]["steps"][0][part], lives["whole"]["steps"][done][part]):
            what = "its weights are" if part == "weights" else "the state of its optimizer is"
            return f"After the kill, with {done} steps on the disk: {what} not as saved."
    return ""


def goes_on_otherwise(view):
    """
    Return a fact if a run differs from the run without a kill for any other reason.
    """
    for when, life, _ in _lives(view):
        if life["num_late"]:
            return f"{when}: it saves after the run was killed."
        for step, later in pairwise([*life["steps"], life["end"]]):
            if not is_update(step, later):
                return (
                    f"{when}: in step {step['number']}, the weights change in another way than "
                    "run.optimizer, as it was created, would change them."
                )
    lives = view.output["lives"]
    if "killed" in lives and not equal(lives["resumed"]["end"], lives["whole"]["end"]):
        end = "On as many ranks as before the kill, the last bits differ from a run without a kill."
        return _differs_in_bits(view) or end
    return ""
