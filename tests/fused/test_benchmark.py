"""The benchmark of the layers compares kernels with what torch computes, and no layer with itself."""

import gpu_kernels
import pytest
import torch

pytest.importorskip("triton")

from tests.helpers.fused_layers import assert_close, channels_last, run

KERNELS = [f"_{name}Backward" for name in ("AvgPool", "MaxPool", "BatchNorm", "ScaledSum")]
KERNELS += ["PointwiseFunctionBackward", "SeparableFunctionBackward"]


@pytest.mark.parametrize("channels", [gpu_kernels.SEARCH[0][1], gpu_kernels.RETRAINING[-1][1]])
def test_all_rows_run_kernels_that_compute_what_torch_does(channels):
    names = []
    for name, ours, torchs, number in gpu_kernels.layers(channels):
        torchs.load_state_dict(ours.state_dict())
        inputs = [channels_last((2, channels, 4, 4), torch.float32, seed) for seed in range(number)]
        expected = run(torchs.double(), *(x.double() for x in inputs))
        got = run(ours, *inputs)
        assert_close(got, expected, torch.float32)
        assert got.used in KERNELS, name
        names.append(name)
    assert len(set(names)) == len(names) == (15 if 2 * channels <= 256 else 13)
