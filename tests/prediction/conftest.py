import pytest


@pytest.fixture(autouse=True)
def _in_every_test(_warm_server: None, _in_a_folder_of_its_own: None) -> None:
    pass
