# %% [markdown] tags=["title"]
# # What does one number for all ranks mean?
#
# 30 minutes, 4 ranks; works with any number of ranks from 2. It builds on
# [04_samplers](04_samplers.ipynb), where a mean of accuracies misled, and on
# [06_ddp](06_ddp.ipynb), where BatchNorm kept the mean of one rank.

# %% [markdown] tags=["goal"]
# When you are through, you can
#
# - **report** a loss, an F1, a perplexity or a median that does not depend on the split;
# - **write** it down once, and watch it in TensorBoard beside the notebook;
# - **normalise** by the samples of all ranks, on a CPU too.

# %% tags=["setup", "nbval-ignore-output"]
import os, tempfile
from ddp_lessons import ok, predict, start_ranks
from ddp_lessons.metrics import open_board, read_scalars

runs = globals().get("runs") or tempfile.TemporaryDirectory()
os.environ["LESSON_FOLDER"] = runs.name  # ranks inherit it
ranks = start_ranks(4)

# %% [markdown] tags=["question"]
# ## Which numbers may be averaged over ranks?

# %% [markdown] tags=["predict"]
# A language model guesses a text token by token: words, or parts of them. **Perplexity** is e to the
# mean loss of all tokens, and says between how many words the model is torn. Four ranks hold one
# token each. On ranks 0 to 2 the perplexity is 2, on rank 3 it is 32. What is it for all four
# tokens together?

# %% tags=["predict"]
predict("perplexity_of_four_tokens", ...)

# %% tags=["run"]
# %%px
import math, torch, torch.distributed as dist
from ddp_lessons.metrics import Perplexity, mean_of_means
from ddp_lessons.process_group import rank_device

rank, world_size, device = dist.get_rank(), dist.get_world_size(), rank_device()
own = 32 if rank == world_size - 1 else 2
torn = Perplexity()
torn.add(torch.tensor([math.log(own)]))  # the loss of this rank's token
mean, together = mean_of_means(own), torn.compute()
print(f"mean of ranks {mean:.1f}, of all tokens {together:.3g}")

# %% [markdown] tags=["read"]
# 4, not 9.5: the mean is of losses, and e comes last. `Perplexity` adds up two numbers a rank, the
# sum of losses and their count. Any split gives the same sums.
#
# Now a model, and 360 test digits: ranks 0 to 2 have 100 each, rank 3 has 60. The **F1** of a digit
# is twice its right answers, over how many there are of it plus how often it was answered. Below is
# the mean of ten.

# %% tags=["run"]
# %%px
from ddp_lessons.workloads import digits_batch, digits_model, load_digits, train

digits = load_digits().to(device)
half = digits_model(seed=0).to(device)
train(half, *digits_batch(digits, 256), num_steps=30)  # too few; alike on all ranks
tests = digits.test_images, digits.test_labels
images, labels = (whole.split(400 // world_size)[rank] for whole in tests)

# %% tags=["run"]
# %%px
from ddp_lessons.metrics import weighted_mean_of_means
from ddp_lessons.metrics.example import evaluate, numbers_of_all, numbers_of_rank

loss, confusion = evaluate(half, images, labels)  # sums and counts of this rank
own = numbers_of_rank(loss, confusion)
naive = [mean_of_means(one) for one in own]
weighted = [weighted_mean_of_means(one, len(labels)) for one in own]
good = numbers_of_all(loss, confusion)  # adds them up, then divides
whole = numbers_of_rank(*evaluate(half, *tests))  # one process

# %% tags=["run"]
# %%px
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

theirs = []
for metric in (MulticlassAccuracy(10, average="micro"), MulticlassF1Score(10)):
    metric.to(device).update(half(images).argmax(dim=1), labels)
    theirs.append(metric.compute().item())  # of all ranks

# %% tags=["run"]
rows = [ranks.view[name][0] for name in ("naive", "weighted", "good", "whole")]
print("          mean of means   weighted     sums   one process")
for name, *row in zip(("loss", "accuracy", "F1"), *rows, strict=True):
    print("{:8}  {:13.3f} {:10.3f} {:8.3f} {:13.3f}".format(name, *row))
theirs = ranks.view["theirs"][0]
print("torchmetrics: accuracy {:.3f}, F1 {:.3f}".format(*theirs))

# %% [markdown] tags=["read"]
# Add up first and divide last, and four ranks find what one process finds. A mean of means does
# not: for the accuracy it has 0.844 in place of 0.847.
#
# Weighed by samples, a mean over samples is mended. F1 is no such mean: it stays at 0.841, where
# 0.848 is right. `Confusion` counts in int64 which digit was taken for which, and F1 follows from the counts
# of all ranks. torchmetrics finds the same.

# %% tags=["check"]
n = len(ranks)
assert ranks.view["good"] == [ranks.view["good"][0]] * n  # to the last bit
for naive, weighted, good, whole in zip(*rows, strict=True):
    assert abs(good - whole) < 1e-6 < 1e-3 < abs(naive - whole)  # float32 losses
assert weighted < whole - 1e-3  # the last row, F1
assert max(abs(a - b) for a, b in zip(theirs, rows[3][1:], strict=True)) < 1e-6
ok("sums of all ranks, then one division", perplexity_of_four_tokens=4)

# %% [markdown] tags=["question"]
# ## Can ranks find a median without showing their values?

# %% [markdown] tags=["predict"]
# No sum gives a median. But one all-reduce can tell how many scores of all ranks are at most x, for
# an x that ranks agree on. The scores are whole numbers from 0 to 1,023, and ranks know how many
# there are. How many such all-reduces do they need, at worst?

# %% tags=["predict"]
predict("questions_to_a_median", ...)

# %% tags=["run"]
# %%px
from ddp_lessons.metrics import gathered_median, whole_median
from ddp_lessons.trace import collectives, trace

certainty = half(images).softmax(dim=1).amax(dim=1)
scores = (1023 * certainty).long()
naive = mean_of_means(scores.median())
with trace() as events:
    counted = whole_median(scores, 0, 1023)
gathered = gathered_median(scores)
num_questions = len(collectives(events)) - 1  # the first one asks how many scores
print(f"mean of medians {naive}, counted {counted}, gathered {gathered}")
print(f"{num_questions} questions")

# %% [markdown] tags=["read"]
# 10: each answer halves what is left, and 2^10 is 1,024. Counting finds exactly what gathering
# all scores finds, for 8 bytes a question, however many scores there are. The mean of medians is
# another number.

# %% tags=["check"]
assert len(set(ranks.view["counted"])) == 1
assert ranks.view["counted"] == ranks.view["gathered"] != ranks.view["naive"]
ok("a median by counting", questions_to_a_median=ranks.view["num_questions"][0])

# %% [markdown] tags=["question"]
# ## Who writes the number down?

# %% [markdown] tags=["predict"]
# TensorBoard draws curves from files that a `SummaryWriter` makes in a folder. Four ranks each make
# one for the same folder, and write their loss in steps 0 to 4. How many points does TensorBoard
# find in the curve?

# %% tags=["predict"]
predict("points_of_four_writers", ...)

# %% tags=["break"]
# %%px
import os, shutil
from pathlib import Path
from torch.utils.tensorboard import SummaryWriter

folder = Path(os.environ["LESSON_FOLDER"])
shutil.rmtree(folder / "four writers", ignore_errors=True)  # of a run before
dist.barrier()
with SummaryWriter(folder / "four writers") as writer:
    for step in range(5):
        writer.add_scalar("loss", rank + 1 / (1 + step), step)

# %% tags=["run"]
points = read_scalars(f"{runs.name}/four writers", "loss")  # TensorBoard's own reader
print(f"{len(points)} points, at steps {[step for step, _ in points]}")

# %% [markdown] tags=["read"]
# 20 points and no error: each writer has a file of its own. But a folder is one run, and a run has
# one curve, which jumps back to step 0 three times. So one rank writes, and it writes the number of
# all ranks. The others must still take part in finding it.

# %% tags=["mend"]
# %%px
from ddp_lessons.metrics import RankZeroWriter

model = digits_model(seed=0).to(device)
with RankZeroWriter(folder / "one writer") as writer:
    for step in range(5):
        train(model, *digits_batch(digits, 256), num_steps=10)
        loss, _ = evaluate(model, images, labels)
        writer.add_scalar("loss", loss.compute(), step)  # all compute, rank 0 writes

# %% tags=["picture"]
board = open_board(runs.name)  # JupyterLab shows it below; elsewhere, open board.url
board

# %% tags=["check"]
ours = dict(board.scalars("one writer", "loss"))  # what the page draws
assert list(ours) == [0, 1, 2, 3, 4]
assert ours[4] < ours[0] / 2
assert sorted(step for step, _ in points) == sorted([*range(5)] * len(ranks))
ok("one writer, 5 points", points_of_four_writers=len(points))

# %% [markdown] tags=["question"]
# ## Can another process validate meanwhile?

# %% [markdown] tags=["predict"]
# A guide starts a `Process` for the validation, so that the rank can train on. The process is
# forked before training. The rank makes 20 steps, and then the process evaluates the model. How
# many of the 20 steps are in the weights that it has?

# %% tags=["predict"]
predict("steps_that_the_child_sees", ...)

# %% tags=["break"]
# %%px
from ddp_lessons.metrics import ForkedProcess
from ddp_lessons.workloads import accuracy

# On the CPU: what lies on a GPU cannot be forked.
tests, batch = [one.cpu() for one in tests], digits_batch(load_digits(), 256)


def validate(question):
    if question == "sum":
        dist.all_reduce(torch.ones(1, device=device))
        return "there"
    return num_steps, accuracy(model, *tests)

# %% tags=["break"]
# %%px
model, num_steps = digits_model(seed=0), 0
with ForkedProcess(validate) as child:  # killed at the end of the block
    for _ in range(20):
        train(model, *batch, num_steps=1)
        num_steps += 1
    seen, total = child.ask("accuracy", patience_s=30), child.ask("sum", patience_s=1)
now = accuracy(model, *tests)
print(f"child: {seen[0]} of {num_steps} steps, accuracy {seen[1]:.2f}; rank: {now:.2f}")
print("all_reduce in the child, within 1 s:", total or "nothing")

# %% tags=["mend"]
# %%px
with trace() as events:
    _, sharded, _ = numbers_of_all(*evaluate(model, images.cpu(), labels.cpu()))
print(f"{len(labels)} digits here, {len(events)} messages, accuracy {sharded:.2f}")

# %% [markdown] tags=["read"]
# 0 steps. A forked process is a copy of the rank's memory at that moment, and what the rank learns
# later stays in the rank. And nothing came of its all-reduce until we killed it: the threads that
# carry messages are not copied. So [claim C23](claims.md), validate in a separate process beside
# DDP, is **false**. All four would also evaluate all 360 digits.
#
# Sharded and in step with training, each rank evaluates its part, for 2 small all-reduces.

# %% tags=["check"]
assert all(seen[0] == 0 for seen in ranks.view["seen"])
assert "there" not in ranks.view["total"]
assert all(abs(one - ranks.view["now"][0]) < 1e-6 for one in ranks.view["sharded"])
assert sum(ranks.view["len(labels)"]) == 360
ok("C23 is false, old weights and no group", steps_that_the_child_sees=0)

# %% [markdown] tags=["question"]
# ## Whose mean does BatchNorm subtract?

# %% [markdown] tags=["predict"]
# In training, BatchNorm subtracts each channel's mean and divides by its spread: of this rank's
# samples alone. For those of all ranks, a rank sends how many samples it has, and for each channel
# a mean and a sum of squares around it. How many numbers is that, for 64 channels?

# %% tags=["predict"]
predict("numbers_for_the_channels", ...)

# %% tags=["break", "raises-exception"]
# %%px
from ddp_lessons.workloads import batch_norm_model

torchs = batch_norm_model(seed=0)
torchs = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torchs)
torchs(images.cpu())

# %% tags=["run"]
# %%px
from ddp_lessons.metrics import with_sync_batch_norm
from ddp_lessons.metrics.example import first_gradient

tests = digits.test_images, digits.test_labels
right = first_gradient(batch_norm_model(seed=0).to(device), *tests)
plain = first_gradient(batch_norm_model(seed=0).to(device), images, labels)
synced = with_sync_batch_norm(batch_norm_model(seed=0).to(device))
with trace() as events:
    ours = first_gradient(synced, images, labels)
sent = [(event.name, event.input_bytes // 8) for event in events]
print("numbers sent:", sent)

# %% tags=["mend"]
# %%px
totals = [plain.clone(), ours.clone()]
for total in totals:
    dist.all_reduce(total)  # the losses are sums, so gradients add up
off = [((total - right).norm() / right.norm()).item() for total in totals]
print(f"BatchNorm is {off[0]:.0%} off; ours less than 1e-12: {off[1] < 1e-12}")

# %% [markdown] tags=["read"]
# Torch's layer wants a GPU. Ours is made of collectives, so it runs wherever they do: 129 numbers
# forward and, as gradients go through the common mean and spread, 128 backward. So it finds the
# gradient that one process has which sees all 360 digits. With statistics of each rank's own digits
# it is 13% off.
#
# [Claim C24](claims.md), convert to `SyncBatchNorm` when using DDP, is **half true**: that takes
# GPUs, or a layer of your own.

# %% tags=["check"]
assert all(plain > 0.01 and ours < 1e-12 for plain, ours in ranks.view["off"])
assert ranks.view["sent"][0] == [("all_gather", 129), ("all_reduce", 128)]
ok("C24 is half true, torch's own wants a GPU", numbers_for_the_channels=129)

# %% [markdown] tags=["question"]
# ## More: may rank 0 alone ask for the number?

# %% [markdown] tags=["predict"]
# Rank 0 writes the numbers down, so somebody has only rank 0 call torchmetrics' `compute()`, which
# puts those of all ranks together. How many of the four ranks come to the end of that cell?

# %% tags=["predict"]
predict("ranks_past_a_lone_compute", ...)

# %% tags=["break", "raises-exception"]
# %%px
metric, is_through = MulticlassAccuracy(10, average="micro").to(device), False
metric.update(half(images).argmax(dim=1), labels)
if rank == 0:
    metric.compute()
is_through = True

# %% tags=["mend"]
# %%px
metric = MulticlassAccuracy(10, average="micro").to(device)
metric.update(half(images).argmax(dim=1), labels)
value = metric.compute().item()  # all ranks ask
if rank == 0:
    print(f"accuracy {value:.3f}")  # one uses the answer

# %% tags=["run"]
num_through = sum(ranks.view["is_through"])
print(f"before the mend, {num_through} ranks came to the end")

# %% [markdown] tags=["read"]
# 3 ranks. `compute()` is a collective: it begins with a barrier, in which rank 0 waited for the
# others. Let all ranks compute, and rank 0 write.

# %% tags=["check"]
assert ranks.view["value"] == [ranks.view["value"][0]] * n
assert ranks.view["is_through"] == [False] + [True] * (n - 1)
ok("all compute, one writes", ranks_past_a_lone_compute=num_through)

# %% [markdown] tags=["question"]
# ## More: when may a rank stop early?

# %% [markdown] tags=["predict"]
# On rank r the loss falls until epoch r + 1, and then stays. Whoever sees no better loss in two
# epochs in a row stops. So rank 0 would stop after epoch 3. If all go by the mean loss of all ranks
# instead, after which epoch do they stop?

# %% tags=["predict"]
predict("epoch_of_the_common_stop", ...)

# %% tags=["break", "raises-exception"]
# %%px
best, num_bad = math.inf, 0
for epoch in range(1, 20):
    dist.all_reduce(torch.ones(1, device=device))  # training: ranks talk
    loss = 1 / min(epoch, rank + 1)
    best, num_bad = min(best, loss), 0 if loss < best else num_bad + 1
    if num_bad == 2:
        break

# %% tags=["mend"]
# %%px
from ddp_lessons.metrics import EarlyStopping

stopping = EarlyStopping(patience=2)
for epoch in range(1, 20):
    dist.all_reduce(torch.ones(1, device=device))
    loss = 1 / min(epoch, rank + 1)
    if stopping.step(loss, 1):  # a sum of losses, and of how many samples
        break
print(f"stopped after epoch {epoch}")

# %% [markdown] tags=["read"]
# Rank 0 left after epoch 3, and the others waited in epoch 4 for ever. `EarlyStopping` decides by
# the mean loss of all ranks, which falls until epoch 4: so all stop after epoch 6.

# %% tags=["check"]
assert ranks.view["best"][0] > ranks.view["best"][-1]  # each by its own loss
(epoch,) = set(ranks.view["epoch"])
ok("all ranks stop together", epoch_of_the_common_stop=epoch)

# %% [markdown] tags=["recap"]
# You have found numbers that no split changes, written them down once, seen what a forked process
# does not know, and normalised by all ranks' samples.
#
# Rule of thumb: **add up counts and sums over all ranks, divide once, and let one rank write.**

# %% [markdown] tags=["next"]
# - **Exercise** [12](../exercises/12_metrics.ipynb): an F1 that any split gives, SyncBatchNorm
#   forward and backward, and an early stop that all agree on. After the exercise:
#   [sync_batch_norm.py](../ddp_lessons/metrics/sync_batch_norm.py).
# - **Next lesson** [13](13_sharded_optimizer.ipynb): who keeps the optimizer's state?
# - **On your own cluster**: there, too, TensorBoard listens on loopback of the machine that it runs
#   on. On the login node, type `tensorboard --logdir runs --host 127.0.0.1 --port 6006`; on
#   your own machine, `ssh -L 6006:127.0.0.1:6006 you@cluster`, and open `http://127.0.0.1:6006`. It
#   has no password: other users of the login node can look, too.
# - **Sources**: S. Ioffe and C. Szegedy, [Batch Normalization](https://arxiv.org/abs/1502.03167),
#   ICML 2015, algorithm 1; PyTorch's page on
#   [SyncBatchNorm](https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html);
#   torchmetrics' guide to [implementing a
#   metric](https://lightning.ai/docs/torchmetrics/stable/pages/implement.html), on states that are
#   added up.

# %% tags=["teardown"]
ranks.stop()
