import pytest


@pytest.fixture(scope="session", autouse=True)
def idle_machine():
    """No other work on the machine: commands would say so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0), raising=False)
        yield
