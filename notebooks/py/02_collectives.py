# %% [markdown] tags=["title"] minutes=[44, 39]
# # What moves when ranks talk?
#
# 45 minutes, 4 ranks. This lesson builds on [01_process_group](01_process_group.ipynb), where
# processes joined a group.

# %% [markdown] tags=["why"]
# DDP copies rank 0's first weights and averages gradients without a line of yours. Other numbers reach
# another rank only by a call of your own: a setting that rank 0 has read, the predictions of all ranks
# for one score, or the loss over all shards of the validation data. (A **shard** is one rank's part of
# the data.) A wrong call can leave a plausible wrong number, or stop the job.

# %% [markdown] tags=["goal"]
# After this lesson you can
#
# - **choose** the call that you need, by what each rank gives and gets;
# - **start** a call, compute while it runs, and wait for it later;
# - **read** which rank waits for which when a job stands still, and repair it.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.pictures import collective_picture, exchange_picture

ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## What does a message carry?

# %% [markdown] tags=["explain"]
# A **message** brings numbers from one rank to one other rank. It takes two calls: the sender calls
# `send(tensor, dst=...)`, and the receiver calls `recv(tensor, src=...)`. `dst` is the rank that the
# numbers go to, its destination, and `src` the rank that they come from, its source. The receiver
# brings a tensor of its own, and `recv` writes into it.
#
# Only the numbers travel. They leave in the order of the sender's memory, and fill the receiver's
# memory in that order. Neither shape nor dtype travels, so the receiver must know both before.

# %% tags=["run"]
# %%px
import torch
import torch.distributed as dist
from ddp_lessons.process_group import rank_device

rank, world_size = dist.get_rank(), dist.get_world_size()
# NCCL moves tensors of the GPU's memory. Gloo moves tensors of main memory.
device = rank_device() if dist.get_backend() == "nccl" else "cpu"

# %% [markdown] tags=["predict"]
# Rank 0 sends a matrix with 2 rows and 3 columns: 1 2 3 and below it 4 5 6. Rank 1 receives it in a
# matrix with 3 rows and 2 columns. Which number stands in the last row, first column, of rank 1?

# %% tags=["predict"]
predict("last_row_of_rank_one", ...)

# %% tags=["run"]
# %%px
matrix = torch.zeros(3, 2, dtype=torch.int64, device=device)
if rank == 0:
    matrix = torch.arange(1, 7, device=device).view(2, 3)
    dist.send(matrix, dst=1)
elif rank == 1:
    dist.recv(matrix, src=0)
print(matrix.tolist())

# %% [markdown] tags=["read"]
# The last row of rank 1 begins with 5. A matrix lies in memory row after row, on both ranks. So the
# numbers left as 1 2 3 4 5 6, and the receiver's rows became 1 2, 3 4 and 5 6. No error said that the
# shapes differ. Ranks 2 and 3 made no call, and still hold zeros.
#
# In your own code, let both ranks compute the shape from the same settings. If the receiver cannot
# know it, send the shape first, as a message of its own.

# %% tags=["check"]
received = ranks.view["matrix"][1]
assert received.tolist() == [[1, 2], [3, 4], [5, 6]]
assert not any(matrix.any() for matrix in ranks.view["matrix"][2:])
number = received[2, 0].item()
ok("a message carries numbers, and no shape", last_row_of_rank_one=number)

# %% [markdown] tags=["question"]
# ## Where does a collective write its result?

# %% [markdown] tags=["explain"]
# A **collective** is a call that all ranks of a group must make. The tensors that they exchange have
# the same shape and dtype on all ranks. Four collectives have a **root**: the one rank that gives to
# all (named by `src=`), or gets from all (named by `dst=`).
#
# A collective does not return its result: it writes into a tensor that you bring. If that is the same
# tensor that you give, the call works **in place**: it overwrites what it was given. In this section
# rank r brings 10^r, which is 1, 10, 100 or 1000, so that you can tell where a number came from.
#
# **`broadcast`** writes the root's tensor into the tensors of all other ranks. Use it for what all
# ranks must have alike: first weights, a seed, a setting.

# %% tags=["run"]
# %%px
tensor = torch.tensor([10**rank], device=device)
before = tensor.tolist()
dist.broadcast(tensor, src=0)
after = tensor.tolist()

# %% tags=["picture"]
collective_picture("broadcast", ranks.view["before"], ranks.view["after"])

# %% [markdown] tags=["explain"]
# A call in place has one tensor on each rank. The picture shows it before and after the call, and a
# thick border marks a number that has changed.
#
# **`reduce`** adds the tensors of all ranks, and the root gets the sum. It works in place, too. Use
# it for a total that only one rank needs, such as a loss that rank 0 prints.

# %% tags=["run"]
# %%px
tensor = torch.tensor([10**rank], device=device)
before = tensor.tolist()
dist.reduce(tensor, dst=0)
after = tensor.tolist()

# %% tags=["picture"]
collective_picture("reduce", ranks.view["before"], ranks.view["after"])

# %% [markdown] tags=["read"]
# Rank 0 holds 1111: one digit from each rank. But `reduce` also wrote 1110 and 1100 into the tensors
# of ranks 1 and 2. These are half-finished sums, which Gloo passed on from rank to rank. torch
# promises the result on the root only, so do not use what is left elsewhere.

# %% [markdown] tags=["explain"]
# The next two calls write into tensors that are there only for the result. So the picture shows two
# different things: what a rank gives, and what it gets.
#
# **`scatter`** distributes a list of the root: rank r gets entry r. Only the root brings the list,
# and every rank brings a tensor for its entry. Use it for data that one rank has read or made.

# %% tags=["run"]
# %%px
entries = None
if rank == 0:
    entries = [torch.tensor([10**r], device=device) for r in range(world_size)]
own_entry = torch.zeros(1, dtype=torch.int64, device=device)
dist.scatter(own_entry, entries, src=0)

# %% tags=["picture"]
exchange_picture("scatter", ranks.view["entries"], ranks.view["own_entry"])

# %% [markdown] tags=["explain"]
# **`gather`** is the inverse of `scatter`: every rank gives one tensor, and the root gets all of them
# in rank order. Use it for the predictions of all ranks, to compute one score on rank 0. Only the
# root brings a list to write into, and it needs memory for all these tensors at once.

# %% tags=["run"]
# %%px
gathered = None
if rank == 0:
    gathered = [torch.zeros_like(own_entry) for _ in range(world_size)]
dist.gather(own_entry, gathered, dst=0)

# %% tags=["picture"]
exchange_picture("gather", ranks.view["own_entry"], ranks.view["gathered"])

# %% [markdown] tags=["explain"]
# So each of the four collectives writes into tensors that you bring. `broadcast` and `reduce` have no
# other tensor for the result, so they overwrite yours: **clone it first if you still need it.**

# %% [markdown] tags=["predict"]
# Rank r holds 10^r again. All ranks broadcast from rank 2, and then reduce the same tensor to rank 0.
# Which number does rank 0 hold?

# %% tags=["predict"]
predict("sum_on_rank_zero", ...)

# %% tags=["run"]
# %%px
tensor = torch.tensor([10**rank], device=device)
dist.broadcast(tensor, src=2)
dist.reduce(tensor, dst=0)
if rank == 0:
    print(tensor.item())

# %% [markdown] tags=["read"]
# Rank 0 holds 400. The broadcast wrote the 100 of rank 2 over the tensors of all ranks, so the reduce
# added 100 four times. The numbers 1, 10 and 1000 were lost, because no rank had a clone.

# %% tags=["check"]
sum_on_rank_zero = ranks.view["tensor"][0].item()
assert sum_on_rank_zero == 4 * 100
assert [entry.item() for entry in ranks.view["own_entry"]] == [1, 10, 100, 1000]
assert [entry.item() for entry in ranks.view["gathered"][0]] == [1, 10, 100, 1000]
ok("a collective writes into your tensors", sum_on_rank_zero=sum_on_rank_zero)

# %% [markdown] tags=["question"]
# ## What if all ranks need the result?

# %% [markdown] tags=["explain"]
# The next two collectives have no root: every rank gives, and every rank gets.
#
# **`all_reduce`** works in place. It adds the tensors of all ranks, and writes the sum into the
# tensor of every rank. DDP averages gradients by all-reduces. Use it in your own code for a loss or a
# count over all shards.

# %% tags=["run"]
# %%px
tensor = torch.tensor([10**rank], device=device)
dist.all_reduce(tensor)
print(tensor.item())

# %% [markdown] tags=["explain"]
# `all_reduce` and `reduce` add by default. The argument `op=` chooses another way to combine the
# numbers: `dist.ReduceOp.MAX`, `MIN`, `PRODUCT`, or `AVG` for the mean. With Gloo, `AVG` needs
# floating-point numbers. (Use `AVG` on mean losses only if all ranks have equally many samples.
# Otherwise all-reduce sums and counts, and divide at the end.)

# %% tags=["run"]
# %%px
mean = torch.tensor([10.0**rank], device=device)
dist.all_reduce(mean, op=dist.ReduceOp.AVG)
print(mean.item())

# %% [markdown] tags=["predict"]
# A training loop keeps the sum of its losses in `total`. In each step, every rank adds its own loss
# to `total`, and then `dist.all_reduce(total)` adds up the four totals for the log. To make it
# simple, every loss is 1. Which number does rank 0 log after the third step?

# %% tags=["predict"]
predict("logged_after_three_steps", ...)

# %% tags=["break"]
# %%px
total, log = torch.zeros(1, device=device), []
for step in range(3):
    total += 1  # the loss of this step
    dist.all_reduce(total)
    log.append(int(total))
print(log)

# %% [markdown] tags=["read"]
# Rank 0 logs 84, and so does every rank. Each of the four ranks had three losses of 1, so the right
# number is 12. After the first step the log is right: 4. But from then on `total` holds the sum over
# all ranks, and the next all-reduce adds up four of these sums: 4 times (4 + 1) is 20, and 4 times
# (20 + 1) is 84.
#
# The repair is to all-reduce a clone, so that each rank's own total stays its own.

# %% tags=["mend"]
# %%px
total, mended_log = torch.zeros(1, device=device), []
for step in range(3):
    total += 1  # the loss of this step
    total_of_all = total.clone()
    dist.all_reduce(total_of_all)
    mended_log.append(int(total_of_all))
print(mended_log)

# %% [markdown] tags=["explain"]
# **`all_gather`** is a `gather` for every rank: each rank gives one tensor, and each gets all of them
# in rank order. Use it if every rank needs the results of all, and remember that every rank then
# needs memory for all of them.

# %% tags=["run"]
# %%px
own_number = torch.tensor([10**rank], device=device)
numbers_of_all = [torch.zeros_like(own_number) for _ in range(world_size)]
dist.all_gather(numbers_of_all, own_number)

# %% tags=["picture"]
exchange_picture("all_gather", ranks.view["own_number"], ranks.view["numbers_of_all"])

# %% [markdown] tags=["read"]
# Every rank holds all four numbers. Code for GPUs mostly calls `all_gather_into_tensor`, which writes
# into one tensor in place of a list.
#
# Another collective without a root is `reduce_scatter`: every rank gets a part of a sum. The last section
# headed "More" shows it.

# %% tags=["check"]
logged = ranks.view["log"][0][-1]
assert ranks.view["mended_log"] == [[4, 8, 12]] * 4
assert [tensor.item() for tensor in ranks.view["mean"]] == [277.75] * 4
for numbers in ranks.view["numbers_of_all"]:
    assert [number.item() for number in numbers] == [1, 10, 100, 1000]
ok("an all-reduce overwrites what you give", logged_after_three_steps=logged)

# %% [markdown] tags=["question"]
# ## Must a rank stand still while it waits?

# %% [markdown] tags=["explain"]
# Every call so far was **blocking**: Python goes on only when this rank's part of the call is done.
# (So it is with Gloo; NCCL differs, see below.) One more collective does nothing but block: **`barrier`**
# moves no numbers, and returns when all ranks have called it. Use it if all ranks must wait, for
# example until rank 0 has written a file. In the next cell, rank 0 comes late.

# %% tags=["run"]
# %%px
import time

if rank == 0:
    time.sleep(0.3)
arrived_at_s = time.monotonic()  # a clock that all processes of a machine share
dist.barrier()
left_at_s = time.monotonic()

# %% tags=["run"]
has_waited = min(ranks.view["left_at_s"]) > max(ranks.view["arrived_at_s"])
print(f"no rank left before the last one had arrived: {has_waited}")

# %% [markdown] tags=["explain"]
# So ranks 1 to 3 stood still. A rank that has other work need not stand still: with `async_op=True` a
# collective only starts, and returns a **handle** at once. The rank computes something else, and
# calls `handle.wait()` before it needs the result:

# %% tags=["run"]
# %%px
total = torch.tensor([10**rank], device=device)
handle = dist.all_reduce(total, async_op=True)  # start
product = torch.ones(100, 100) @ torch.ones(100, 100)  # compute
handle.wait()
print(total.item())

# %% [markdown] tags=["explain"]
# DDP works like that: while `backward()` still computes some gradients, others are already being
# all-reduced. For messages, `isend` and `irecv` return a handle at once. (The i stands for
# immediate.)
#
# `handle.is_completed()` tells whether the collective is complete.

# %% [markdown] tags=["predict"]
# In the first cell below, ranks 1 to 3 start an all-reduce, multiply two matrices, and then ask their
# handles. Rank 0 starts its all-reduce in the second cell. How many of the three handles are complete
# when the ranks ask?

# %% tags=["predict"]
predict("complete_handles", ...)

# %% tags=["run"]
# %%px
group = dist.new_group()  # a new one, so that you can run this cell again
total, handle, is_complete = torch.tensor([10**rank], device=device), None, False
if rank != 0:
    handle = dist.all_reduce(total, group=group, async_op=True)
    product = torch.ones(100, 100) @ torch.ones(100, 100)
    is_complete = handle.is_completed()
    print(f"product ready; all-reduce complete: {int(is_complete)}")

# %% tags=["run"]
# %%px
if handle is None:  # on rank 0
    handle = dist.all_reduce(total, group=group, async_op=True)
handle.wait()
group = None  # no later cell uses it
print(f"after wait: {total.item()}")

# %% [markdown] tags=["read"]
# 0 of the three handles were complete, although all three products were ready. A sum cannot be
# complete before the last rank has given its number, and rank 0 was the last. After `wait` all ranks
# hold 1111.
#
# **Until `wait()` returns, the tensor belongs to the call**: neither read it nor write to it. If you
# read it too early, you may see a half-finished sum. If you write to it, the other ranks may get
# either the old or the new number.
#
# With NCCL, even a call without `async_op` returns to Python early, and so does `wait()`: only the GPU
# waits. After `wait()` you may use the tensor as usual, because GPU work that you start later queues
# behind the call, and `.item()` waits for it. `barrier` makes Python wait with NCCL, too.

# %% tags=["check"]
assert has_waited
num_complete = sum(ranks.view["is_complete"])
assert [total.item() for total in ranks.view["total"]] == [1111] * 4
ok("a handle is there before the result", complete_handles=num_complete)

# %% [markdown] tags=["question"]
# ## What happens when calls do not meet?

# %% [markdown] tags=["explain"]
# With Gloo, `send` blocks until the receiver has called `recv`, however small the message is, and
# `recv` blocks until the numbers are there. In the next cell, the four ranks form a circle. Each rank
# sends a number to the next rank, its right neighbour, and then receives from the rank on its left.
# The right neighbour of rank 3 is rank 0.

# %% tags=["break", "raises-exception"]
# %%px
right, left = (rank + 1) % world_size, (rank - 1) % world_size
outgoing = torch.tensor([10**rank], device=device)
incoming = torch.zeros_like(outgoing)
dist.send(outgoing, dst=right)
dist.recv(incoming, src=left)

# %% [markdown] tags=["explain"]
# The report has a line for each rank: the line of the cell where the rank stands (line 1 is the line
# below `%%px`), the call that it is in, and the rank that it waits for. Follow the last column: rank
# 0 waits for rank 1, rank 1 for rank 2, rank 2 for rank 3, and rank 3 for rank 0. It is a circle: all
# ranks send, so no rank reaches its `recv`, and no rank can go on. That is a **deadlock**. A script
# would stand still until the time limit of its group, by default 30 minutes with Gloo and 10 with
# NCCL. Here the ranks were released, as in lesson 00, and have a new group.

# %% [markdown] tags=["predict"]
# In the next cell, rank 0 calls `recv` first and `send` second. The other three ranks still send first.
# How many of the four messages arrive?

# %% tags=["predict"]
predict("messages_that_arrive", ...)

# %% tags=["mend"]
# %%px
if rank == 0:
    dist.recv(incoming, src=left)
    dist.send(outgoing, dst=right)
else:
    dist.send(outgoing, dst=right)
    dist.recv(incoming, src=left)
print(f"received {incoming.item()}")

# %% tags=["run"]
num_arrived = sum(tensor.item() > 0 for tensor in ranks.view["incoming"])
print(f"{num_arrived} of 4 messages arrived")

# %% [markdown] tags=["read"]
# All 4 messages arrive. Rank 0 receives, so the `send` of rank 3 returns, and rank 3 comes to its
# `recv`. So the `send` of rank 2 returns, then that of rank 1, and at last rank 1 receives from rank 0.
# One rank is enough to break the circle.
#
# But the messages move one after the other: with 64 ranks, the last message waits for 63 others. It
# is better to start the send without waiting for it. Each rank then receives, and waits for its send
# at the end:

# %% tags=["mend"]
# %%px
incoming = torch.zeros_like(outgoing)
handle = dist.isend(outgoing, dst=right)
dist.recv(incoming, src=left)
handle.wait()
print(f"received {incoming.item()}")

# %% [markdown] tags=["explain"]
# All four messages can now move at the same time, however many ranks there are. (With NCCL, start the
# send and the receive in one batch: see the last section headed "More".)
#
# Collectives can fail to meet, too. In the next cell, rank 0 is to print the sum of all losses. No
# other rank needs the sum, so the author lets only rank 0 ask for it. Then all ranks are to meet at a
# barrier.

# %% tags=["break", "raises-exception"]
# %%px
loss = torch.tensor([10.0**rank], device=device)
if rank == 0:
    dist.reduce(loss, dst=0)
    print(f"sum of losses: {loss.item():.0f}")
dist.barrier()

# %% [markdown] tags=["read"]
# By default torch does not compare the names of collectives. (With the environment variable
# `TORCH_DISTRIBUTED_DEBUG=DETAIL` it does.) It pairs them by order: the first collective of each rank
# in this group, then the second, and so on. Here the first collective was `reduce` on rank 0, and
# `barrier` on ranks 1 to 3. Rank 0 waits for the numbers of ranks 1, 2 and 3, and they wait for rank 0 to
# come to the barrier. (`float[1]` stands for a tensor with one number of type float. `collective 1` means
# the first collective of this group: the ranks got a new group after the first deadlock.)
#
# Outside of this course torch prints no such table, and the job stands still. So the rule is: **all
# ranks of a group make the same collectives in the same order.** Keep the collective outside of the
# `if`, and put only `print` inside.

# %% tags=["mend"]
# %%px
loss = torch.tensor([10.0**rank], device=device)
dist.reduce(loss, dst=0)
if rank == 0:
    print(f"sum of losses: {loss.item():.0f}")
dist.barrier()

# %% tags=["check"]
assert num_arrived == 4
assert [tensor.item() for tensor in ranks.view["incoming"]] == [1000, 1, 10, 100]
assert ranks.view["loss"][0].item() == 1111
ok("both deadlocks are repaired", messages_that_arrive=num_arrived)

# %% [markdown] tags=["question"]
# ## More: what if your tensor is a column of a matrix?

# %% [markdown] tags=["explain"]
# A tensor is **contiguous** if its numbers lie side by side in memory, in order. A column is not
# contiguous, because the rest of a row lies between two of its numbers:
#
# ```text
# matrix     its memory
#  1  2
#  3  4      1  2  3  4  5  6
#  5  6      ^     ^     ^       the column matrix[:, 0]
# ```
#
# Gloo does not know of these gaps. A column has three numbers, so the root reads, and the other ranks
# write, three numbers side by side, from the column's first number on.

# %% [markdown] tags=["predict"]
# Rank 0 holds the matrix of the drawing, and the other ranks have one full of zeros. All ranks
# broadcast its first column from rank 0, as it is. What does rank 3 hold afterwards?
#
# - (a) `[[1, 0], [3, 0], [5, 0]]`
# - (b) `[[1, 0], [2, 0], [3, 0]]`
# - (c) `[[1, 2], [3, 0], [0, 0]]`

# %% tags=["predict"]
predict("matrix_of_rank_three", "...")

# %% tags=["break"]
# %%px
matrix = torch.arange(1, 7, device=device).view(3, 2)
if rank != 0:
    matrix = torch.zeros_like(matrix)
dist.broadcast(matrix[:, 0], src=0)
print(matrix.tolist())

# %% [markdown] tags=["read"]
# The answer is (c), and no error was raised. Rank 0 read 1 2 3, which is not its column. The other
# ranks wrote these three numbers side by side: over the first row, and over the first number of the
# second row. So the 2 overwrote a number of the other column, and the last row was not reached.
#
# With Gloo we saw the same from `scatter`, `reduce` and `all_reduce`, whereas `send` raises an error.
# With NCCL a collective should raise an error, because torch checks its tensors there. We did not run
# that.
#
# A transposed matrix and a slice of columns are not contiguous either; `tensor.is_contiguous()`
# tells. The repair is a contiguous copy: the call works on the copy, and then the copy is written
# back.

# %% tags=["mend"]
# %%px
mended = matrix if rank == 0 else torch.zeros_like(matrix)
column = mended[:, 0].contiguous()  # a copy, because a column is not contiguous
dist.broadcast(column, src=0)
mended[:, 0] = column
print(mended.tolist())

# %% tags=["check"]
assert [column.tolist() for column in ranks.view["column"]] == [[1, 3, 5]] * 4
choices = {
    "[[1, 0], [3, 0], [5, 0]]": "a",
    "[[1, 0], [2, 0], [3, 0]]": "b",
    "[[1, 2], [3, 0], [0, 0]]": "c",
}
letter = choices[str(ranks.view["matrix"][3].tolist())]
ok("Gloo's collectives need contiguous tensors", matrix_of_rank_three=letter)

# %% [markdown] tags=["question"]
# ## More: what does an object bring along?

# %% [markdown] tags=["explain"]
# All calls above move tensors. `broadcast_object_list`, `all_gather_object` and others move any
# Python object, such as a dictionary of settings. The sender turns the object into a **pickle**:
# bytes that say how to build the object again, and which functions to call for that. A receiver
# **unpickles** it: it calls these functions. A class can say in its method `__reduce__` which
# function is to be called, and with which arguments.

# %% [markdown] tags=["predict"]
# Rank 0 broadcasts an object whose pickle names the function `os.getpid`. That function returns the ID
# of the process that calls it (a number of the operating system, not the rank). On how many of the
# four ranks will it run?

# %% tags=["predict"]
predict("ranks_that_ran_it", ...)


# %% tags=["run"]
# %%px
import os


class Parcel:
    def __reduce__(self):  # to build it again, call os.getpid without arguments
        return os.getpid, ()


box = [Parcel() if rank == 0 else None]
dist.broadcast_object_list(box, src=0)
has_run_it = box[0] == os.getpid()  # the box holds this process's own number

# %% tags=["run"]
num_ran = sum(ranks.view["has_run_it"])
print(f"{num_ran} of 4 ranks ran it")

# %% [markdown] tags=["read"]
# It ran on 3 ranks: on all but rank 0, because `broadcast_object_list` does not unpickle on the rank
# that sends. (In `all_gather_object` every rank unpickles all objects, also its own.) So an object
# can run any code on the ranks that receive it. Take objects only from ranks that you trust.
#
# Objects also cost more than tensors. In the next cell, `trace`, a function of this course, notes the
# collectives behind one call, and the bytes of each.

# %% tags=["run"]
# %%px
from ddp_lessons.trace import trace

with trace() as events:
    dist.broadcast_object_list([{"loss": 0.5}], src=0)
sizes = [max(event.input_bytes, event.output_bytes) for event in events]
print(f"{len(sizes)} collectives, of {sizes} bytes")

# %% [markdown] tags=["read"]
# The one call became 2 collectives. The first carried one number of 8 bytes, the length of the pickle,
# so that the receivers can make room for it. The second carried the pickle, 31 bytes: the key, the
# number with its 8 bytes, and the bytes that say how to build a dictionary.
#
# **Use objects for settings, once. Use tensors in the training loop.**

# %% tags=["check"]
assert ranks.view["has_run_it"] == [False, True, True, True]
assert all(len(sizes) == 2 and sizes[0] == 8 for sizes in ranks.view["sizes"])
ok("receivers of an object run its code", ranks_that_ran_it=num_ran)

# %% [markdown] tags=["question"]
# ## More: what if each rank has something else for each rank?

# %% [markdown] tags=["explain"]
# Two collectives take a list from each rank that has an entry for every rank. Write the entries of each
# rank as one row of a table:
#
# - In **`all_to_all`**, rank r gets column r as it is. Use it if each rank has sorted its samples by the
#   rank that is to process them. `all_to_all_single` does it with one tensor, of which part t goes to rank
#   t.
# - In **`reduce_scatter`**, rank r gets the sum of column r. Use it if each rank needs only its own part of
#   a sum.

# %% [markdown] tags=["predict"]
# Rank 0 holds 1 2 3 4, rank 1 holds 10 20 30 40, rank 2 holds 100 200 300 400, and rank 3 holds 1000
# 2000 3000 4000. All ranks call `all_to_all`. Which number stands third on rank 1 after the call?

# %% tags=["predict"]
predict("third_on_rank_one", ...)

# %% tags=["run"]
# %%px
row = torch.arange(1, world_size + 1, device=device) * 10**rank
column = torch.zeros_like(row)
dist.all_to_all_single(column, row)

# %% tags=["picture"]
exchange_picture("all_to_all_single", ranks.view["row"], ranks.view["column"])

# %% [markdown] tags=["read"]
# The third number on rank 1 is 200. The third number comes from rank 2, and it is the entry that rank
# 2 has for rank 1, its second one. In the picture, each column on the left has become a row on the
# right. Now the same rows with `reduce_scatter`:

# %% tags=["run"]
# %%px
entries = list(row.split(1))  # one tensor with one number for each rank
own_sum = torch.zeros(1, dtype=torch.int64, device=device)
dist.reduce_scatter(own_sum, entries)

# %% tags=["picture"]
exchange_picture("reduce_scatter", ranks.view["entries"], ranks.view["own_sum"])

# %% [markdown] tags=["read"]
# Rank 1 gets 2222, the sum of the four numbers that `all_to_all` brought. Each rank has one of the four
# sums. With an all-gather every rank gets all of them, and so with one all-reduce:

# %% tags=["run"]
# %%px
sums = [torch.zeros_like(own_sum) for _ in range(world_size)]
dist.all_gather(sums, own_sum)
whole = row.clone()
dist.all_reduce(whole)
print("equal to one all_reduce:", torch.equal(whole, torch.cat(sums)))

# %% [markdown] tags=["read"]
# **A reduce-scatter and then an all-gather is an all-reduce.** Lesson 03 builds an all-reduce from these
# two halves. (How many bytes a rank sends for a call is another question, which lesson 03 answers.) Code
# for GPUs mostly calls `reduce_scatter_tensor`, which takes one tensor in place of a list.
#
# If each rank needs something from one or two ranks only, as in the circle of the first deadlock, use
# messages. With NCCL, start them in one batch: NCCL may run each rank's send before its receive, and then
# every rank waits in its send, as before. A `P2POp` describes one call (P2P: point to
# point) without making it, and `batch_isend_irecv` starts all of them at once and returns their handles:

# %% tags=["run"]
# %%px
right, left = (rank + 1) % world_size, (rank - 1) % world_size
incoming = torch.zeros_like(own_sum)
operations = [
    dist.P2POp(dist.isend, own_sum, right),
    dist.P2POp(dist.irecv, incoming, left),
]
for handle in dist.batch_isend_irecv(operations):
    handle.wait()
print(f"sent {own_sum.item()}, received {incoming.item()}")

# %% tags=["check"]
columns = [column.tolist() for column in ranks.view["column"]]
assert columns == [[k * 10**r for r in range(4)] for k in range(1, 5)]
sums_of_columns = [sum(own) for own in columns]
assert all(whole.tolist() == sums_of_columns for whole in ranks.view["whole"])
received = [incoming.item() for incoming in ranks.view["incoming"]]
assert received == [4444, 1111, 2222, 3333]
ok("rows became columns, or their sums", third_on_rank_one=columns[1][2])

# %% [markdown] tags=["cluster"]
# ## On your own cluster
#
# This script, `evaluate.py`, computes a score over all GPUs. Its data are random, so that it needs no
# files. (It was run by the commands below, with two processes a node and both nodes on one machine,
# without GPUs: with `"gloo"` in place of `"nccl"` and `"cpu"` in place of `"cuda"`, and without
# `set_device` and `device_id`.)
#
# ```python
# import os
# import torch
# import torch.distributed as dist
#
# local_rank = int(os.environ["LOCAL_RANK"])
# torch.cuda.set_device(local_rank)
# dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))
# rank, world_size = dist.get_rank(), dist.get_world_size()
#
# threshold = torch.tensor([0.5 if rank == 0 else 0.0], device="cuda")  # only rank 0 has read it
# dist.broadcast(threshold, src=0)
#
# scores = torch.rand(1000, device="cuda")  # the scores of this rank's shard
# counts = torch.stack([(scores > threshold).sum(), torch.tensor(len(scores), device="cuda")])
# handle = dist.all_reduce(counts, async_op=True)
# own_mean = scores.mean(dim=0, keepdim=True)  # computed meanwhile
# handle.wait()
#
# means = [torch.zeros_like(own_mean) for _ in range(world_size)] if rank == 0 else None
# dist.gather(own_mean, means, dst=0)  # outside of the `if`
# if rank == 0:
#     print(f"above the threshold: {counts[0].item()} of {counts[1].item()}")
#     print("means of the ranks:", [round(mean.item(), 3) for mean in means])
# dist.destroy_process_group()
# ```
#
# On one node with 8 GPUs:
#
# ```console
# $ torchrun --standalone --nproc-per-node=8 evaluate.py
# ```
#
# On two nodes, `node1` and `node2`, run the same command on both:
#
# ```console
# $ torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d \
#     --rdzv-endpoint=node1:29500 --rdzv-id=42 evaluate.py
# ```
#
# | line or option | what it is for |
# | --- | --- |
# | `LOCAL_RANK` | torchrun sets it to the number of the rank on its node, which is also the number of its GPU |
# | `set_device(local_rank)`, `device_id=` | each rank uses its own GPU of the node; without `set_device`, `"cuda"` is the first GPU for all ranks |
# | `device="cuda"` for each tensor | NCCL moves tensors of the GPU's memory only |
# | `broadcast(threshold, src=0)` | all ranks bring a tensor of the same shape and dtype, also those that only receive |
# | `async_op=True`, `handle.wait()` | `counts` belongs to the call until `wait`; with NCCL the GPU waits, and `.item()` later waits for the GPU |
# | `gather` outside of `if rank == 0` | all ranks make the same collectives in the same order |
# | `--nproc-per-node=8`, `--nnodes=2` | the world size is 8 or 16; the script is the same, and rank 0 needs memory for 8 or 16 tensors in `gather` |
# | `--standalone`, or the three `--rdzv` options | where the ranks meet, as in lesson 01 |
#
# If such a job stands still, look for a collective that depends on `rank`. Lesson 10 shows how to
# find the line on a cluster.

# %% [markdown] tags=["recap"]
# You have chosen calls by what each rank gives and gets, computed while an all-reduce was under way,
# and read and repaired two deadlocks.
#
# Rule of thumb: **make the same collectives in the same order on all ranks, and clone what you still
# need.**
#
# To choose a call, use this table. In each row, n is how many numbers one tensor of that call has (1
# for our `all_gather`, 4 for the `all_reduce` under "More"), and w is the number of ranks. A list holds w
# tensors, so it has `w * n` numbers.
#
# | call | gives | gets | numbers on a rank | use it for | in place |
# | --- | --- | --- | --- | --- | --- |
# | `send`, `recv` | one rank | one rank | n | what one other rank needs | no |
# | `broadcast` | the root | all | n | first weights, a seed, settings | yes |
# | `scatter` | the root | all, a part each | n; root also `w * n` | data that one rank has read or made | no |
# | `gather` | all | the root | n; root also `w * n` | predictions for one score | no |
# | `reduce` | all | the root | n | a total that one rank prints | yes |
# | `all_reduce` | all | all | n | gradients, losses, counts | yes |
# | `reduce_scatter` (More) | all | all, a part each | `w * n` to give, n to get | a sum of which each rank needs a part | no |
# | `all_gather` | all | all | n to give, `w * n` to get | results that all ranks need | no |
# | `all_to_all` (More) | all | all | `w * n` to give, `w * n` to get | samples sorted by rank | no |
# | `barrier` | none | none | none | waiting for all ranks | |
#
# `reduce`, `all_reduce` and `reduce_scatter` add, or combine by `op=`. With Gloo each call blocks until
# this rank's part of it is done, unless you pass `async_op=True`, or use `isend` and `irecv`. With NCCL
# all but `barrier` return as soon as the GPU has the call in its queue. None of these calls is part of
# autograd: no gradient flows back through it.

# %% [markdown] tags=["next"]
# - **Exercise** [02](../exercises/02_collectives.ipynb): all-reduce from reduce and broadcast;
#   all-gather of unequal lengths; an exchange at any distance that cannot deadlock; a broadcast in
#   log2(w) rounds. After the exercise: every collective from messages, in
#   [rounds.py](../ddp_lessons/collectives/rounds.py).
# - **Next lesson** [03](03_ring.ipynb): does all-reduce need a centre?
# - **Sources**: PyTorch's documentation of
#   [torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html), "Point-to-point
#   communication", "Synchronous and asynchronous collective operations" and "Collective functions";
#   S. Arnold, [Writing Distributed Applications with
#   PyTorch](https://docs.pytorch.org/tutorials/intermediate/dist_tuto.html), with pictures of six
#   collectives; NVIDIA's [Point-to-point
#   communication](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/p2p.html), on
#   calls that must be started together.

# %% tags=["teardown"]
ranks.stop()
