"""Training an autoencoder from scratch: schedule, resumption, and what evaluating leaves; on small images of noise."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from asng import ASNG, nas
from asng.experiments._image_runs import evaluate, retrain, search
from asng.experiments._images import Batches, ImageSet
from asng.experiments._jobs import TRAIN, SearchJob, TrainJob
from asng.experiments.inpainting import measures
from asng.experiments.inpainting.data import fixed_masks, mask_batches
from asng.experiments.inpainting.encoding import base_values, search_space
from asng.experiments.inpainting.network import new_autoencoder
from asng.experiments.inpainting.task import (
    MASK_SEED,
    NUM_TEST_FACES,
    Inpainting,
    InpaintingRetrainSettings,
    InpaintingSearchSettings,
)
from asng.nas import _checkpoints as checkpoints
from asng.nas._loop import Epoch
from asng.runs import CHECKPOINT, read_config

pytestmark = pytest.mark.long

TINY = InpaintingRetrainSettings(iterations=10, checkpoint_every=5, batch_size=2, mask="half")
VALUES = ASNG(search_space("cat", layers=3, widths=(2, 4)), seed=4).ask(1)[0].values


@pytest.fixture(scope="module")
def faces():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (9, 3, 16, 16), generator=generator, dtype=torch.uint8)
    some = ImageSet(pixels, names=tuple("abcdefghi"))
    return some, some.subset(torch.arange(4))


def test_the_defaults_are_the_papers():
    settings = InpaintingRetrainSettings()
    assert (settings.iterations, settings.batch_size, settings.lr, settings.mask) == (500_000, 16, 1e-3, None)


def test_the_learning_rate_falls_to_a_tenth_at_two_and_at_four_fifths(faces):
    job = TrainJob(Inpainting(*faces), TINY, VALUES)
    rates = []
    for number in range(10):
        job.step(number)
        rates.append(job._train_step.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([1e-3] * 4 + [1e-4] * 4 + [1e-5] * 2)
    assert replace(TINY, lr=1.0).lr_at(0.399) == 1.0


def test_a_step_is_adam_on_the_squared_error_with_clipping(faces):
    job = TrainJob(Inpainting(*faces), replace(TINY, seed=6), VALUES)
    torch.manual_seed(6)
    twin = new_autoencoder(VALUES, (16, 16))
    optimizer = torch.optim.Adam(twin.parameters(), lr=1e-3)
    batches = Batches(faces[0], torch.arange(9), 2, partial(mask_batches, "half"), 6, TRAIN)
    for number in range(3):
        loss = job.step(number)["train_loss"]
        original, corrupted = batches(number)
        optimizer.zero_grad()
        expected = F.mse_loss(twin(corrupted), original)
        expected.backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 5.0)
        optimizer.step()
        assert float(loss) == expected.item()
    assert all(torch.equal(a, b) for a, b in zip(job.model.parameters(), twin.parameters(), strict=True))


def test_a_gradient_longer_than_5_is_shortened(faces):
    job = TrainJob(Inpainting(*faces), TINY, VALUES)
    inner = job._train_step._loss_fn
    job._train_step._loss_fn = lambda model, batch: 1e6 * inner(model, batch)
    job.step(0)
    means = [state["exp_avg"] for state in job._train_step.optimizer.state.values()]  # a tenth of the first gradient
    assert torch.stack([mean.norm() for mean in means]).norm().item() == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize(("amp_dtype", "expected"), [("off", torch.float32), ("bfloat16", torch.bfloat16)])
def test_mixed_precision_is_that_of_the_settings(faces, amp_dtype, expected):
    job = TrainJob(Inpainting(*faces), replace(TINY, amp_dtype=amp_dtype), VALUES)
    seen: list[torch.dtype] = []
    job.model.get_submodule("last").register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    job.step(0)
    assert seen == [expected]


@pytest.fixture(scope="module")
def whole(faces, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, retrain(Inpainting(*faces), TINY, VALUES, folder)


def test_a_run_does_not_go_on_with_other_faces(faces, whole):
    fewer = faces[0].subset(torch.arange(8))
    with pytest.raises(ValueError, match=r"faces.*8 to train with.*another folder"):
        retrain(Inpainting(fewer, faces[1]), TINY, VALUES, whole[0])


def test_evaluating_leaves_all_numbers_and_a_picture(faces, whole):
    folder, summary = whole
    report = evaluate(Inpainting(faces[1], faces[1]), folder, read_config(folder))
    model = new_autoencoder(VALUES, (16, 16))
    model.load_state_dict(checkpoints.load(folder / CHECKPOINT)["job"]["model"])
    scores = measures.score_restoration(model, faces[1].images, fixed_masks("half", 4, (16, 16), MASK_SEED))
    assert report["psnr"] == pytest.approx(float(scores.psnr.mean()))
    assert report["ssim"] == pytest.approx(float(scores.ssim.mean()))
    assert summary["last"]["test_psnr"] == pytest.approx(report["psnr"])
    assert summary["last"]["images_per_second"] * summary["last"]["seconds"] == pytest.approx(5 * 2)
    assert (report["kind"], report["steps"], report["images"]) == ("retrain", 10, 4)
    assert json.loads((folder / "evaluation.json").read_text()) == report
    assert [one["image"] for one in report["per_image"]] == list("abcd")
    with Image.open(folder / "restored.png") as picture:
        assert picture.width > picture.height > 16


def test_fewer_faces_are_used_from_all_over_their_order(faces):
    job = TrainJob(Inpainting(*faces), replace(TINY, num_train_images=3), VALUES)
    expected = Batches(faces[0], torch.tensor([0, 3, 6]), 2, partial(mask_batches, "half"), 0, TRAIN)
    for number in range(4):
        assert all(map(torch.equal, job.train_batches(number), expected(number)))


def test_evaluating_a_search_tests_what_it_found_on_all_faces(faces, tmp_path):
    many = faces[0].subset(torch.arange(NUM_TEST_FACES + 5) % 9)
    settings = InpaintingSearchSettings(
        iterations=2, checkpoint_every=2, layers=3, widths=(2, 4), batch_size=2, encoding="int", mask="pixel"
    )
    summary = search(Inpainting(faces[0], many), settings, tmp_path)
    report = evaluate(Inpainting(many, many), tmp_path, read_config(tmp_path))
    assert (report["kind"], report["images"]) == ("search", NUM_TEST_FACES + 5)
    evenly_spaced = [
        report["per_image"][number * (NUM_TEST_FACES + 5) // NUM_TEST_FACES]["psnr"] for number in range(NUM_TEST_FACES)
    ]
    # On the way fewer are enough, each behind the mask that it has among all.
    assert sum(evenly_spaced) / NUM_TEST_FACES == pytest.approx(summary["last"]["test_psnr"])
    assert nas.space_of(SearchJob(Inpainting(*faces), settings).model).keys() == summary["values"].keys()


def test_training_learns_to_fill_holes(faces):
    """Faces of one color each: what is missing follows from what is there."""
    pixels = torch.randint(256, (9, 3, 1, 1), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    plain = ImageSet(pixels.expand(9, 3, 16, 16).contiguous(), names=faces[0].names)
    values = base_values(search_space("cat", layers=3, widths=(8, 16)), depth=2, channels=16)
    settings = InpaintingRetrainSettings(iterations=400, checkpoint_every=400, batch_size=8, mask="pixel", lr=0.01)
    job = TrainJob(Inpainting(plain, plain), settings, values)
    before = job.finish_epoch(Epoch())["test_psnr"]
    for number in range(400):
        job.step(number)
    assert job.finish_epoch(Epoch())["test_psnr"] > before + 6
