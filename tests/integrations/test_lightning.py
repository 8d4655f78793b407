"""PyTorch Lightning: a LightningModule with manual optimization searches, and its checkpoints continue a search."""

import pytest

from tests.helpers.examples import EXAMPLES, check_fit_after_a_checkpoint, run

pytest.importorskip("pytorch_lightning")

pytestmark = pytest.mark.long


def test_the_example_finds_what_it_says(tmp_path):
    path = next(path for path in EXAMPLES if path.stem == "lightning")
    check_fit_after_a_checkpoint(run(["-W", "error", str(path)], tmp_path))
    assert (tmp_path / "checkpoints" / "epoch=19-step=1000.ckpt").exists()
