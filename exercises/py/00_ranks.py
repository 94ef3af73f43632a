# %% [markdown] tags=["title"]
# # Exercise 00: a first answer, and how it is checked
#
# 10 minutes, after lesson `00_ranks`. Run the cells from the top. In a
# task, write your code in place of the line that raises, run that cell, then run the check below it.
#
# A check prints one line that begins with `ok`, or says what is wrong and gives a hint. Stuck?
# `hint("00.1")` in a cell of your own gives the next hint. `ddp-lessons reset 00_ranks` in a
# terminal brings the blank back, and keeps your answer in a file beside it. (Where the command is not
# found, it is `.venv/bin/ddp-lessons` in the course's folder.)

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import hint
from ddp_lessons.checks import ranks as check

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 00.1 Share items out
#
# Every rank gets the same list. Return the items of this rank: with w ranks, rank r takes those at
# the places r, r + w, r + 2w and so on, in their order. All ranks together have each item once,
# whatever the number of ranks. Items may be equal, or be texts. Send no message.

# %% tags=["answer"]
# %%px
import torch.distributed as dist


def my_items(items):
    """
    Return this rank's share of a list, as a list.
    """
    # solution
    return items[dist.get_rank() :: dist.get_world_size()]
    # end of solution


# %% tags=["check"]
check.my_items()

# %% tags=["picture"]
check.my_items.picture()

# %% [markdown] tags=["task"]
# ## Try a wrong answer, too
#
# Change your function so that it returns `items`, run it, and check it again. The message says on
# which rank it went wrong, what came back, what was expected, and gives the hint for that mistake.

# %% tags=["teardown"]
ranks.stop()
