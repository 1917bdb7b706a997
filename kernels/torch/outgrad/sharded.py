"""Operations of DTensors: each process computes its own part, as in sequence parallel training.

An elementwise operation may be sharded along any dimension, a norm along all but those that it normalises. A
parameter is the same everywhere; its gradient is the sum over the parts. What is sharded otherwise, or is a
sum that is still to be made, is redistributed first, as PyTorch's own operations do it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch


# Of any other type a tensor may be a DTensor.
PLAIN = {torch.Tensor, torch.nn.Parameter}


def is_sharded(x: object) -> bool:
    """Whether a tensor is a DTensor, without the import of those: outside of a forward pass the parameters of
    FSDP2 are."""
    return hasattr(x, "device_mesh")


def part_of(parameter: Any) -> Any:
    """This process's part of a parameter that is the same everywhere; any other as it is."""
    if is_sharded(parameter) and all(placement.is_replicate() for placement in parameter.placements):
        return parameter.detach().to_local()
    return parameter


def dimensions(shape: Sequence[int], columns: int) -> int:
    """How many of the last dimensions have so many elements together."""
    count, elements = 1, shape[-1]
    while elements != columns:
        count += 1
        elements *= shape[-count]
    return count


def refuse(name: str, *tensors: Any) -> None:
    """Raises an error if one of the arguments of an operation that takes no DTensors is one."""
    if any(type(one) not in PLAIN and is_sharded(one) for one in tensors):
        raise NotImplementedError(f"outgrad.{name}: it takes no DTensors; give it each process's own part")


def of_parts(name: str, operation: Callable[..., Any], whole: int | None, inputs: tuple[Any, ...]) -> Any:
    """operation(*inputs) of each part, where the first input and what has its shape are sharded alike. whole:
    how many of the last dimensions each part has to have whole; None: it takes no DTensors."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    x = inputs[0]
    if whole is None:
        refuse(name, x)
    mesh, first_whole = x.device_mesh, x.dim() - whole
    placements = [one if type(one) is Shard and one.dim < first_whole else Replicate()
        for one in x.placements]
    of_parameters = [Partial() if one.is_shard() else Replicate() for one in placements]
    coordinates, part = mesh.get_coordinate() or [0] * mesh.ndim, 0
    for one, coordinate, size in zip(placements, coordinates, mesh.shape, strict=True):
        part = part * size + coordinate if one.is_shard() else part

    def local(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        if isinstance(one, DTensor):
            if one.shape == x.shape:
                return one.redistribute(mesh, placements).to_local()
            return one.redistribute(mesh, [Replicate()] * mesh.ndim).to_local(grad_placements=of_parameters)
        if one.is_floating_point():
            raise TypeError(
                f"outgrad.{name}: an argument is a DTensor and another one, of shape {tuple(one.shape)}, is "
                f"none")
        # Of a seed, the same in all processes, each part makes one of its own, and copies of a part the same.
        return one + part * _GOLDEN % 2**62 if one.dtype == torch.int64 else one

    def shared(one: Any) -> Any:
        if not (isinstance(one, torch.Tensor) and one.is_floating_point() and one.dim() == x.dim()):
            return one
        shape = (*x.shape[:-1], one.shape[-1]) if whole else x.shape
        like = torch.empty(shape, device="meta")
        return DTensor.from_local(one, mesh, placements, run_check=False, shape=like.shape,
            stride=like.stride())

    found = operation(*map(local, inputs))
    return tuple(map(shared, found)) if isinstance(found, tuple) else shared(found)


# 2^62 over the golden ratio, and odd: the seeds of parts differ in many bits.
_GOLDEN = 0x278DDE6E5FD29F05
