"""Fixtures of several files of tests of searches."""

import pytest
import torch

from tests.helpers.searches import small_search


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The outcomes without a pause, with each kind of data loaders."""
    return {own: small_search(None, own_generator=own) for own in (False, True)}


@pytest.fixture
def nothing_compiled():
    """As if torch.compile had compiled nothing in this process yet."""
    torch._dynamo.utils.counters.clear()
