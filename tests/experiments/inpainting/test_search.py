"""The search for inpainting: what it computes, that it resumes bit-equal, both encodings; on small images of noise."""

import json
import math
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from asng import ASNG, Integer, nas
from asng.experiments._image_runs import search
from asng.experiments._images import Batches, ImageSet, halves
from asng.experiments._jobs import TRAIN, VALID, SearchJob
from asng.experiments.inpainting import measures
from asng.experiments.inpainting.data import fixed_masks, mask_batches
from asng.experiments.inpainting.encoding import describe_chain, search_space, smallest_values
from asng.experiments.inpainting.network import Net
from asng.experiments.inpainting.task import MASK_SEED, Inpainting, InpaintingSearchSettings, spread_indices
from asng.nas._loop import Epoch
from asng.nas.architecture import from_json
from asng.runs import METRICS

pytestmark = pytest.mark.long

TINY = InpaintingSearchSettings(iterations=6, checkpoint_every=2, layers=3, widths=(2, 4), batch_size=2)


@pytest.fixture(scope="module")
def faces():
    def some(n, seed):
        generator = torch.Generator().manual_seed(seed)
        pixels = torch.randint(256, (n, 3, 16, 16), generator=generator, dtype=torch.uint8)
        return ImageSet(pixels, names=tuple(f"{seed}-{number}" for number in range(n)))

    return some(12, 0), some(5, 1)


def settings_with(**settings):
    return InpaintingSearchSettings(**{**vars(TINY), **settings})


def make_job(settings, faces):
    return SearchJob(Inpainting(*faces), settings)


def test_the_defaults_are_the_papers():
    settings = InpaintingSearchSettings()
    assert (settings.iterations, settings.batch_size, settings.layers, settings.lr) == (50_000, 16, 20, 0.025)
    assert (settings.population_size, settings.method, settings.encoding, settings.mask) == (2, "asng", "cat", "center")


def test_a_search_is_capturable_with_fused_kernels_alone(faces):
    assert Inpainting(*faces).is_capturable
    assert not Inpainting(*faces, kernels="torch").is_capturable


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("kernels", ["fused", "torch"])
def test_on_a_gpu_a_search_is_captured_with_fused_kernels_alone(faces, kernels):
    train, test = (ImageSet(each.images.cuda(), names=each.names) for each in faces)
    job = SearchJob(Inpainting(train, test, kernels=kernels), TINY, capture=True)
    for index in range(2):
        job.step(index)
    assert bool(job.oneshot.capture_cost) == (kernels == "fused")


def test_an_iteration_is_the_papers(faces):
    """Both halves see their own faces; all architectures of a half see the same faces and holes; no decay."""
    job = make_job(settings_with(mask="pixel", seed=5), faces)
    group = job.oneshot.weight_optimizer.param_groups[0]
    assert isinstance(job.arch_optimizer, ASNG)
    assert (group["momentum"], group["weight_decay"]) == (0.9, 0.0)
    seen = []
    inner = job.oneshot._loss_fn

    def watch(model, batch):
        seen.append(batch)
        return inner(model, batch)

    job.oneshot._loss_fn = watch
    job.step(4)
    batches = [
        Batches(faces[0], half, 2, partial(mask_batches, "pixel"), 5, stream)(4)
        for half, stream in zip(halves(12, 5), (TRAIN, VALID), strict=True)
    ]
    for batch, expected in zip(seen, (batches[0], batches[0], batches[1], batches[1]), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(batch, expected, strict=True))


def test_weights_and_candidates_follow_from_the_seed(faces):
    job = make_job(settings_with(seed=5), faces)
    torch.manual_seed(5)
    twin = Net(search_space("cat", 3, widths=(2, 4)), (16, 16))
    assert all(map(torch.equal, job.model.parameters(), twin.parameters()))
    twins = ASNG(search_space("cat", 3, widths=(2, 4)), seed=np.random.SeedSequence(5).spawn(2)[0])
    assert [one.values for one in job.arch_optimizer.ask(9)] == [one.values for one in twins.ask(9)]


def test_a_gradient_longer_than_5_is_shortened(faces):
    job = make_job(TINY, faces)
    inner = job.oneshot._loss_fn
    job.oneshot._loss_fn = lambda model, batch: 1e6 * inner(model, batch)
    job.step(0)
    moved = [state["momentum_buffer"] for state in job.oneshot.weight_optimizer.state.values()]
    assert torch.stack([momentum.norm() for momentum in moved]).norm().item() == pytest.approx(5, rel=1e-4)


def test_mixed_precision_is_that_of_the_settings(faces):
    for amp_dtype, expected in (("off", torch.float32), ("bfloat16", torch.bfloat16)):
        job = make_job(settings_with(amp_dtype=amp_dtype), faces)
        seen: list[torch.dtype] = []
        hook = job.model.last.register_forward_hook(lambda module, inputs, output, seen=seen: seen.append(output.dtype))
        job.step(0)
        hook.remove()
        assert seen == [expected] * 4


def test_the_loss_is_the_squared_error_over_the_whole_image(faces):
    job = make_job(TINY, faces)
    original, corrupted = Batches(faces[0], torch.arange(12), 2, partial(mask_batches, "center"), 0, TRAIN)(0)
    nas.select(job.model, job.arch_optimizer.mode())
    restored = job.model(corrupted)
    assert torch.equal(job._task.search_loss(job.model, (original, corrupted)), F.mse_loss(restored, original))
    assert restored.shape == original.shape


def test_the_learning_rate_falls_in_every_iteration_on_a_cosine(faces):
    job = make_job(TINY, faces)
    for number in range(6):
        job.step(number)
        rate = job.oneshot.weight_optimizer.param_groups[0]["lr"]
        assert rate == pytest.approx(0.025 * (1 + math.cos(math.pi * number / 6)) / 2)


@pytest.fixture(scope="module", params=["cat", "int"])
def whole(request, faces, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    settings = settings_with(encoding=request.param)
    return settings, folder, search(Inpainting(*faces), settings, folder)


def test_a_run_leaves_metrics_architecture_and_a_summary(whole):
    settings, folder, summary = whole
    records = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    assert [(record["checkpoint"], record["step"]) for record in records] == [(1, 2), (2, 4), (3, 6)]
    for record in records:
        assert {"train_loss", "valid_loss", "largest_probability", "delta", "test_psnr", "test_ssim"} <= set(record)
        assert record["images_per_second"] * record["seconds"] == pytest.approx(2 * 2 * 2)  # of both halves
    space = nas.space_of(make_job(settings, small()).model)
    assert space == search_space(settings.encoding, 3, widths=(2, 4))
    assert any(isinstance(variable, Integer) for variable in space.values()) == (settings.encoding == "int")
    values = from_json((folder / "architecture.json").read_text(), space)
    assert values == summary["values"]
    assert summary["chain"] == describe_chain(values, (16, 16)).splitlines()
    assert json.loads((folder / "summary.json").read_text())["values"] == json.loads(json.dumps(values))


def small():
    faces = ImageSet(torch.zeros(8, 3, 16, 16, dtype=torch.uint8), names=tuple("abcdefgh"))
    return faces, faces


def test_the_most_likely_architecture_is_tested_with_fixed_masks(faces):
    job = make_job(settings_with(mask="half", seed=3), faces)
    record = job.finish_epoch(Epoch())
    model = nas.extract(job.model, job.arch_optimizer.mode())
    scores = measures.score_restoration(model, faces[1].images, fixed_masks("half", 5, (16, 16), MASK_SEED))
    assert record["test_psnr"] == pytest.approx(float(scores.psnr.mean()))
    assert record["test_ssim"] == pytest.approx(float(scores.ssim.mean()))
    assert "test_psnr" not in make_job(settings_with(test=False), faces).finish_epoch(Epoch())


def test_the_masks_of_test_faces_are_the_same_for_all_runs_and_machines():
    known = [mask.flatten().int().tolist() for mask in fixed_masks("pixel", 3, (4, 4), MASK_SEED)]
    assert ["".join(map(str, row)) for row in known] == ["1101001000010001", "0110000100000000", "0010000000000011"]
    assert fixed_masks("half", 3, (4, 4), MASK_SEED)[:, 0, 0].int().tolist() == [
        [0, 0, 1, 1],
        [1, 1, 1, 1],
        [1, 1, 0, 0],
    ]


SPACE = nas.space_of(make_job(TINY, small()).model)


@pytest.mark.parametrize("size", [(2, 2), (2, 3), (16, 16)])
def test_none_of_all_architectures_has_fewer_parameters_than_the_least(size):
    net = Net(search_space("cat", layers=2, levels=2, widths=(2, 3)), size)
    space: dict[str, Any] = nas.space_of(net)
    every = [dict(zip(space, choices, strict=True)) for choices in product(*(v.choices for v in space.values()))]
    assert len(every) == 576
    assert nas.parameters(net, smallest_values(space)) == min(nas.parameters(net, values) for values in every)


def test_a_limit_below_the_smallest_architecture_is_refused(faces, tmp_path):
    least = nas.parameters(make_job(TINY, faces).model, smallest_values(SPACE))
    with pytest.raises(
        ValueError, match=f"smallest architecture has {least} parameters, more than max_params={least - 1}"
    ):
        search(Inpainting(*faces), settings_with(max_params=least - 1), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    make_job(settings_with(max_params=least), faces)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"iterations": 5}, "iterations must be a multiple of checkpoint_every, 2, got 5"),
        ({"layers": 1}, "layers must be at least 2, got 1"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        settings_with(**settings)


@pytest.mark.parametrize("images", [0, -3])
def test_no_faces_at_all_are_an_error(images):
    with pytest.raises(ValueError, match=f"num_train_images must be at least 1, got {images}"):
        settings_with(num_train_images=images)


def test_where_there_are_fewer_faces_than_asked_for_all_are_used():
    assert spread_indices(12, 13).tolist() == list(range(12))


def test_fewer_faces_are_used_from_all_over_their_order(faces):
    job = make_job(settings_with(num_train_images=4, batch_size=2), faces)
    few = {tuple(image.flatten().tolist()) for face in faces[0].images[::3] for image in (face, face.flip(2))}
    for batches in (job.train_batches, job.valid_batches):
        for image in (batches(0)[0] * 255).round().byte():
            assert tuple(image.flatten().tolist()) in few
