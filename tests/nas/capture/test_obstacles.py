"""What is against a capture before its first pass: the device, versions, wrappers, processes, the optimizer."""

import copy
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from asng import nas
from asng.nas._capture import step as _capture
from asng.nas._capture.switch import (
    MIN_CUDA,
    MIN_TORCH,
    Versions,
    installed_versions,
    outdated_reason,
    unavailable_reason,
)
from asng.nas._capture.update import unsupported_reason
from tests.helpers.captures import Choosy, oneshot
from tests.helpers.searches import batches, cross_entropy, pairs

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]


def test_capture_on_the_cpu_warns_once_and_runs_as_usual():
    model = Choosy()
    plain, captured = oneshot(model), oneshot(copy.deepcopy(model), capture=True)
    (first, second) = pairs(2)
    with pytest.warns(UserWarning, match="not captured as a CUDA graph.*the weights are on cpu"):
        step_one = captured.step(*first)
    assert (step_one, captured.step(*second)) == (plain.step(*first), plain.step(*second))
    assert captured.capture_cost == plain.capture_cost == {}


def test_a_search_that_is_not_captured_says_so_at_the_line_that_called_it():
    with pytest.warns(UserWarning, match="the weights are on cpu") as caught:
        nas.search(Choosy(), batches(5, 1), batches(5, 2), cross_entropy, epochs=5, capture=True, progress=False)
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_cuda_device_the_reason_is_told():
    assert unavailable_reason() == "torch sees no CUDA device"


def with_step_hook(parameters):
    optimizer = torch.optim.SGD(parameters, 0.1)
    optimizer.register_step_post_hook(lambda *args: None)
    return optimizer


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        (torch.optim.Adagrad, "is Adagrad, and only SGD, ASGD, Adadelta, Adam"),
        (torch.optim.Adam, "capturable=False; give Adam capturable=True"),
        (lambda p: torch.optim.Adam(p, capturable=True), None),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.1), "dampening=0.1"),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), None),
        (with_step_hook, "hooks on its step"),
    ],
)
def test_optimizers_that_cannot_be_captured_are_named(optimizer, reason):
    got = unsupported_reason(optimizer(nn.Linear(2, 2).parameters()))
    assert got is reason if reason is None else reason in str(got)


def test_a_state_that_is_loaded_leaves_the_way_in_which_the_optimizer_computes():
    model = Choosy()
    adam = partial(torch.optim.Adam, lr=0.01)
    plain, captured, other = (
        oneshot(m, weight_optimizer=kind(m.parameters()))
        for m, kind in ((copy.deepcopy(model), kind) for kind in (adam, partial(adam, capturable=True), adam))
    )
    first, second = pairs(2)
    plain.step(*first)
    captured.load_state_dict(plain.state_dict())  # of a search without capture
    assert unsupported_reason(captured.weight_optimizer) is None
    other.load_state_dict(copy.deepcopy(captured.state_dict()))  # and back, to a machine without a GPU
    assert other.step(*second) == plain.step(*second)


def on_a_gpu():
    """All that is looked at of an optimizer of weights on a GPU."""
    found: Any = SimpleNamespace(param_groups=[{"params": [SimpleNamespace(device=torch.device("cuda:0"))]}])
    return found


@pytest.mark.parametrize(
    ("wrap", "amp_dtype", "reason"),
    [
        (nn.DataParallel, None, "the model is wrapped in DataParallel"),
        (None, torch.float16, "gradients are scaled, as float16 needs it"),
        (None, None, "is SimpleNamespace, and only SGD"),
    ],
)
def test_what_is_against_a_capture_on_a_gpu_is_known_before(wrap, amp_dtype, reason):
    model = nn.Linear(2, 2)
    assert reason in str(_capture.find_obstacle(model if wrap is None else wrap(model), [on_a_gpu()], amp_dtype))


@pytest.fixture
def two_processes():
    """As if another process were there, which takes part in nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("two_processes")
def test_several_processes_are_against_a_capture():
    model = nn.Linear(2, 2)
    assert _capture.find_obstacle(model, [on_a_gpu()], None) == "there are several processes"


RECENT = Versions(torch="2.11.0+cu130", cuda="13.0", hip=None, bindings="13.0.1", driver=13000)


@pytest.mark.parametrize(
    ("versions", "reason"),
    [
        (RECENT, None),
        (RECENT._replace(torch="3.0.0a0+git1234", cuda="14.2", bindings="14.1", driver=14020), None),
        (RECENT._replace(torch="2.10.2+cu130"), "torch 2.10.2+cu130 is older than 2.11"),
        (
            RECENT._replace(torch="2.11.0+cu128", cuda="12.8"),
            "torch 2.11.0+cu128 is made for CUDA 12.8, and 13.0 is needed",
        ),
        (RECENT._replace(cuda=None, hip="7.1.0", bindings=None, driver=0), "ROCm 7.1.0 has no conditional graph nodes"),
        (RECENT._replace(bindings=None, driver=0), "cuda-bindings is missing; pip install 'asng[gpu]'"),
        (RECENT._replace(bindings="12.9.4"), "cuda-bindings 12.9.4 is older than 13.0; pip install 'asng[gpu]'"),
        (
            RECENT._replace(driver=12090),
            "the driver supports CUDA 12.9, and 13.0 is needed; install a newer one",
        ),
    ],
    ids=["oldest", "newer", "torch", "cuda", "rocm", "no bindings", "bindings", "driver"],
)
def test_what_is_missing_or_too_old_is_named_with_its_version(versions, reason):
    assert outdated_reason(versions) == reason


def test_the_versions_of_this_machine_are_read():
    versions = installed_versions()
    assert versions[:3] == (torch.__version__, torch.version.cuda, torch.version.hip)
    try:
        assert versions.bindings == metadata.version("cuda-bindings")
        assert versions.driver >= 0
    except metadata.PackageNotFoundError:
        assert versions[3:] == (None, 0)


def test_minimum_versions_are_in_the_documentation_and_in_the_extra():
    page, project = ((ROOT / name).read_text() for name in ("docs/speed.md", "pyproject.toml"))
    said = " ".join(page.split())
    assert f"torch {'.'.join(map(str, MIN_TORCH))} or later made for CUDA {MIN_CUDA}.0 or later" in said
    assert f"a driver for CUDA {MIN_CUDA}.0 or later" in said
    assert f"cuda-bindings {MIN_CUDA}.0 or later" in said
    assert f'"cuda-bindings>={MIN_CUDA}.0"' in project
