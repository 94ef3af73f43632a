# %% [markdown] tags=["title"]
# # Exercise 15: share out the model
#
# 20 minutes, after lesson `15_beyond_ddp`.
# Stuck? `hint("15.3")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import beyond_ddp as check
from ddp_lessons.checks import hint

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 15.3 A 1F1B schedule
#
# A pipeline has `num_stages` stages, and a step's batch is cut into `num_microbatches`. Return what
# stage `stage` does, in order: a list of pairs such as ("F", 0), the forward of microbatch 0, and
# ("B", 0), its backward. Stages and microbatches are counted from 0.
#
# - Each microbatch goes once forward and once backward through each stage. Their order is yours, as
#   long as nobody waits for ever: a forward needs that of the stage before, and a backward needs
#   its own forward and the backward of the stage behind.
# - A stage **holds** a microbatch from its forward to its backward. The last stage never holds more
#   than 1, the one before it no more than 2, and so on.
# - If a forward takes 1 tick and a backward 2, the last one is done as early as in GPipe: after 3 (M
#   + w - 1) ticks, for M microbatches and w stages. No table is faster.
#
# There may be fewer microbatches than stages, and there may be one stage. Every rank asks for its
# own stage, and nobody sends anything. The check asks about more stages than there are ranks, too.
# Where there are as many, real ranks run your table on the lesson's engine. The lesson's table
# would pass, but leave you nothing to do.

# %% tags=["answer"]
# %%px


def stage_row(stage, num_stages, num_microbatches):
    """
    Return what a stage does, a list of pairs (kind, microbatch).
    """
    # solution
    num_first = min(num_stages - stage, num_microbatches)
    row = [("F", number) for number in range(num_first)]
    for number in range(num_microbatches):
        row.append(("B", number))
        if num_first + number < num_microbatches:
            row.append(("F", num_first + number))
    return row
    # end of solution


# %% tags=["check"]
check.stage_row()

# %% [markdown] tags=["task"]
# Your timetable: 4 stages, 8 microbatches.

# %% tags=["picture"]
check.stage_row.picture()

# %% tags=["teardown"]
ranks.stop()
