# %% [markdown] tags=["title"]
# # Exercise 13: share out the optimizer's state
#
# 75 minutes, after lesson `13_sharded_optimizer`.
# Stuck? `hint("13.1")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import hint
from ddp_lessons.checks import sharded_optimizer as check

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 13.1 Partition parameters evenly
#
# `sizes` says how many numbers each parameter has. Whole parameters are to get an owner. Return a
# list of as many ranks: for each parameter, in the order of `sizes`, the one that owns it, from 0
# to `world_size` - 1.
#
# It must be even in this sense: no rank could give one of its parameters to another rank so that
# the fuller one of the two gets less full than it was. How full a rank is are the numbers that it
# owns. There may be fewer parameters than ranks, or none, and a parameter may have 0 numbers.
#
# Every rank, a process of its own, must find the same list, and nobody sends anything. The check
# asks about more ranks than run, too.

# %% tags=["answer"]
# %%px


def owners_of(sizes, world_size):
    """
    Return for each parameter the rank that owns it.
    """
    # solution
    owners, loads = [0] * len(sizes), [0] * world_size
    for index in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        owners[index] = loads.index(min(loads))
        loads[owners[index]] += sizes[index]
    return owners
    # end of solution


# %% tags=["check"]
check.owners_of()

# %% [markdown] tags=["task"]
# How many numbers each rank owns in your run.

# %% tags=["picture"]
check.owners_of.picture()

# %% [markdown] tags=["task"]
# ## 13.2 A sharded optimizer for any class
#
# `params` is a list of parameters or, as torch's optimizers take it, of groups: dictionaries with
# "params" and settings of their own. `optimizer_class` is a class of optimizer that looks at each
# number alone, such as `torch.optim.Adam`, and `settings` are what it takes. Ranks begin with equal
# parameters.
#
# - `step(closure=None)`: each rank's `.grad` is that of its own samples. Do what one optimizer of
#   that class would do with the **mean** over ranks. Afterwards all ranks have equal parameters, to
#   the last bit. If there is a closure, call it once, before anything else: it computes the
#   gradients. Return what it returns.
# - `zero_grad()`: no parameter keeps a gradient, but None or zeros.
# - `add_param_group(group)`: one more dictionary, between two steps.
# - `param_groups`: as torch's optimizers have it, with **all** parameters of each group. Whoever
#   sets an "lr" or another setting there changes the next step. So does whoever loads other weights
#   into the parameters.
#
# Together ranks keep the state that one optimizer would keep. No rank keeps state for more numbers
# than 1/w of all, plus those of the largest parameter. Cut parameters, or give them owners, as you
# like; who cuts each one may round up each time. Parameters are contiguous, of one dtype, and there may
# be fewer than ranks. What is frozen stays, and has no gradient; on all ranks one more may be frozen
# between two steps. All others have a gradient on every rank. The lesson's optimizers would pass, but
# leave you nothing to do.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


class ShardedOptimizer:
    """
    Step as one optimizer would, each rank for its part of the numbers.
    """

    def __init__(self, params, optimizer_class, **settings):
        # keep what is needed to make an inner optimizer, and add each group
        # solution
        self.param_groups, self.inner = [], None
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.make = lambda group: optimizer_class([group], **settings)
        params = list(params)
        groups = params if isinstance(params[0], dict) else [{"params": params}]
        for group in groups:
            self.add_param_group(group)
        # end of solution

    def add_param_group(self, group):
        """
        Share out the parameters of a group; the inner optimizer gets this rank's part.
        """
        # solution
        group = {**group, "params": list(group["params"])}
        pieces = [torch.nn.Parameter(self.cut(p.data)) for p in group["params"]]
        own = {**group, "params": pieces}
        if self.inner is None:
            self.inner = self.make(own)
        else:
            self.inner.add_param_group(own)
        self.param_groups.append({**self.inner.param_groups[-1], **group})

    def cut(self, tensor):
        # this rank's piece, a view: whoever steps it steps the tensor
        length = -(-tensor.numel() // self.world_size)
        return tensor.view(-1)[self.rank * length : (self.rank + 1) * length]
        # end of solution

    def step(self, closure=None):
        """
        Make a step by the mean gradient, and return what the closure returns.
        """
        # the closure; mean gradients; the inner step; the new numbers to everybody
        # solution
        loss = None if closure is None else closure()
        for group, own in zip(self.param_groups, self.inner.param_groups, strict=True):
            own.update({name: group[name] for name in group if name != "params"})
            for p, piece in zip(group["params"], own["params"], strict=True):
                piece.grad = None
                if p.requires_grad:
                    mean = p.grad.clone()
                    dist.all_reduce(mean)
                    piece.grad = self.cut(mean / self.world_size)
        self.inner.step()
        for group, own in zip(self.param_groups, self.inner.param_groups, strict=True):
            for p, piece in zip(group["params"], own["params"], strict=True):
                length = -(-p.numel() // self.world_size)
                row = p.data.new_zeros(length)  # the last pieces are padded
                row[: len(piece)] = piece.data
                rows = [torch.empty_like(row) for _ in range(self.world_size)]
                dist.all_gather(rows, row)
                p.data.copy_(torch.cat(rows)[: p.numel()].view_as(p))
        return loss
        # end of solution

    def zero_grad(self):
        """
        Forget the gradients of all parameters.
        """
        # solution
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None
        # end of solution


# %% tags=["check"]
check.ShardedOptimizer()

# %% [markdown] tags=["task"]
# The state that each rank keeps in your run, in numbers, and what one optimizer would keep.

# %% tags=["picture"]
check.ShardedOptimizer.picture()

# %% [markdown] tags=["task"]
# ## 13.3 Its state, saved by 4 and loaded by 2
#
# Here whole parameters have owners. Each rank has a torch `optimizer` over what it owns, in one
# group, and `owned`: the numbers of those parameters in the whole model, in the optimizer's order.
# With another number of ranks, parameters have other owners.
#
# - `save(folder, optimizer, owned)`: write this rank's part into `folder`, a `pathlib.Path` that
#   all ranks see. All ranks save, at the same time. When the last one returns, all must be there.
# - `load(folder, optimizer, owned)`: put into a new optimizer what belongs to its parameters: the
#   state of each, its count of steps too, and all of the group's settings, "lr" and what others
#   there are. Ranks may be more or fewer than those that saved.
#
# The folder is there, and may hold what an earlier `save` has left, perhaps one by more ranks: the
# last one counts. Times of files do not tell: folders are copied. Every parameter has state, and
# every rank owns one at least. Afterwards a rank's optimizer has state for its own parameters only.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist


class OwnedState:
    """
    Save and load the state of optimizers whose parameters have owners.
    """

    def save(self, folder, optimizer, owned):
        """
        Write this rank's part.
        """
        # solution
        state = optimizer.state_dict()
        parts = {owned[place]: one for place, one in state["state"].items()}
        group = state["param_groups"][0]
        settings = {name: group[name] for name in group if name != "params"}
        whole = {"parts": parts, "settings": settings, "ranks": dist.get_world_size()}
        torch.save(whole, folder / f"rank-{dist.get_rank()}.pt")
        # end of solution

    def load(self, folder, optimizer, owned):
        """
        Put what belongs to this rank's parameters into its optimizer.
        """
        # solution
        first = torch.load(folder / "rank-0.pt")
        parts = dict(first["parts"])
        for rank in range(1, first["ranks"]):
            parts |= torch.load(folder / f"rank-{rank}.pt")["parts"]
        state = optimizer.state_dict()
        state["state"] = {place: parts[number] for place, number in enumerate(owned)}
        state["param_groups"][0] |= first["settings"]
        optimizer.load_state_dict(state)
        # end of solution


# %% tags=["check"]
check.OwnedState()

# %% [markdown] tags=["task"]
# Who had saved the state of each parameter, and who has it now.

# %% tags=["picture"]
check.OwnedState.picture()

# %% [markdown] tags=["task"]
# ## 13.4 Bytes foretold
#
# A model in float32, trained by the lesson's optimizers. `sizes` says how many numbers each
# parameter has, and `num_states` how many the optimizer keeps for each of them (its count of steps
# is left out). `stage` is 0 if nothing is sharded and gradients are averaged by an all-reduce, 1 if
# the state is sharded, 2 if gradients are, too. Each parameter is cut into `world_size` pieces, as
# in the lesson: all but the last ones have ceil(n / w) numbers, and in a message all have.
#
# Return four numbers of bytes, in a tuple or list, for **rank 0**, which has the most:
#
# 1. the parameters it holds;
# 2. the gradients it holds when backward is over, before the step;
# 3. the state that it keeps;
# 4. what all collectives of one step write into its tensors: an all-reduce writes a whole, a
#    reduce-scatter a part, an all-gather a whole.
#
# The check runs the model, counts, and compares. It asks about ranks that do not run, too.

# %% tags=["answer"]
# %%px


def foretell(sizes, num_states, stage, world_size):
    """
    Return the bytes of parameters, gradients, state and messages of rank 0.
    """
    # solution
    whole = 4 * sum(sizes)
    cut = 4 * sum(-(-size // world_size) for size in sizes)
    if stage == 0:
        return whole, whole, num_states * whole, whole
    gradients = whole if stage == 1 else cut
    return whole, gradients, num_states * cut, cut + world_size * cut
    # end of solution


# %% tags=["check"]
check.foretell()

# %% [markdown] tags=["task"]
# What you have foretold for your run, and what was counted.

# %% tags=["picture"]
check.foretell.picture()

# %% tags=["teardown"]
ranks.stop()
