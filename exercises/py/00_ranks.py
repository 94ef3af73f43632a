# %% [markdown] tags=["title"]
# # Exercise 00: a first answer, and how it is checked
#
# 10 minutes, after lesson `00_ranks`. Run the cells from the top. In a task, replace the line that
# raises with your code, run that cell, and then run the check below it.
#
# A check prints one line that begins with `ok`, or it says what is wrong and gives a hint. If you are
# stuck, run `hint("00.1")` in a new cell: it gives the next hint. To begin again, run
# `ddp-lessons reset 00_ranks` in a terminal: it restores the exercise as it was, and keeps your
# answer in a file next to it. (If the terminal does not find the command, use
# `.venv/bin/ddp-lessons` in the course's folder.)

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import hint
from ddp_lessons.checks import ranks as check

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 00.1 Distribute items to the ranks
#
# Write `my_items(items)`. All ranks call it with the same list, and each rank returns its own share
# of that list, as a list. With w ranks, rank r gets the items at the positions r, r + w, r + 2w and
# so on, in this order. So all ranks together return each item exactly once, for any number of ranks.
# Items may be texts, and equal items may occur. The ranks send no message.

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
# Change your function so that it returns `items`, run its cell, and run the check again. The message
# says which rank returned something wrong, what it returned, and what was expected, and it gives the
# hint for that mistake.

# %% tags=["teardown"]
ranks.stop()
