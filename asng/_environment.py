"""What a run was made with: versions, machine, command line, time. No names of users or hosts."""

import os
import platform
import shlex
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from asng import __version__


def describe_environment() -> dict[str, Any]:
    """Versions, machine, command line and time of this process, as JSON holds them.

    torch is asked only if it is loaded, and for GPUs only if they are in use, since both take time and memory.

    >>> describe_environment()["numpy"] == np.__version__
    True
    """
    described: dict[str, Any] = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "asng": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        described |= {"torch": torch.__version__, "threads": torch.get_num_threads()}
        if torch.cuda.is_initialized():
            described |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return described


def _cpu_name() -> str:
    with suppress(OSError):  # there is none on other systems than Linux
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
