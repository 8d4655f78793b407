"""Times of the kernels of separable convolutions and batch norms by their block sizes; for development."""

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from kernels import gradients, kernel_times, microseconds, random

from asng import fused
from asng.experiments.cifar10.network import separable
from asng.fused import _norm, _separable

VARIANTS = [
    {},
    {"ELEMENTS": 8},
    {"ELEMENTS": 32},
    {"DEPTHWISE_ELEMENTS": 16},
    {"DEPTHWISE_ELEMENTS": 16, "MAX_TILE": 2048, "MIN_PROGRAMS": 512},
    {"DEPTHWISE_ELEMENTS": 64},
    {"MAX_TILE": 2048, "MIN_PROGRAMS": 512},
    {"MAX_TILE": 8192},
    {"WEIGHT_PROGRAMS": 264},
    {"WEIGHT_PROGRAMS": 66},
    {"MAX_SUMS": 2048},
    {"MAX_SUMS": 8192, "PROGRAMS": 528},
    {"MAX_CHANNELS_NORM": 16},
]
CASES = [
    ((64, 16, 32, 32), 3),
    ((64, 16, 32, 32), 5),
    ((64, 32, 16, 16), 5),
    ((64, 64, 8, 8), 3),
    ((80, 57, 32, 32), 3),
]
CASES += [((80, 57, 32, 32), 5), ((80, 116, 16, 16), 3), ((80, 228, 8, 8), 3)]


def use(variant: dict[str, int]) -> dict[str, int]:
    old = {}
    for name, value in variant.items():
        module = _separable if hasattr(_separable, name) and name != "MAX_CHANNELS" else _norm
        target = "MAX_CHANNELS" if name == "MAX_CHANNELS_NORM" else name
        old[name] = getattr(module, target)
        setattr(module, target, value)
    return old


def warm(job: tuple[dict[str, int], tuple[int, ...], int]) -> None:
    variant, shape, kernel = job
    use(variant)
    layer = fused.SeparableConv2d(*separable(shape[1], kernel, 1, True)).cuda()
    try:
        gradients(layer, [random(shape, "bfloat16")], True, None)
        gradients(fused.BatchNorm2d(shape[1]).cuda(), [random(shape, "bfloat16")], True, None)
    except Exception as error:
        print(job, str(error)[:200])


def main() -> None:
    only = sys.argv[1:]
    jobs = [
        (variant, shape, kernel) for shape, kernel in CASES for variant in VARIANTS if not only or str(shape[1]) in only
    ]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        list(pool.map(warm, jobs))
    for variant, shape, kernel in jobs:
        old = use(variant)
        try:
            layer = fused.SeparableConv2d(*separable(shape[1], kernel, 1, True)).cuda()
            sets = [[random(shape, "bfloat16")] for _ in range(4)]
            dy = random(shape, "bfloat16")
            total = microseconds(layer, sets, True, dy)
            norm = microseconds(fused.BatchNorm2d(shape[1]).cuda(), sets, True, dy)
            names = {
                "separable_forward": "F",
                "pointwise_backward": "PB",
                "depthwise_backward": "DB",
                "reduce_rows": "R",
            }
            names |= {
                "batch_norm_forward": "N",
                "batch_norm_gradient_sums": "S",
                "merge_moments": "MM",
                "merge_sums": "MS",
            }
            times = kernel_times(layer, sets, True, dy)
            text = " ".join(f"{names.get(k, k)} {us:.1f}" for k, us in times.items() if us > 0.5)
            print(f"{shape[1]:>4} k{kernel} {variant!s:<70} sep {total:6.1f} norm {norm:5.1f} {text}", flush=True)
        except Exception as error:
            print(shape, kernel, variant, str(error)[:200])
        use(old)


if __name__ == "__main__":
    main()
