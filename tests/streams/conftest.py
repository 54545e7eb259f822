import pytest


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """Return a folder shared by all examples of a property, each overwriting the last."""
    return tmp_path_factory.mktemp("scratch")
