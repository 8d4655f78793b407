import os
import signal

os.environ["OMP_NUM_THREADS"] = "1"  # the same sums in every process; set before torch is loaded

import pytest
from hypothesis import settings

from tests.helpers.layers import is_above

# Shells start what runs in the background deaf to Ctrl-C, nohup to a closed terminal, and all that it starts; the tests
# send both.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):  # not on Windows
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest.register_assert_rewrite(*(f"tests.helpers.{name}" for name in ("elastic_sizes", "examples", "family_checks")))

settings.register_profile("without deadlines", deadline=None)  # a busy machine is no failure
settings.load_profile("without deadlines")


def pytest_addoption(parser):
    parser.addoption("--layer", choices=["core", "nas"], help="only the tests that need no more than this layer")


def pytest_ignore_collect(collection_path, config):
    if collection_path.name == "packaging" and not any("packaging" in argument for argument in config.args):
        return True  # it installs packages; make test-packaging
    layer = config.getoption("--layer")
    path = collection_path / "conftest.py" if collection_path.is_dir() else collection_path
    return True if layer and path.suffix == ".py" and path.is_file() and is_above(layer, path) else None


@pytest.fixture(scope="session", autouse=True)
def user_cache(tmp_path_factory):
    """The user's cache folder, for processes that tests start, too: none of the tests writes into the real one."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture
def same_numbers():
    """The same weights in every test of a module, whichever ran before it."""
    import torch  # not for tests of what needs NumPy alone

    torch.manual_seed(0)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory that others may enter; those above it may be closed to them."""
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
