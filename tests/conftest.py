import os

os.environ["OMP_NUM_THREADS"] = "1"  # the same sums in every process; set before torch is loaded

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that tests can import family_checks
pytest.register_assert_rewrite("family_checks")
