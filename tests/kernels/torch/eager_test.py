"""What goes past PyTorch's dispatcher: the same results as behind it, and through the dispatcher whatever
somebody watches or what a kernel could not read."""

import contextlib
import gc
import os
import resource
import subprocess
import sys
import threading

import pytest
import torch
from operators_test import CODE, SEED, SILU, arguments, behind
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import outgrad
from outgrad import functional, library

FORMATS = [torch.float32, torch.float16, torch.bfloat16]
X = torch.arange(-8.0, 8.0).view(2, 8)

pytestmark = pytest.mark.skipif(library._ways is None, reason="this Python has no way past the dispatcher")


@pytest.fixture(autouse=True)
def without_gradients():
    """As in a node."""
    with torch.no_grad():
        yield


def bits(of):
    return [(one.dtype, one.shape, one.stride(), one.contiguous().view(torch.uint8).tolist()) for one in of]


def tensors(of):
    return [of] if isinstance(of, torch.Tensor) else of


@pytest.mark.parametrize("n", [0, 1, 33])
@pytest.mark.parametrize("dtype", FORMATS)
def test_results_are_those_of_the_operator(dtype, n):
    past = 0
    for call, values in arguments(dtype, n):
        operator = behind(call)
        past += operator is not call
        found, expected = call(*values), operator(*values)
        assert type(found) is type(expected)
        assert bits(tensors(found)) == bits(tensors(expected)), operator
    assert past > 40


# --- When the operator itself is called -----------------------------------------------------------


met = []  # an entry for each call of dropout through the dispatcher


@contextlib.contextmanager
def dispatcher_that_tells():
    """In place of dropout's kernel one that says that it was called."""

    def tell(x, seed, p):
        met.append(p)
        return x.clone()

    with torch.library._scoped_library("outgrad", "IMPL") as of:
        of.impl("dropout", tell, "CPU", allow_override=True)
        yield


def is_past(x, seed=SEED, p=0.25):
    """Whether dropout goes past the dispatcher."""
    before = len(met)
    library.dropout(x, seed, p)
    return len(met) == before


class Everything(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class EveryFunction(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("watched", [Everything, EveryFunction, torch.autograd.profiler.profile,
    torch.profiler.profile, torch.enable_grad])
def test_what_watches_meets_the_operator(watched):
    with dispatcher_that_tells():
        assert is_past(X)
        with watched():
            assert not is_past(X)
        assert is_past(X)


def test_a_profiler_of_all_threads_sees_the_operators_of_others():
    found, begun, done = [], threading.Event(), threading.Event()

    def elsewhere():
        with torch.no_grad():
            begun.wait()
            try:
                found.append(is_past(X))
            finally:
                done.set()

    other = threading.Thread(target=elsewhere)
    other.start()
    every = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with dispatcher_that_tells(), torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], experimental_config=every):
        begun.set()
        done.wait()
    other.join()
    assert found == [False]


def test_a_default_device_watches_nothing():
    with dispatcher_that_tells():
        with torch.device("cpu"):
            assert is_past(X)
            with EveryFunction():
                assert not is_past(X)
        with EveryFunction(), torch.device("cpu"):
            assert not is_past(X)
        torch.set_default_device("cpu")
        try:
            assert is_past(X)
        finally:
            torch.set_default_device(None)


def test_tracers_and_transforms_meet_the_operator():
    found = []

    def function(x):
        found.append(is_past(X))
        return x

    with dispatcher_that_tells():
        torch.jit.trace(function, X, check_trace=False)
        torch.func.vmap(function)(X)
        torch.func.functionalize(function)(X)
    assert found and not any(found)
    for pre_dispatch in (False, True):
        graph = make_fx(lambda x: library.dropout(x, SEED, 0.25), pre_dispatch=pre_dispatch)(X)
        assert torch.ops.outgrad.dropout.default in [node.target for node in graph.graph.nodes]
    compiled = torch.compile(lambda x: library.dropout(x, SEED, 0.25), backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), library.dropout(X, SEED, 0.25))


class Own(torch.Tensor):
    pass


def test_only_plain_tensors_go_past():
    negative = torch.complex(X, X).conj().imag
    assert negative.is_neg() and torch.equal(negative, -X)
    with dispatcher_that_tells():
        assert is_past(X) and is_past(X.t()) and is_past(X[:0]) and is_past(torch.nn.Parameter(X))
        assert not is_past(negative) and not is_past(X._neg_view())
        assert not is_past(torch._efficientzerotensor((2, 8)))
        assert not is_past(X.as_subclass(Own))
    assert torch.equal(library.dropout(negative, SEED, 0.25), library.dropout(-X, SEED, 0.25))
    assert torch.equal(library.activation_forward(X._neg_view(), 0)[0], library.activation_forward(-X, 0)[0])
    assert library.dropout(X.to("meta"), SEED.view(()), 0.25).is_meta
    for odd in (X.to_sparse(), X.double(), None, 1):
        with pytest.raises((RuntimeError, NotImplementedError)) as own:
            library.dropout(odd, SEED, 0.25)
        with pytest.raises(type(own.value)) as operators:
            torch.ops.outgrad.dropout.default(odd, SEED, 0.25)
        assert str(own.value).splitlines()[0] == str(operators.value).splitlines()[0]


def test_calls_of_any_form():
    assert torch.equal(library.dropout(X, p=0.25, seed=SEED), library.dropout(X, SEED, 0.25))
    assert torch.equal(library.dropout(X, SEED, 0), X)  # an int where a number is taken
    _, codes = library.store_forward(X, SILU, CODE, 4)
    for kept in ([codes], (codes,)):
        assert torch.equal(library.store_backward(X, kept, SILU, CODE, 4),
            torch.ops.outgrad.store_backward.default(X, [codes], SILU, CODE, 4))
    for wrong in ((), (X,), (X, SEED), (X, SEED, 0.25, 1)):
        with pytest.raises(RuntimeError, match="dropout"):
            library.dropout(*wrong)
    for wrong in ((X, "no seed", 0.25), (X, SEED, "no number")):
        with pytest.raises(RuntimeError, match="dropout.* Expected a value of type"):
            library.dropout(*wrong)
    with pytest.raises(RuntimeError):
        library.store_backward(X, [codes, None], SILU, CODE, 4)


def test_the_profiler_sees_the_names_of_operators():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        outgrad.gelu(X)
    assert "outgrad::activation_forward" in {event.key for event in profile.key_averages()}


# --- The gradients of a Linear, which have no operator --------------------------------------------


def given(dtype, shape, onto):
    generator = torch.Generator().manual_seed(len(shape))
    x, weight, dy, to = (torch.randn(size, generator=generator).to(dtype)
        for size in (shape, (5, shape[-1]), (*shape[:-1], 5), shape))
    return dy, x, weight, to if onto else None


@pytest.mark.parametrize("onto", [False, True])
@pytest.mark.parametrize("shape", [(6, 8), (1, 8), (2, 3, 8), (2, 2, 2, 8), (0, 8), (2, 0, 8), (2, 3, 0)])
@pytest.mark.parametrize("dtype", FORMATS)
def test_gradients_of_a_linear_are_those_of_python(dtype, shape, onto):
    own, python = functional.linear_gradients, behind(functional.linear_gradients)
    for wanted in ((True, True, True), (False, True, False), (True, False, False), (False, False, True)):
        of_own, of_python = given(dtype, shape, onto), given(dtype, shape, onto)
        found, expected = (function(*of[:3], *wanted, of[3])
            for function, of in ((own, of_own), (python, of_python)))
        assert [one is None for one in found] == [one is None for one in expected]
        assert (bits(one for one in found if one is not None)
            == bits(one for one in expected if one is not None))
        if onto and wanted[0]:
            assert torch.equal(of_own[3], expected[0])


def test_gradients_of_a_linear_that_python_computes():
    """Of tensors whose memory does not have their elements one behind the other, or with other signs."""
    dy, x, weight, _ = given(torch.float32, (2, 3, 8), False)

    def apart(tensor):
        return torch.stack((tensor, tensor), -1)[..., 0]

    for of in ((apart(dy), x, weight), (dy, apart(x), weight), (dy, x, weight.t().contiguous().t()),
            (dy._neg_view(), x, weight), (dy, x._neg_view(), weight), (dy, x, weight._neg_view()),
            (dy.as_subclass(Own), x, weight)):
        found = functional.linear_gradients(*of, True, True, True)
        same = (one.as_subclass(torch.Tensor).clone(memory_format=torch.contiguous_format).resolve_neg()
            for one in of)
        for one, exact in zip(found, behind(functional.linear_gradients)(*same, True, True, True),
                strict=True):
            assert torch.allclose(one, exact, atol=1e-6)
    assert functional.linear_gradients(dy, None, weight, True, False, False)[0].shape == x.shape
    for wrong in ((dy.half(), x, weight), (dy, x[:, :2], weight), (dy, x, weight[:4])):
        with pytest.raises(RuntimeError):
            functional.linear_gradients(*wrong, True, True, True)


def test_a_linear_without_views_in_python(monkeypatch):
    def none(*_):
        raise AssertionError("Python makes matrices")

    monkeypatch.setattr(functional, "matrix_of", none)
    dy, x, weight, to = given(torch.float32, (2, 3, 8), True)
    functional.linear_gradients(dy, x, weight, True, True, True, to)
    with torch.enable_grad(), pytest.raises(AssertionError):  # where gradients of gradients may be recorded
        functional.linear_gradients(dy, x, weight, True, True, True)


# --- References, threads, older releases ----------------------------------------------------------


def keep_nothing():
    """In a process of its own, where nothing else comes and goes."""

    def everything(x):
        y, mask = library.activation_forward(x, 0)
        library.store_backward(x, library.store_forward(x, SILU, CODE, 4)[1:], SILU, CODE, 4)
        functional.linear_gradients(y, x, x.new_ones(x.shape[1], x.shape[1]), True, True, True, x.clone())
        library.activation_backward(y, y, mask, 0)
        with contextlib.suppress(RuntimeError):
            library.activation_forward(x, 99)

    named = (None, True, False, torch.ops.outgrad.dropout.default, torch.Tensor)
    everything(torch.ones(1024, 32))
    gc.collect()
    before, largest = list(map(sys.getrefcount, named)), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2000):
        everything(torch.ones(1024, 32))
    gc.collect()
    # Python itself keeps some
    assert all(sys.getrefcount(one) < count + 500 for one, count in zip(named, before, strict=True))
    # a call's arrays have 128 KiB each, so that to keep one of a call would take 250 MiB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - largest < 100 * 1024


def test_threads_at_once():
    x = torch.randn(4, 1 << 16)
    expected, found = library.activation_forward(x, 0)[0], []

    def work():
        with torch.no_grad():
            for _ in range(50):
                found.append(torch.equal(library.activation_forward(x, 0)[0], expected))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 200


def in_another_process(before):
    """The results of every operator, where something was changed before the package was loaded."""
    script = f"""
import ctypes, torch
{before}
import eager_test
from outgrad import library
print(library._ways is not None)
with torch.no_grad():
    for call, values in eager_test.arguments(torch.bfloat16, 33):
        operator = eager_test.behind(call)
        assert eager_test.bits(eager_test.tensors(call(*values))) == eager_test.bits(
            eager_test.tensors(operator(*values)))
    with eager_test.dispatcher_that_tells():
        print(eager_test.is_past(eager_test.X))
    if library._ways is not None:
        eager_test.keep_nothing()
"""
    path = os.pathsep.join((os.path.dirname(__file__), os.environ["PYTHONPATH"]))
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}, text=True,
        capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


WITHOUT_SHIMS = """
found = ctypes.CDLL.__getattr__
def lacks(self, name):
    if name == "torch_tensor_from_pyobject":
        raise AttributeError(name)
    return found(self, name)
ctypes.CDLL.__getattr__ = lacks
"""


@pytest.mark.parametrize("before", ["", WITHOUT_SHIMS])
def test_nothing_is_kept(before):
    """Also where the stable ABI takes no objects of Python, as before PyTorch 2.14."""
    assert in_another_process(before) == ["True", "True"]


def test_without_a_way():
    assert in_another_process(
        WITHOUT_SHIMS + "del torch._C._aoti.unsafe_alloc_void_ptr_from_tensor") == ["False", "False"]
