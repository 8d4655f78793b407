"""Golden values on the disk: a JSON file for each case, with the machine that computed it, and how they are compared.

    python -m tests.helpers.golden_files [CASE ...]     compute cases again, by default all whose data is there

Do so only where numbers are meant to change, and say why in the commit.
"""

import argparse
import json
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded: the order of sums follows the number of threads

import numpy as np
import torch

from tests.helpers.golden_values import QUICK, SLOW, Missing, pack

FOLDER = Path(__file__).parents[1] / "golden"
NUMPY_ALONE = {"ask_tell", "toy_short", "toy_quick"}  # cases that torch has no part in
HEXADECIMAL = re.compile(r"-?0x[01]\.[0-9a-f]+p[+-]\d+|-?inf|nan")


def path_of(case: str) -> Path:
    return FOLDER / f"{case}.json"


def machine_of(case: str) -> dict[str, Any]:
    """What the last digits depend on: libraries add up in orders of their own, which they choose by the processor."""
    simd: Any = np.show_config(mode="dicts")
    machine = {
        "processor": _processor(),
        "libc": " ".join(platform.libc_ver()),
        "numpy": np.__version__,
        "simd": simd["SIMD Extensions"].get("found", []),
    }
    if case not in NUMPY_ALONE:
        machine |= {"torch": str(torch.__version__), "kernels": torch.backends.cpu.get_cpu_capability()}
    return machine


def _processor() -> str:
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text().split("\n\n")[0].splitlines() if cpus.exists() else []
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    kind = [fields[name] for name in ("vendor_id", "cpu family", "model") if name in fields]
    return " ".join([platform.machine(), *(kind or [platform.processor()])])


def differences(there: Any, here: Any, tolerance: float | None = None, where: str = "") -> list[str]:
    """The places where packed values differ: in any bit or, with a tolerance, in floats by more than this share."""
    if isinstance(there, dict) and isinstance(here, dict) and there.keys() == here.keys():
        parts = [(there[name], here[name], f"{where}/{name}") for name in there]
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        parts = [(*pair, f"{where}[{at}]") for at, pair in enumerate(zip(there, here, strict=True))]
    else:
        return [] if _alike(there, here, tolerance) else [f"{where}: {_show(there)} there, {_show(here)} here"]
    return [line for part in parts for line in differences(part[0], part[1], tolerance, part[2])]


def _alike(there: Any, here: Any, tolerance: float | None) -> bool:
    if tolerance is not None and _is_float(there) and _is_float(here):
        one, other = float.fromhex(there), float.fromhex(here)
        return bool(np.isclose(one, other, rtol=tolerance, atol=tolerance * 1e-3, equal_nan=True))
    return type(there) is type(here) and there == here


def _is_float(value: Any) -> bool:
    return isinstance(value, str) and HEXADECIMAL.fullmatch(value) is not None


def _show(value: Any) -> str:
    return f"{value} ({float.fromhex(value):.6g})" if _is_float(value) else str(value)[:80]


def changes(case: str, values: dict[str, Any]) -> list[str]:
    """Where values differ from the fixture: in any bit on a machine like its own, elsewhere by more than rounding."""
    fixture, here = json.loads(path_of(case).read_text()), pack(values)
    if fixture["machine"] == machine_of(case):
        return differences(fixture["values"], here)
    tolerance = 1e-7 if case in NUMPY_ALONE else 1e-4  # of doubles, and of single precision trained for a while
    return differences(fixture["values"]["portable"], here["portable"], tolerance)


def write(case: str, values: dict[str, Any]) -> None:
    fixture = {"machine": machine_of(case), "values": pack(values)}
    text = json.dumps(fixture, indent=1)
    flat = re.sub(r"\[[^][{}]*\]", lambda match: re.sub(r"\s+", " ", match[0]), text)  # lists of numbers in a line
    path_of(case).write_text(flat + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join((*QUICK, *SLOW)))
    torch.set_num_threads(1)
    cases = {**QUICK, **SLOW}
    for case in parser.parse_args().cases or cases:
        try:
            write(case, cases[case]())
        except Missing as missing:
            sys.stderr.write(f"{case} is left as it is: {missing}\n")


if __name__ == "__main__":
    main()
