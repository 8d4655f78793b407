import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that tests can import family_checks
pytest.register_assert_rewrite("family_checks")
