from tenfold.catalog import STRATEGIES
from tenfold.mixing.strategies import exchange_pattern


def alike(n, *, with_costs=False):
    """Return the strategies that exchange the same as all-reduce."""
    wanted = exchange_pattern(STRATEGIES["allreduce"](), n, with_costs=with_costs)
    return {name for name in STRATEGIES if exchange_pattern(STRATEGIES[name](), n, with_costs=with_costs) == wanted}


def test_two_workers_have_one_way_to_average():
    assert {"allreduce", "butterfly", "ring", "hopping-ring", "gossip", "parameter-server"} <= alike(2)
    assert not {"none", "downpour", "easgd", "ad-psgd"} & alike(2)


def test_more_workers_have_several():
    assert not {"butterfly", "ring", "gossip", "none"} & alike(4)
    assert "parameter-server" in alike(4)


def test_a_server_has_its_own_price():
    assert "parameter-server" not in alike(4, with_costs=True)
