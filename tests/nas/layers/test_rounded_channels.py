"""On a GPU, where cuDNN plans each new shape, numbers of channels are rounded up; results stay the same."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asng import nas
from asng.nas.layers import conv as convolutions
from asng.space import Integer


@pytest.fixture(autouse=True)
def _rounding_everywhere(monkeypatch):
    monkeypatch.setattr(convolutions, "is_slow_for_new_shapes", lambda device: True)


def layers(bias=True):
    """A convolution and its mirror image, whose channels and kernels are searched."""
    wide, narrow, kernel = nas.Width("wide", 1, 100), nas.Width("narrow", 1, 40), nas.Value("k", Integer(1, 3)) * 2 - 1
    return torch.nn.ModuleList(
        [
            nas.Conv2d(wide, narrow, kernel, stride=2, padding=2, bias=bias),
            nas.ConvTranspose2d(narrow, wide, kernel, stride=2, padding=2, output_padding=1, bias=bias),
        ]
    ).double()


def gradients(model, images):
    """Output of both layers, and the gradients of a loss with respect to images and weights."""
    images = images.clone().requires_grad_()
    model.zero_grad()
    output = model[1](model[0](images))
    output.square().sum().backward()
    return [output, images.grad, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.long
@given(wide=st.integers(1, 100), narrow=st.integers(1, 40), kernel=st.integers(1, 3), bias=st.booleans())
def test_outputs_and_gradients_are_those_of_the_exact_channels(wide, narrow, kernel, bias):
    model, images = layers(bias), torch.rand(2, wide, 6, 6, dtype=torch.float64)
    nas.select(model, {"wide": wide, "narrow": narrow, "k": kernel})
    found = gradients(model, images)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolutions, "is_slow_for_new_shapes", lambda device: False)
        exact = gradients(model, images)
    assert [tensor.shape for tensor in found] == [tensor.shape for tensor in exact]
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in zip(found, exact, strict=True))


def test_a_search_over_a_hundred_widths_meets_only_a_few_shapes(monkeypatch):
    model, shapes = layers(), set()
    conv2d = torch.nn.functional.conv2d

    def note(input, weight, *rest):
        shapes.add((tuple(input.shape), tuple(weight.shape)))
        return conv2d(input, weight, *rest)

    monkeypatch.setattr(torch.nn.functional, "conv2d", note)
    for wide in range(1, 101):
        nas.select(model, {"wide": wide, "narrow": 1 + wide % 40, "k": 2})
        model[0](torch.zeros(1, wide, 4, 4, dtype=torch.float64))
    taken = {input[1] for input, _ in shapes}
    given = {weight[0] for _, weight in shapes}
    assert taken == {1, 2, 4, 8, 16, 32, 64, 96, 100}  # never more than there are
    assert given == {1, 2, 4, 8, 16, 32, 40}
    assert all(input[1] == weight[1] for input, weight in shapes)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_what_comes_out_is_laid_out_as_that_of_a_plain_layer(layout):
    model = layers().to(memory_format=layout)
    nas.select(model, {"wide": 33, "narrow": 5, "k": 2})
    images = torch.rand(2, 33, 6, 6, dtype=torch.float64).contiguous(memory_format=layout)
    for layer in model:
        images = layer(images)
        assert images.is_contiguous(memory_format=layout)


def test_a_single_image_without_a_batch_runs_too():
    model = layers()
    nas.select(model, {"wide": 33, "narrow": 5, "k": 1})
    assert model[1](model[0](torch.zeros(33, 8, 8, dtype=torch.float64))).shape == (33, 8, 8)


@pytest.mark.parametrize("shape", [(33,), (33, 8), (1, 2, 33, 8, 8)])
def test_an_input_that_is_no_image_is_refused_by_torch_in_its_own_words(shape):
    model = layers()
    nas.select(model, {"wide": 33, "narrow": 33, "k": 1})
    for layer in model:
        with pytest.raises(RuntimeError, match=r"Expected 3D \(unbatched\) or 4D \(batched\) input to conv"):
            layer(torch.zeros(shape, dtype=torch.float64))


def test_a_relu_in_place_has_the_same_gradients():
    model, images = layers(), torch.rand(2, 70, 6, 6, dtype=torch.float64)
    nas.select(model, {"wide": 70, "narrow": 13, "k": 2})
    found = []
    for relu in (torch.relu, torch.relu_):
        model.zero_grad()
        relu(model[1](relu(model[0](images)))).sum().backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_layers_of_several_groups_are_not_rounded():
    width = nas.Width("width", 1, 40)
    conv = nas.Conv2d(width, width, 3, padding=1, groups=width)
    nas.select(conv, {"width": 7})
    images = torch.rand(1, 7, 5, 5)
    assert torch.allclose(conv(images), conv.build_static()(images), atol=1e-6)


def test_gpus_plan_and_processors_do_not(monkeypatch):
    monkeypatch.undo()
    assert convolutions.is_slow_for_new_shapes(torch.device("cuda"))
    assert not convolutions.is_slow_for_new_shapes(torch.device("cpu"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_computes_what_the_cpu_does(monkeypatch):
    monkeypatch.undo()
    model, images = layers(), torch.rand(2, 70, 6, 6, dtype=torch.float64)
    nas.select(model, {"wide": 70, "narrow": 13, "k": 2})
    exact = gradients(model, images)
    found = gradients(copy.deepcopy(model).cuda(), images.cuda())
    assert all(torch.allclose(a.cpu(), b, rtol=1e-9, atol=1e-9) for a, b in zip(found, exact, strict=True))
