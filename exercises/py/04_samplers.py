# %% [markdown] tags=["title"]
# # Exercise 04: share samples out
#
# 45 minutes, after lesson `04_samplers`.
# Stuck? `hint("04.1")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import hint
from ddp_lessons.checks import samplers as check

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 04.1 Shard indices
#
# Write what `DistributedSampler` does for you. All ranks call `shard_indices(num_samples, seed,
# epoch)` with the same three numbers. Return the list of samples that this rank sees in this epoch.
# Samples are numbered from 0.
#
# For N samples and w ranks, each rank gets ceil(N / w) of them. Every sample is on some rank, and
# repeats only fill up. N may be smaller than w. Another seed or another epoch gives another order,
# shuffled over all samples; the same two give the same one again, in every process and in
# tomorrow's run.
#
# The price: no message. And leave the global random states of torch and of Python as they were:
# dropout draws from torch's.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def shard_indices(num_samples, seed, epoch):
    """
    Return this rank's samples, a list of ceil(num_samples / world_size) numbers.
    """
    # shuffle all samples, on every rank alike; fill up; cut out this rank's share
    # solution
    rank, world_size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(num_samples, generator=generator).tolist()
    length = -(-num_samples // world_size)
    padded = order * world_size
    return padded[rank : length * world_size : world_size]
    # end of solution


# %% tags=["check"]
check.shard_indices()

# %% tags=["picture"]
check.shard_indices.picture()

# %% [markdown] tags=["task"]
# ## 04.2 Exact accuracy
#
# `inputs`, of shape (N, 2) and some dtype with a fraction, and `labels`, of shape (N,), are all test
# samples, the same on every rank. N is 1 or more. `predict` plays a trained model: it takes inputs of shape (n, 2), also for n = 0, and
# returns n predicted labels. Return the share of samples that it gets right, a float from 0 to 1,
# on every rank.
#
# Share the work: every sample is evaluated once, and at most ceil(N / w) on a rank. N may be
# smaller than w, so a rank may have none. The price for each rank: 1 collective, and 16 bytes at
# most go into it.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def exact_accuracy(predict, inputs, labels):
    """
    Return how many of all samples predict gets right, divided by their number.
    """
    # solution
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine, labels_of_mine = inputs[rank::world_size], labels[rank::world_size]
    num_right = (predict(mine) == labels_of_mine).sum()
    dist.all_reduce(num_right)
    return num_right.item() / len(inputs)
    # end of solution


# %% tags=["check"]
check.exact_accuracy()

# %% tags=["picture"]
check.exact_accuracy.picture()

# %% [markdown] tags=["task"]
# ## 04.3 A sampler that resumes in the middle of an epoch
#
# A run that is killed begins again with new objects, and loads what it has saved. Make a sampler
# that then goes on with the very next sample. The class below starts from torch's, whose `__iter__`
# gives this rank's share of an epoch. Fill its four gaps.
#
#     sampler = ResumableSampler(dataset, seed)      # in every run
#     sampler.load_state_dict(state)                 # only after a restart
#     for epoch in ...:                              # after a restart, first the epoch it was in
#         sampler.set_epoch(epoch)
#         for batch in DataLoader(dataset, batch_size, sampler=sampler):
#             ...
#             state = sampler.state_dict()           # saved by one rank, for all
#
# The state is a dictionary with at most 4 numbers, the same on every rank. Once it is taken it stays
# as it is, also when it is loaded. A second restart in the same epoch must work too. If the state was taken after the last batch, nothing is left of its epoch.
# After `load_state_dict` it makes no difference whether the loop calls `set_epoch` with the same
# epoch or not. With another epoch, it begins at that epoch's beginning.
#
# The picture shows one epoch in three runs: the first was killed after step 0, the second after
# step 1.

# %% tags=["answer"]
# %%px
from torch.utils.data import DistributedSampler


class ResumableSampler(DistributedSampler):
    """
    Give this rank's share of an epoch, and go on in the middle of it after a restart.
    """

    def __init__(self, dataset, seed):
        super().__init__(dataset, seed=seed)
        self.num_given = 0  # how many samples of this epoch this rank has given out

    def set_epoch(self, epoch):
        """
        Begin another epoch; if it is the one that self.epoch names, go on in it.
        """
        # solution
        if epoch != self.epoch:
            self.num_given = 0
        super().set_epoch(epoch)
        # end of solution

    def __iter__(self):
        mine = list(super().__iter__())  # this rank's share of the whole epoch
        # solution
        for index in mine[self.num_given :]:
            self.num_given += 1
            yield index
        # end of solution

    def state_dict(self):
        """
        Return what a restart needs: a dictionary of numbers.
        """
        # solution
        return {"epoch": self.epoch, "num_given": self.num_given}
        # end of solution

    def load_state_dict(self, state):
        """
        Go on where the state was taken.
        """
        # solution
        self.epoch, self.num_given = state["epoch"], state["num_given"]
        # end of solution


# %% tags=["check"]
check.ResumableSampler()

# %% tags=["picture"]
check.ResumableSampler.picture()

# %% [markdown] tags=["task"]
# ## 04.4 Balanced shares
#
# Every rank gives its own speed in samples per second: a tensor of shape (1,), float64. Return how
# many of `num_samples` samples each rank should get, so that all need about the same time: a list
# of w whole numbers, in rank order, the same on every rank.
#
# The shares add up to `num_samples`. Each is less than 1 sample away from the exact share, which is
# `num_samples * speed / (sum of all speeds)`. So a share that is whole stays as it is, and none is
# negative. `num_samples` is from 0 to 1,000,000, so there may be fewer samples than ranks. The price
# for each rank: 1 collective, and 8 w bytes at most go into it.
#
# The picture shows what these speeds make of two epochs: first with equal shares, then with yours.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def balanced_shares(speed, num_samples):
    """
    Return the shares of all ranks, a list of world_size whole numbers.
    """
    # tell each other the speeds; compute exact shares; round, and keep the sum
    # solution
    world_size = dist.get_world_size()
    parts = [torch.empty_like(speed) for _ in range(world_size)]
    dist.all_gather(parts, speed)
    speeds = [part.item() for part in parts]
    exact = [num_samples * one / sum(speeds) for one in speeds]
    shares = [int(part) for part in exact]
    neediest = sorted(range(world_size), key=lambda r: shares[r] - exact[r])
    for rank in neediest[: num_samples - sum(shares)]:
        shares[rank] += 1
    return shares
    # end of solution


# %% tags=["check"]
check.balanced_shares()

# %% tags=["picture"]
check.balanced_shares.picture()

# %% tags=["teardown"]
ranks.stop()
