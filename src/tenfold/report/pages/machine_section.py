"""The section about cores and memory on the page of a run."""

from typing import Any

from tenfold.report import clocks
from tenfold.report.formatting import byte_size, plural
from tenfold.report.plots import palette
from tenfold.report.summary import pinned_cpus
from tenfold.runs import Run

MOST_ALONE = 4
"""The memory of more workers than this is shown as a range."""


def machine_section(run: Run) -> dict[str, Any] | None:
    """Return the machine's cores with the workers on them, and the memory; None where nothing is known."""
    layout = _layout(run)
    peaks = _peak_lines(run)
    if not layout and not peaks:
        return None
    return {
        "nodes": [
            {"name": f"NUMA node {at}" if len(layout) > 1 else "", "cores": node} for at, node in enumerate(layout)
        ],
        "pinning": _pinning(run) if layout else "",
        "memory": peaks + _machine_lines(run),
    }


def _layout(run: Run) -> list[list[list[dict[str, Any]]]]:
    """Return the cpus of each core of each NUMA node: number, worker that was pinned to it, colour."""
    cpu = (run.facts.get("machine") or {}).get("cpu") or {}
    nodes = cpu.get("layout")
    if not isinstance(nodes, list) or run.clock == clocks.PREDICTED:
        return []
    owners = {one: worker for worker, cpus in enumerate(pinned_cpus(run)) for one in cpus}
    return [[[_cell(number, owners.get(number)) for number in core] for core in node] for node in nodes]


def _cell(cpu: int, worker: int | None) -> dict[str, Any]:
    colour = palette.SERIES[worker % len(palette.SERIES)] if worker is not None else ""
    return {"cpu": cpu, "worker": worker, "colour": colour}


def _pinning(run: Run) -> str:
    """Return a sentence about which workers ran on which cores."""
    pinned = sum(bool(cpus) for cpus in pinned_cpus(run))
    cores = run.facts.get("cores")
    note = str(cores.get("note") or "") if isinstance(cores, dict) else ""
    if not pinned:
        return f"No worker was pinned: the system chose the cores. {note}".strip()
    return f"{plural(pinned, 'worker')} pinned; the cpus of one core stand in one box. {note}".strip()


def _peak_lines(run: Run) -> list[tuple[str, str]]:
    """Return pairs of name and text: the most memory that the workers' processes had in use."""
    peaks = [size for size in run.result.get("peak_memory") or [] if size]
    if not peaks:
        return []
    if run.clock == clocks.PREDICTED:
        return [("peak of the simulation", byte_size(max(peaks)))]
    if len(peaks) > MOST_ALONE:
        return [(f"peak of {len(peaks)} workers", f"{byte_size(min(peaks))} to {byte_size(max(peaks))} each")]
    names = [f"peak of worker {worker}" for worker in range(len(peaks))] if len(peaks) > 1 else ["peak"]
    return [(name, byte_size(size)) for name, size in zip(names, peaks, strict=True)]


def _machine_lines(run: Run) -> list[tuple[str, str]]:
    memory = (run.facts.get("machine") or {}).get("memory") or {}
    named = {"total": "the machine has", "limit": "the container may use", "available": "free before the run"}
    return [(name, byte_size(memory[key])) for key, name in named.items() if memory.get(key)]
