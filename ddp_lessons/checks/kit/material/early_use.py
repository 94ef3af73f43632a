"""
Answers that use a tensor while a message is still on its way, into it or out of it.
"""

from ddp_lessons.checks.kit.inside.early import Early
from ddp_lessons.checks.kit.material.digits import call
from ddp_lessons.checks.kit.mistakes import Mistake

EARLY = {
    "early": "What irecv brings is there when the wait for it has returned, and not before. Until "
    "then do not read it, add to it or pass it on.",
    "overwritten": "What isend takes may leave at any time until the wait for it has returned. "
    "Until then do not write into it.",
}
"""
Mistakes of those who do not wait for a message before they use its tensor, and their hints.
"""

_FACTS = {
    "early": "Its {} takes a tensor that is still being received.",
    "overwritten": "Its {} writes into a tensor that is still being sent.",
}


def call_watched(here, answer, arguments_of):
    """
    Call an answer as `digits.call` does, and note what in it uses a message's tensor too early.

    Args:
        here: What the rank knows.
        answer: What the learner has defined.
        arguments_of: Function of a Case that returns its arguments.

    Returns:
        dict: For each mistake of EARLY the name of the call that makes it, or None. Empty on paper,
        where a message comes with the wait for it.
    """
    if here.case.on_paper:
        call(here, answer, arguments_of)
        return {}
    with Early() as early:
        call(here, answer, arguments_of)
    return {"early": early.taken_by, "overwritten": early.written_by}


def refuse_early(played):
    """
    Refuse an answer of which `call_watched` noted something.
    """
    for seen in played.seen:
        for mistake, name in seen.kept.items():
            if name is not None:
                raise played.wrong(mistake, seen.rank, fact=_FACTS[mistake].format(name))


def _early_use(view):
    noted = view.kept.items()
    return next((_FACTS[which].format(name) for which, name in noted if name is not None), "")


EARLY_USE = Mistake(
    "early",
    "Until the wait for a message has returned, neither read the tensor that irecv fills nor write "
    "into the one that isend takes.",
    shows=_early_use,
)
"""
Either mistake of EARLY, for a task whose `act` returns what `call_watched` does.
"""
