"""Kernels compiled side by side, by Triton for a GPU that is not there, in processes without its interpreter."""

import os
import subprocess
import sys

import pytest
import torch

from asng import fused
from asng.fused._compile import compile_ahead

# A driver that names a GPU and can launch nothing: whoever tries fails.
DRIVER = """
import torch, triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

class Driver:
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))

driver.set_active(Driver())
compiled = []
compile_kernel = jit.JITFunction._do_compile
def note(kernel, *args, **named):
    compiled.append(kernel.__name__)
    return compile_kernel(kernel, *args, **named)
jit.JITFunction._do_compile = note

import asng.fused._dispatch
asng.fused._dispatch.can_launch = lambda x: True  # also on the CPU
from asng import fused
from asng.fused._compile import compile_ahead

x = torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
norm = fused.BatchNorm2d(8)
"""


def assert_runs(program, folder):
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    path = folder / "program.py"  # Triton reads the source of kernels
    path.write_text(DRIVER + program)
    command = [sys.executable, "-W", "ignore", str(path)]
    env |= {"TRITON_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=300)
    assert not done.returncode, done.stderr


def test_kernels_of_both_passes_are_compiled_once_and_not_launched(tmp_path):
    program = """
with compile_ahead() as skipped:
    norm(x).sum().backward()
    assert not compiled
    norm(x).sum().backward()
expected = {"batch_norm_moments", "batch_norm_forward", "batch_norm_gradient_sums", "batch_norm_backward"}
assert expected <= skipped and set(compiled) == skipped and len(compiled) == len(skipped), (compiled, skipped)
with compile_ahead():
    norm(x).sum().backward()
assert len(compiled) == len(skipped)  # those that are compiled are not compiled again
try:
    norm(x)
except AttributeError as error:  # now it is launched
    assert "Driver" in str(error), error
else:
    raise AssertionError("nothing was launched")
"""
    assert_runs(program, tmp_path)


def test_threads_also_make_what_launches_the_kernels(tmp_path):
    program = """
import threading
from types import SimpleNamespace

makers = []
class Launcher:
    def __init__(self, source, metadata):
        makers.append(threading.current_thread())
    def __call__(self, *args):
        launched.append(args)

launched = []
Driver.launcher_cls = Launcher
properties = {"max_shared_mem": 2**20}
loaded = object(), 0, 32, 0, 1024  # module, function, registers, spills, threads
Driver.utils = SimpleNamespace(get_device_properties=lambda device: properties, load_binary=lambda *args: loaded)
with compile_ahead() as skipped:
    norm(x).sum().backward()
assert len(makers) == len(skipped) and threading.main_thread() not in makers
norm(x)
assert launched and len(makers) == len(skipped)
"""
    assert_runs(program, tmp_path)


def test_layers_give_zeros_which_functions_that_check_their_input_take(tmp_path):
    program = """
from torch import nn
from torch.nn.functional import binary_cross_entropy

half = [nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.Conv2d(8, 8, 1, bias=False)]
layers = [norm, fused.MaxPool2d(3, 1, 1), fused.AvgPool2d(3, 2, 1)]
layers += [fused.PointwiseConv2d(nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4))]
layers += [fused.SeparableConv2d(*half, nn.BatchNorm2d(8), *half, nn.BatchNorm2d(8))]
layers += [lambda x: fused.ScaledSum()(x, x), lambda x: torch.empty_like(x, requires_grad=True)]
torch.use_deterministic_algorithms(True)  # which fills new memory with NaN
assert torch.empty(2).isnan().all()
with compile_ahead():
    for layer in layers:
        y = layer(x)
        assert not y.any(), layer
        binary_cross_entropy(y.sigmoid(), torch.ones_like(y)).backward()
assert torch.empty(2).isnan().all()
"""
    assert_runs(program, tmp_path)


def test_kernels_of_others_run_where_they_are_called(tmp_path):
    program = """
@triton.jit
def own(pointer):
    tl.store(pointer, 1.0)

with compile_ahead() as skipped:
    try:
        own[(1,)](x.detach())
    except AttributeError as error:
        assert "Driver" in str(error), error
    else:
        raise AssertionError("it was not launched")
    assert compiled == ["own"] and not skipped
"""
    assert_runs(program, tmp_path)


def test_a_pass_that_fails_compiles_nothing_and_leaves_triton_as_it_was(tmp_path):
    program = """
before = jit.JITFunction.run, jit.JITFunction._do_compile
try:
    with compile_ahead():
        norm(x)
        raise KeyError("a pass")
except KeyError:
    pass
assert not compiled and before == (jit.JITFunction.run, jit.JITFunction._do_compile)
"""
    assert_runs(program, tmp_path)


def test_in_the_interpreter_kernels_run_as_usual():
    norm = fused.BatchNorm2d(8)
    x = torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last)
    with compile_ahead() as skipped:
        y = norm(x)
    assert not skipped
    torch.testing.assert_close(y, torch.nn.BatchNorm2d(8)(x))
    with pytest.raises(KeyError), compile_ahead():
        raise KeyError("a pass")
