import os

from tenfold.machine.load import machine_load


def test_the_load_is_not_negative():
    assert machine_load() >= 0


def test_a_system_without_a_load_average_has_none(monkeypatch):
    monkeypatch.delattr(os, "getloadavg")
    assert machine_load() is None
