# %% [markdown] tags=["title"]
# # Exercise 04: distribute samples
#
# 80 minutes, after lesson `04_samplers`.
# Stuck? `hint("04.1")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import hint
from ddp_lessons.checks import samplers as check

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 04.1 Shard indices
#
# Write what `DistributedSampler` does for you, for any number of samples. All ranks call
# `shard_indices(num_samples, seed, epoch)` with the same three numbers. Return the list of samples
# that this rank sees in this epoch. Samples are numbered from 0.
#
# For N samples and w ranks, each rank gets ceil(N / w) of them. Every sample is on some rank, and
# samples are repeated only to fill up. N may be smaller than w: then the padding in the lesson's
# plain lines is too short.
#
# Another seed or another epoch gives another order, shuffled over all samples. The same seed and epoch
# give the same order again, in every process and in tomorrow's run. A generator that starts with
# `seed + epoch`, as torch's does, is fine, although seed 0 with epoch 1 then equals seed 1 with
# epoch 0.
#
# The cost: no message. Leave the global random states of torch and of Python as they were, because
# dropout draws from torch's.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def shard_indices(num_samples, seed, epoch):
    """
    Return this rank's samples, a list of ceil(num_samples / world_size) numbers.
    """
    # shuffle all samples in the same way on every rank; pad; take this rank's shard
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
# `inputs`, of shape (N, 2) and a floating-point dtype, and `labels`, of shape (N,), are all test
# samples, the same on every rank. N is 1 or more. `predict` stands for a trained model: it takes
# inputs of shape (n, 2), also for n = 0, and returns n predicted labels. Return the fraction of all
# samples that it predicts correctly, a float from 0 to 1, on every rank.
#
# Distribute the work: every sample is evaluated once, and a rank evaluates at most ceil(N / w). N may
# be smaller than w, so a rank may have no sample. The lesson's lines use two all-reduces. Here the
# cost for each rank is 1 collective, and its input has at most 16 bytes.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def exact_accuracy(predict, inputs, labels):
    """
    Return the number of correct predictions, divided by the number of all samples.
    """
    # solution
    rank, world_size = dist.get_rank(), dist.get_world_size()
    own_inputs, own_labels = inputs[rank::world_size], labels[rank::world_size]
    num_right = (predict(own_inputs) == own_labels).sum()
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
# The lesson's repair loads the batches that were seen before the stop, and throws them away. Write a
# sampler that skips them. A run that is killed starts again with new objects, and loads the state
# that was saved; its sampler then yields the very next sample. The class below inherits from torch's
# sampler, whose `__iter__` yields this rank's shard of an epoch. Fill its four gaps.
#
#     sampler = ResumableSampler(dataset, seed)      # in every run
#     sampler.load_state_dict(state)                 # only after a restart
#     for epoch in ...:                              # after a restart, first the epoch it was in
#         sampler.set_epoch(epoch)
#         for batch in DataLoader(dataset, batch_size, sampler=sampler):
#             ...
#             state = sampler.state_dict()           # saved by one rank, for all
#
# The state is a dictionary with at most 4 numbers, the same on every rank. It must not change after it
# was returned, nor when it is loaded. A second restart in the same epoch must work, too. If the state
# was taken after the last batch, its epoch has no samples left.
#
# After `load_state_dict` it makes no difference whether the loop calls `set_epoch` with the same
# epoch or not. If it calls `set_epoch` with another epoch, that epoch starts at its beginning.
#
# Without a restart, the loop calls `set_epoch` before every pass. A second pass without
# `set_epoch` may yield anything, and is not checked: torch's sampler repeats the epoch, and a sampler
# that counts up to the end yields nothing.
#
# The picture shows one epoch in three runs: the first was killed after step 0, the second after
# step 1.

# %% tags=["answer"]
# %%px
from torch.utils.data import DistributedSampler


class ResumableSampler(DistributedSampler):
    """
    Yield this rank's shard of an epoch, and resume in it after a restart.
    """

    def __init__(self, dataset, seed):
        super().__init__(dataset, seed=seed)
        self.num_given = 0  # samples of this epoch that this rank has yielded so far

    def set_epoch(self, epoch):
        """
        Start another epoch; if it is self.epoch, resume in it.
        """
        # solution
        if epoch != self.epoch:
            self.num_given = 0
        super().set_epoch(epoch)
        # end of solution

    def __iter__(self):
        own_samples = list(super().__iter__())  # this rank's shard of the epoch
        # solution
        for index in own_samples[self.num_given :]:
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
        Resume where the state was taken.
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
# The lesson's shares, `num_samples * throughput / total`, are fractions in general. Samples are
# whole, so the shares must be rounded, and still add up.
#
# Each rank passes its own throughput as `speed`, in samples per second: a tensor of shape (1,), float64.
# Return how many of `num_samples` samples each rank should get, so that all ranks need about the same
# time: a list of w whole numbers, in rank order, the same on every rank.
#
# The shares add up to `num_samples`. Each differs by less than 1 sample from the exact share, which is
# `num_samples * speed / (sum of all speeds)`. So an exact share that is whole is not changed, and no
# share is negative. `num_samples` is from 0 to 1,000,000, so there may be fewer samples than ranks. The
# cost for each rank: 1 collective, and its input has at most 8 w bytes.
#
# The picture shows two epochs at the speeds of one case: first with equal shares, then with yours.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


def balanced_shares(speed, num_samples):
    """
    Return the shares of all ranks, a list of world_size whole numbers.
    """
    # gather all speeds; compute exact shares; round them, and keep the sum
    # solution
    world_size = dist.get_world_size()
    gathered = [torch.empty_like(speed) for _ in range(world_size)]
    dist.all_gather(gathered, speed)
    speeds = [tensor.item() for tensor in gathered]
    exact = [num_samples * rank_speed / sum(speeds) for rank_speed in speeds]
    shares = [int(share) for share in exact]
    most_cut_first = sorted(range(world_size), key=lambda r: shares[r] - exact[r])
    for rank in most_cut_first[: num_samples - sum(shares)]:
        shares[rank] += 1
    return shares
    # end of solution


# %% tags=["check"]
check.balanced_shares()

# %% tags=["picture"]
check.balanced_shares.picture()

# %% tags=["teardown"]
ranks.stop()
