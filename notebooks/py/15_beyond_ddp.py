# %% [markdown] tags=["title"]
# # What if the model does not fit?
#
# 10 minutes, 4 ranks; works with any number of ranks from 2. It builds on
# [07_accumulation](07_accumulation.ipynb).

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **draw** the timetable of a pipeline, and foretell how long its ranks do nothing;
# - **run** it with fewer microbatches in memory, and without a deadlock.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.pictures import timetable_picture

ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## How long does a rank of a pipeline do nothing?

# %% [markdown] tags=["predict"]
# In a **pipeline** each rank has some of the layers, a **stage**, and hands on what comes out. The
# batch is cut into **microbatches**, so that several ranks work at a time. One takes a stage 1 tick
# forward, 2 ticks backward. In **GPipe** a stage does all forwards, then all backwards. With 4
# stages and 4 microbatches, how many ticks does a rank do nothing until all are done?

# %% tags=["predict"]
predict("idle_ticks", ...)

# %% tags=["run"]
# %%px
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from ddp_lessons.trace import trace
from ddp_lessons.workloads import digits_batch, load_digits

rank, world_size = dist.get_rank(), dist.get_world_size()

# %% tags=["run"]
# %%px
from ddp_lessons.beyond_ddp.pipeline import Pipeline, WaitingSends, bubble, cut
from ddp_lessons.beyond_ddp.pipeline import gpipe, most_alive, one_f_one_b, timetable
from ddp_lessons.beyond_ddp.pipeline.example import deep_model

x, y = digits_batch(load_digits(), 32)  # the same on all ranks
stages = cut(deep_model(seed=0), world_size, x)[rank::world_size]
pipeline = Pipeline(stages, cross_entropy)
with trace() as events:
    pipeline.step(gpipe(world_size, 4), 32, x, y)
num_kept = pipeline.most_alive
num_bytes = sum(event.input_bytes for event in events if event.is_send)
print(f"kept {num_kept} microbatches at a time, sent {num_bytes} bytes")
spans = timetable(gpipe(4, 4))  # by a clock: real ticks are not alike

# %% tags=["picture"]
rows = ranks.view["spans"][0]
idle = max(row[-1][-1] for row in rows) - 4 * (1 + 2)
print(f"a rank does nothing in {idle} ticks")
timetable_picture(rows)

# %% [markdown] tags=["read"]
# 9 of 21 ticks: w - 1 forwards and w - 1 backwards, however many microbatches there are. The share is
# the **bubble**: (w - 1) / (M + w - 1) for M microbatches, here 3/7. A larger M makes it
# smaller. But from forward to backward a microbatch's activations are kept: here all 4.
#
# In **1F1B**, one forward, one backward, a stage goes backward as soon as a gradient comes. The
# engine runs any table of who does what. First, with sends that wait.

# %% tags=["break", "raises-exception"]
# %%px
table = one_f_one_b(world_size, 4)
Pipeline(stages, cross_entropy, WaitingSends).step(table, 32, x, y)

# %% [markdown] tags=["read"]
# In GPipe all messages go one way, then the other. Here rank 3 sends a gradient back to rank 2, which
# sends an activation forward to rank 3. Both wait in `send`, as in lesson 02, and the others for
# them. The table is fine. What it needs are sends that are kept: `isend`, and a `wait` at the end.

# %% tags=["mend"]
# %%px
pipeline, stage = Pipeline(stages, cross_entropy), stages[0].module
stage.zero_grad()
pipeline.step(table, 32, x, y)
whole = deep_model(seed=0)  # one process with the whole batch
cross_entropy(whole(x), y).backward()
own = cut(whole, world_size, x)[rank].module
pairs = zip(stage.parameters(), own.parameters(), strict=True)
off = max(((p.grad - q.grad).norm() / q.grad.norm()).item() for p, q in pairs)
shares = [bubble(timetable(rows)) for rows in (gpipe(world_size, 4), table)]
print(f"kept {pipeline.most_alive}. Gradients of one process: {off < 1e-5}")
most = [max(map(most_alive, make(4, 64))) for make in (gpipe, one_f_one_b)]

# %% [markdown] tags=["read"]
# Rank 0 kept 4 microbatches, the last rank 1: a stage needs as many as there are stages from it to
# the last. The check asks the tables for 4 stages and 64 microbatches: GPipe would keep 64, 1F1B
# still 4. The bubble is the same.

# %% tags=["check"]
kept = ranks.view["pipeline.most_alive"]
assert kept == [min(4, len(kept) - rank) for rank in range(len(kept))]
assert set(ranks.view["num_kept"]) == {4}
assert ranks.view["most"][0] == [64, 4]
assert max(ranks.view["off"]) < 1e-5  # sums of 32 samples in float32, in another order
assert all(gpipe == one_f_one_b for gpipe, one_f_one_b in ranks.view["shares"])
ok("1F1B keeps less, in the same time", idle_ticks=idle)

# %% [markdown] tags=["question"]
# ## More: how large is the bubble of a rank that has two stages?

# %% [markdown] tags=["predict"]
# Cut the model into twice as many stages, half as long. Rank r of 4 has stages r and r + 4, so
# that a microbatch comes by twice. This is **interleaved** 1F1B, here torch's own. Its table of
# rank 0 has 30 slots, and 14 hold None. A rank has to wait for 3 forwards and 3 backwards of a
# stage as before, and there are 4 microbatches. How many percent of the time is the bubble?

# %% tags=["predict"]
predict("percent_of_two_stages", ...)

# %% tags=["run"]
# %%px
from torch.distributed.pipelining import ScheduleInterleaved1F1B
from ddp_lessons.beyond_ddp.pipeline import interleaved
from ddp_lessons.beyond_ddp.pipeline.example import TorchsOwn, slots_of

both = cut(deep_model(seed=0), 2 * world_size, x)[rank::world_size]
torchs = TorchsOwn(both, ScheduleInterleaved1F1B, world_size)
some = 8 * world_size  # it wants microbatches of one size
torchs.step(x[:some], y[:some])  # first with questions about shapes
with trace() as events:
    torchs.step(x[:some], y[:some])
num_bytes = sum(event.input_bytes for event in events if event.is_send)
num_slots, num_empty = slots_of(torchs.schedule)[rank]
print(f"{num_empty} of {num_slots} slots are None, sent {num_bytes} bytes")
is_ours = torchs.done == interleaved(world_size, world_size, 2)[rank]  # by hooks
spans = timetable(interleaved(4, 4, 2))

# %% tags=["picture"]
percent = round(100 * ranks.view["bubble(spans)"][0])
print(f"bubble: {percent} percent")
timetable_picture(ranks.view["spans"][0])

# %% [markdown] tags=["read"]
# 27, and not 14 of 30: a slot is a place in a list, and takes no particular time. With v stages a
# rank the bubble is (w - 1) / (v M + w - 1). In the picture, b is a rank's second stage. The price:
# stages hand on more often, and rank 0 sends 24576 bytes in place of 8192.

# %% tags=["check"]
assert all(ranks.view["is_ours"])
ok("torch's own order is that of our table", percent_of_two_stages=percent)

# %% [markdown] tags=["recap"]
# You have drawn the timetable of a pipeline and its bubble, and run 1F1B with sends that are kept.
#
# Rule of thumb: **many microbatches for the bubble, 1F1B for the memory, kept sends for both.**

# %% [markdown] tags=["next"]
# - **Exercise** [15](../exercises/15_beyond_ddp.ipynb): a 1F1B schedule. After the exercise:
#   [tables.py](../ddp_lessons/beyond_ddp/pipeline/tables.py).
# - **On your own cluster**: `torch.distributed.pipelining` sends from GPU to GPU:
#   `Schedule1F1B(PipelineStage(module, rank, world_size, device), 16, loss_fn=loss).step(batch)`
#   on rank 0, `.step(target=labels)` on the last, in a script that `torchrun --nproc-per-node 4
#   train.py` starts.
# - **Sources**: Y. Huang and others, [GPipe](https://arxiv.org/abs/1811.06965), NeurIPS 2019, section
#   2.3; D. Narayanan and others, [Efficient Large-Scale Language Model
#   Training](https://arxiv.org/abs/2104.04473), SC 2021, section 2.2; PyTorch's page on
#   [pipelining](https://docs.pytorch.org/docs/stable/distributed.pipelining.html).

# %% tags=["teardown"]
ranks.stop()
