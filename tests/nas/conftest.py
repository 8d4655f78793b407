"""Fixtures of several files of tests of searches."""

import pytest
import torch

from asng.nas._capture import step as _capture
from asng.nas._capture.iteration import Iteration
from tests.helpers.searches import small_search


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The outcomes without a pause, with each kind of data loaders."""
    return {own: small_search(None, own_generator=own) for own in (False, True)}


@pytest.fixture
def nothing_compiled():
    """As if torch.compile had compiled nothing in this process yet."""
    torch._dynamo.utils.counters.clear()


@pytest.fixture
def graphless(monkeypatch):
    """Steps with capture=True run as on a GPU; only the graph is missing."""
    monkeypatch.setattr(_capture, "find_obstacle", lambda *given: None)
    monkeypatch.setattr(Iteration, "capture", lambda self: None)
