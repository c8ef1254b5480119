import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Networks this small only wait for their threads, most of all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
