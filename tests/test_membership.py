"""
What a rank lets go of before it leaves its group.
"""

import gc
import weakref

from ddp_lessons.ranks.rank.membership import _empty_frames


class Held:
    """
    Something that a frame holds, such as a DataLoader's iterator.
    """


def test_frames_of_a_traceback_let_go_of_what_they_hold_at_once():
    """
    The garbage collector would end a loader's queues before its worker, and wait 5 s for it.
    """
    found = []

    def raises():
        held = Held()
        found.append(weakref.ref(held))
        raise ValueError(held)

    gc.disable()
    try:
        raises()
    except ValueError as error:
        traceback = error.__traceback__
        error.args = ()
    finally:
        gc.enable()
    # IPython reads the names of all frames when it renders an error.
    assert "held" in traceback.tb_next.tb_frame.f_locals
    assert found[0]() is not None
    _empty_frames(traceback)
    assert found[0]() is None
