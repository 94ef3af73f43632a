"""
Private names of torch outside of its process groups: each behaves as the course relies on.
"""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.private import autograd, dispatcher, storages


def test_a_callback_comes_after_the_last_gradient():
    """
    The callback runs after the last gradient and every hook, and before `backward` returns.
    """
    order, weight = [], torch.ones(1, requires_grad=True)

    def hook(gradient):
        autograd.call_after_backward(lambda: order.append("after"))
        order.append("hook")

    (weight * 2).register_hook(hook)
    product = weight * 2
    product.register_hook(hook)
    weight.register_post_accumulate_grad_hook(lambda _: order.append("gradient"))
    product.backward()
    assert order == ["hook", "gradient", "after"]
    assert autograd.current_backward()() == -1


def test_a_hook_is_put_before_others():
    """
    A hook can be moved before the others, because torch calls hooks in the order of a dictionary.
    """
    order, weight = [], torch.ones(1, requires_grad=True)
    weight.register_hook(lambda _: order.append("first"))
    handle = weight.register_hook(lambda _: order.append("second"))
    autograd.put_hook_first(weight, handle.id)
    (weight * 2).backward()
    assert order == ["second", "first"]


def test_parts_of_a_sparse_tensor_and_of_a_tree():
    """
    The indices and values of a gradient with repeated indices are read, although torch's public
    methods refuse one. A tree's leaves are found and mapped.
    """
    twice = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,), check_invariants=True)
    indices, values = storages.sparse_parts(twice)
    assert (indices.tolist(), values.tolist()) == ([[0, 0]], [1.0, 2.0])
    assert dispatcher.tree_leaves({"a": [1, (2,)], "b": 3}) == [1, 2, 3]
    assert dispatcher.tree_map(lambda x: x + 1, [1, {"a": 2}]) == [2, {"a": 3}]


def test_a_storage_is_found_by_its_address():
    """
    A storage is found by its address, which does not keep it alive.
    """
    tensor = torch.ones(3)
    address = storages.address_of(tensor.untyped_storage())
    assert storages.storage_at(address).nbytes() == 12


def test_what_a_ddp_model_logs(lone_group):
    """
    A DistributedDataParallel model logs the sizes of its buckets and the time of its backward pass.
    """
    model = DistributedDataParallel(torch.nn.Linear(3, 2))
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
    data = autograd.ddp_logging_data(model)
    assert data["bucket_sizes"] == "32"  # bytes of 8 numbers
    assert data["avg_backward_compute_time"] > 0


def test_hooks_are_counted():
    """
    Hooks of each kind are counted: those before and after the forward and the backward pass of a
    module, and those of a parameter.
    """
    module, weight = torch.nn.Linear(1, 1), torch.ones(1, requires_grad=True)
    assert autograd.num_hooks(module) == autograd.num_hooks(weight) == 0
    module.register_forward_hook(print)
    module.register_forward_pre_hook(print)
    module.register_full_backward_hook(print)
    module.register_full_backward_pre_hook(print)
    weight.register_hook(print)
    weight.register_post_accumulate_grad_hook(print)
    assert (autograd.num_hooks(module), autograd.num_hooks(weight)) == (4, 2)


def test_a_kernel_is_put_around_a_collective(lone_group):
    """
    A kernel sees a collective and passes it on, until its library is taken out of the dispatcher.
    """
    seen, library = [], torch.library.Library("c10d", "IMPL")
    redispatch = dispatcher.redispatch_below_backend_select(torch.ops.c10d.barrier.default)

    def kernel(keyset, *args):
        seen.append(len(args))
        return redispatch(keyset, *args)

    library.impl("barrier", kernel, "BackendSelect", with_keyset=True)
    dist.barrier()
    dispatcher.destroy_library(library)
    dist.barrier()
    assert len(seen) == 1


def test_owners_of_methods_that_a_trace_replaces():
    """
    The classes and modules are those in which torch looks for the methods: futures of collectives
    have that class, and `collect_all` calls what stands under that name.
    """
    assert issubclass(torch.futures.Future, dispatcher.future_class())
    owner, name = dispatcher.collect_all_owner()
    future = torch.futures.Future()
    future.set_result(1)
    assert getattr(owner, name)([future]).wait()[0].wait() == 1
    owner, name = dispatcher.end_coalescing_owner()
    assert owner is dist.ProcessGroup
    assert callable(getattr(owner, name))


def test_the_operation_that_waits_for_a_tensor():
    """
    The operation takes a tensor and returns it once functional collectives have filled it.
    """
    namespace, name, overload = dispatcher.wait_tensor_operation()
    assert dispatcher.schema_of(overload).name == f"{namespace}::{name}"
    assert overload(torch.ones(2)).tolist() == [1, 1]


def test_the_schema_says_which_arguments_are_written():
    """
    A schema marks the arguments that an operation writes to.
    """
    arguments = dispatcher.schema_of(torch.ops.aten.add_.Tensor).arguments
    assert [bool(a.alias_info and a.alias_info.is_write) for a in arguments] == [True, False, False]


def test_a_dispatch_mode_sees_operations():
    """
    A dispatch mode sees the operations inside of its `with` block.
    """
    seen = []

    class Mode(dispatcher.dispatch_mode()):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(dispatcher.schema_of(func).name)
            return func(*args, **(kwargs or {}))

    with Mode():
        _ = torch.ones(1) * 2
    assert "aten::mul" in seen


def test_an_archive_s_records_and_their_offsets(tmp_path):
    """
    The reader finds where in the archive a tensor's numbers begin.
    """
    path = tmp_path / "saved.pt"
    torch.save(torch.tensor([1.0, 2.0]), path)
    with path.open("rb") as file:
        archive = storages.archive_reader(file)
        numbers = archive.get_record("data/0")
        file.seek(archive.get_record_offset("data/0"))
        assert file.read(8) == numbers == torch.tensor([1.0, 2.0]).numpy().tobytes()


def test_a_slice_of_a_sharded_checkpoint(lone_group, tmp_path):
    """
    A slice of a file holds one item, which is an archive of its own.
    """
    dcp.save({"a": torch.ones(2), "b": torch.zeros(3)}, checkpoint_id=tmp_path)
    reader = dcp.FileSystemReader(tmp_path)
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    for index, info in reader.storage_data.items():
        with (tmp_path / info.relative_path).open("rb") as file:
            item = torch.load(storages.slice_of(reader, file, info), weights_only=True)
        assert item.tolist() == ([1, 1] if index.fqn == "a" else [0, 0, 0])


def test_values_are_set_in_a_tree():
    """
    Missing dictionaries and lists on the way to a value are made.
    """
    tree = {"kept": 1}
    storages.set_element(tree, ("layers", 1, "weight"), 5)
    assert tree == {"kept": 1, "layers": [None, {"weight": 5}]}
