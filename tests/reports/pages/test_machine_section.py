"""Cores and memory on the page of a run."""

from made_runs import FACTS, make_run

from tenfold.reports.pages.run_pages import render_report
from tenfold.reports.pages.sections import machine_section

LAYOUT = [[[0, 4], [1, 5]], [[2, 6], [3, 7]]]


def pinned(folder, workers, **result):
    cpu = {**FACTS["machine"]["cpu"], "layout": LAYOUT}
    metadata = {**FACTS, "machine": {**FACTS["machine"], "cpu": cpu}, "cores": {"workers": workers, "note": ""}}
    return make_run(folder, steps_per_epoch=5, epochs=1, metadata=metadata, result=result or None)


def test_cores_show_their_workers(tmp_path):
    run = pinned(tmp_path, [[0, 4], [2]], peak_memory=[2**30, 2**29])
    section = machine_section(run)
    assert [node["name"] for node in section["nodes"]] == ["NUMA node 0", "NUMA node 1"]
    cells = [cell for node in section["nodes"] for core in node["cores"] for cell in core]
    assert {cell["cpu"]: cell["worker"] for cell in cells if cell["worker"] is not None} == {0: 0, 4: 0, 2: 1}
    assert section["memory"][:2] == [("peak of worker 0", "1 GiB"), ("peak of worker 1", "512 MiB")]
    page = render_report([run])
    assert 'title="cpu 2: worker 1"' in page
    assert "Cores and memory" in page


def test_without_pinning_the_system_chose(tmp_path):
    assert machine_section(pinned(tmp_path, [[]]))["pinning"].startswith("No worker was pinned")


def test_where_nothing_is_known_there_is_no_section(tmp_path):
    run = make_run(tmp_path, steps_per_epoch=5, epochs=1)
    assert machine_section(run) is None
    assert "Cores and memory" not in render_report([run])
