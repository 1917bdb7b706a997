"""DTensors in two processes: results and gradients are those of one process, and a patched model trains in
sequence parallel."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
    SequenceParallel, parallelize_module)

import outgrad

WORLD, SHAPE, COLUMNS = 2, (3, 5, 64), 64

PLACEMENTS = Shard(0), Shard(1), Shard(2), Replicate(), Partial()
ROWS = {
    "layer_norm": lambda x, w, b: outgrad.layer_norm(x, COLUMNS, w, b),
    "rms_norm": lambda x, w, b: outgrad.rms_norm(x, (5, COLUMNS), torch.stack([w] * 5)),
    "norm in 8 bits": lambda x, w, b: outgrad.layer_norm(x, COLUMNS, w, b, store="int8"),
    "norm of a sum": lambda x, w, b: sum(outgrad.add_layer_norm(x, x * 2, COLUMNS, w, b)),
    "packed": lambda x, w, b: outgrad.gated(x * w),
}
ELEMENTS = {
    **{store: lambda x, w, b, store=store: outgrad.gelu(x * w, store=store)
    for store in ("y+bit", "code:4", "e4m3+bit")},
    "gated": lambda x, w, b: outgrad.gated(x * w, x),
    "permuted": lambda x, w, b: outgrad.silu((x * w).transpose(0, 2)).transpose(0, 2),
}


def values():
    generator = torch.Generator().manual_seed(3)
    x, dy = (torch.randn(SHAPE, generator=generator) for _ in range(2))
    return x, torch.rand(COLUMNS, generator=generator) + 0.5, torch.randn(COLUMNS, generator=generator), dy


def gradients(function, x, weight, bias, dy):
    leaves = [each.detach().requires_grad_() for each in (x, weight, bias)]
    y = function(*leaves)
    dy = dy[..., : y.shape[-1]]
    return y.detach(), *torch.autograd.grad(y, leaves, dy, allow_unused=True)


def model():
    torch.manual_seed(4)
    layers = {"norm": nn.LayerNorm(COLUMNS), "up": nn.Linear(COLUMNS, 128), "gelu": nn.GELU(),
        "down": nn.Linear(128, COLUMNS), "drop": nn.Dropout(0.0), "last": nn.RMSNorm(COLUMNS)}
    return nn.ModuleDict(layers)


def loss(layers, x):
    for layer in layers.values():
        x = layer(x)
    return x.pow(2).mean()


def operations(mesh, results):
    """Each operation, however its input is sharded."""
    x, weight, bias, dy = values()
    everywhere = [distribute_tensor(each, mesh, [Replicate()]) for each in (weight, bias)]
    for name, function in (ROWS | ELEMENTS).items():
        for placement in PLACEMENTS:
            of_dy = Shard(0) if placement.is_partial() else placement
            first = (DTensor.from_local(x / WORLD, mesh, [placement]) if placement.is_partial()
                else distribute_tensor(x, mesh, [placement]))
            found = gradients(function, first, *everywhere, distribute_tensor(dy, mesh, [of_dy]))
            results[name, str(placement)] = [each if each is None else each.full_tensor() for each in found]
            if name in ELEMENTS and placement.is_shard():
                assert found[0].placements == (placement,)


def dropouts(mesh, results):
    for placement in (Shard(0), Replicate()):
        x = distribute_tensor(torch.ones(2, 4096), mesh, [placement]).requires_grad_()
        torch.manual_seed(9)
        y = outgrad.dropout(x, 0.5)
        (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
        results["dropout", str(placement)] = y.full_tensor().detach(), dx.full_tensor(), y.to_local().detach()


def refusals(mesh, results):
    x, weight, bias, _ = values()
    x = distribute_tensor(x, mesh, [Shard(0)])
    with pytest.raises(TypeError, match="outgrad.layer_norm: an argument is a DTensor and another one"):
        outgrad.layer_norm(x, COLUMNS, weight)
    with pytest.raises(NotImplementedError, match="outgrad.softmax_dropout: it takes no DTensors"):
        outgrad.softmax_dropout(x)


def sequence_parallel(mesh, results):
    layers = model()
    with torch.no_grad():
        layers["norm"].weight[5] = 0.0
    x = values()[0][:, :4].contiguous()
    outgrad.patch(layers)
    parallelize_module(layers, mesh, {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        "drop": SequenceParallel(), "last": SequenceParallel(),
    })
    for _ in range(2):  # a norm remembers what its first pass asked for
        layers.zero_grad()
        found = loss(layers, distribute_tensor(x, mesh, [Shard(1)]))
        found.backward()
    results["model"] = [found.full_tensor().detach(), *(p.grad.full_tensor() for p in layers.parameters())]
    results["channels"] = layers["norm"].side_channels().tolist()


def unpatched(mesh, results):
    """What unpatch leaves of a model that FSDP2 has had since patch: its classes over the modules' own."""
    layers = nn.Sequential(*model().values())
    outgrad.patch(layers)
    fully_shard(layers[0])
    fully_shard(layers)
    layers(values()[0])
    outgrad.unpatch(layers)
    layers(values()[0]).pow(2).mean().backward()
    results["unpatched"] = [type(each).__name__ for each in layers.modules()]
    results["unpatched gradients"] = [p.grad.full_tensor() for p in layers.parameters()]


def worker(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    mesh, results = init_device_mesh("cpu", (WORLD,)), {}
    for each in (operations, dropouts, refusals, sequence_parallel, unpatched):
        each(mesh, results)
    torch.save(results, f"{folder}/{rank}")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def by_rank(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    torch.multiprocessing.spawn(worker, (str(folder),), nprocs=WORLD)
    return [torch.load(folder / str(rank)) for rank in range(WORLD)]


@pytest.mark.parametrize("name", ROWS | ELEMENTS)
def test_results_and_gradients_are_those_of_one_process(by_rank, name):
    want = gradients((ROWS | ELEMENTS)[name], *values())
    found = [(key, each) for results in by_rank for key, each in results.items() if key[0] == name]
    assert len(found) == len(PLACEMENTS) * WORLD
    for key, (y, dx, *of_parameters) in found:
        assert torch.equal(y, want[0])
        if name == "e4m3+bit":  # each part has a scale of its own
            slope = values()[3] * values()[1]
            bound = 2 * outgrad.bounds("gelu", torch.float32, name).total * slope.abs() + 1e-6
            assert ((dx - want[1]).abs() <= bound).all()
            continue
        assert torch.equal(dx, want[1]), key
        for a, b in zip(of_parameters, want[2:], strict=True):
            assert a is b is None or torch.allclose(a, b, rtol=1e-5, atol=1e-5), key


def test_parts_drop_elements_of_their_own_and_copies_the_same(by_rank):
    for results in by_rank:
        for placement in (Shard(0), Replicate()):
            y, dx, _ = results["dropout", str(placement)]
            assert torch.equal(y, dx) and abs((y == 0).float().mean() - 0.5) < 0.05
        (first, second), _, _ = results["dropout", str(Shard(0))]
        assert abs((first == second).float().mean() - 0.5) < 0.05
    copies = [results["dropout", str(Replicate())][2] for results in by_rank]
    assert torch.equal(*copies)


def test_a_patched_model_trains_in_sequence_parallel(by_rank):
    layers = model()
    with torch.no_grad():
        layers["norm"].weight[5] = 0.0
    found = loss(layers, values()[0][:, :4])
    found.backward()
    for results in by_rank:
        assert results["channels"] == [5]
        for a, b in zip(results["model"], [found, *(p.grad for p in layers.parameters())], strict=True):
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)


def test_fsdp2s_classes_stay_after_unpatch(by_rank):
    layers = nn.Sequential(*model().values())
    layers(values()[0]).pow(2).mean().backward()
    for results in by_rank:
        assert results["unpatched"] == ["FSDPSequential", "FSDPLayerNorm", "Linear", "GELU", "Linear",
            "Dropout", "RMSNorm"]
        for a, b in zip(results["unpatched gradients"], layers.parameters(), strict=True):
            assert torch.allclose(a, b.grad, rtol=1e-4, atol=1e-6)
