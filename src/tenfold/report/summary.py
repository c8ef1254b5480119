"""What came out of one run, in words: the facts that tables and pages show alike."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from tenfold.report import clocks
from tenfold.report.formatting import count, duration, measure, plain, rate, setting, several
from tenfold.runs import Run
from tenfold.runs.store import FOLDED

KINDS = ("data", "compute", "wait", "communicate", "evaluate", "save", "start")
"""What time is spent on, in the order in which it is shown."""
TRAINING_KINDS = KINDS[:4]
FEW_NAMED = 4
NAMES = {
    "evaluate": "evaluation",
    "save": "saving",
    "start": "start",
    "wait": "waiting",
    "communicate": "communication",
}


def model(run: Run) -> str:
    """Return the network and its size."""
    name = setting(run.experiment.flat()["model"])
    size = parameters(run)
    return f"{name}, {several(size, 'parameter')}" if size is not None else name


def parameters(run: Run) -> int | None:
    """Return how many numbers the network learns."""
    known: int | None = run.facts.get("parameters")
    return known


def data(run: Run) -> str:
    """Return the data set and the sizes of its parts."""
    facts: dict[str, Any] = run.facts.get("data") or {}
    parts = [("train", "training"), ("validation", "validation"), ("test", "test")]
    sizes = [f"{count(facts[key])} {word}" for key, word in parts if facts.get(key)]
    name = plain(str(facts.get("name") or setting(run.experiment.flat()["data"])))
    return f"{name}, {_listed(sizes)} samples" if sizes else name


def trained(run: Run) -> str:
    """Return for how long, in epochs and steps."""
    wanted, done = run.experiment.training.epochs, run.result.get("epochs", len(run.history))
    text = several(done, "epoch") if done == wanted else f"{count(done)} of {several(wanted, 'epoch')}"
    if (steps := run.result.get("steps")) is not None:
        text += f", {several(steps, 'step')}"
    if run.result.get("stopped_early"):
        text += ", stopped early"
    if (best := run.result.get("best_epoch")) is not None:
        text += f", weights of epoch {count(best)}"
    return text


def speed(run: Run) -> str:
    """Return the training time, which is always said to be measured or predicted, and the samples a second."""
    text = clocks.training(run)
    per_second = run.result.get("samples_per_second")
    return f"{text}, {rate(per_second)}" if per_second is not None else text


def besides(run: Run) -> str:
    """Return the time that is spent on other things than training."""
    times = run.times
    spent = [f"{NAMES[kind]} {duration(times[kind])}" for kind in ("start", "evaluate", "save") if kind in times]
    return f"{', '.join(spent)}, {run.clock}" if spent else ""


def foretold(run: Run) -> list[str]:
    """Return what is to be known about a prediction, in sentences; nothing of a run that was measured."""
    if run.clock != clocks.PREDICTED:
        return []
    found = [plain(str(reason)) for reason in run.result.get("reasons") or []]
    if clocks.is_uncalibrated(run):
        found.insert(0, f"The clock is {clocks.UNCALIBRATED}.")
    if (seconds := run.result.get("simulated_in")) is not None:
        found.append(f"The simulation itself took {duration(seconds)}, measured.")
    return found


def hosts(run: Run) -> str:
    """Return how many workers and threads did it."""
    workers = run.result.get("workers", run.experiment.division.workers)
    threads = run.result.get("threads", run.experiment.machine.threads)
    each = f" with {several(threads, 'thread')}" + (" each" if workers > 1 else "") if threads else ""
    if run.kind == FOLDED:
        each = ""  # every fold has threads of its own
    if run.clock == clocks.PREDICTED:
        return f"{several(workers, 'virtual worker')}{each}"
    return f"{several(workers, 'worker')}{each} on {setting(run.experiment.machine.device)}{pinned(run)}"


def pinned(run: Run) -> str:
    """Return which worker had which cpus, "" where none was pinned."""
    cores = run.facts.get("cores", {})
    cpus = [",".join(map(str, listed)) for listed in cores.get("workers", []) if listed]
    return f", cpus {' | '.join(cpus)}" if cpus else ""


def part(run: Run) -> str:
    """Return which part of the data the final measurements were made on."""
    return plain(str(run.result.get("part") or "test"))


def part_of_any(runs: Iterable[Run]) -> str:
    """Return which part it was in the first of these runs that measured anything."""
    return next((part(run) for run in runs if run.metrics), "test")


def scores(run: Run) -> dict[str, float]:
    """Return the final measurements, the accuracy first and the loss last."""
    return dict(sorted(run.metrics.items(), key=lambda item: (item[0] != "accuracy", item[0] == "loss")))


def reasons(told: Sequence[tuple[str, Iterable[str]]]) -> list[str]:
    """Return the sentences that explain predictions, each once, with the names of the settings that it is about."""
    found: dict[str, list[str]] = {}
    for name, sentences in told:
        for sentence in dict.fromkeys(sentences):
            found.setdefault(plain(sentence), []).append(name)
    return [f"{sentence} ({_whom(names, len(told))})" for sentence, names in found.items()]


def outcome(run: Run) -> list[tuple[str, str]]:
    """Return everything that came out, as names and texts; what was not measured is left out."""
    rows = [("model", model(run)), ("data", data(run)), ("trained", trained(run))]
    rows += [(f"{part(run)} {plain(name)}", measure(name, value)) for name, value in scores(run).items()]
    if run.seconds is not None:
        rows.append(("training time", speed(run)))
    if other := besides(run):
        rows.append(("besides", other))
    rows += [("" if at else "prediction", text) for at, text in enumerate(foretold(run))]
    return [*rows, ("workers", hosts(run)), *(("lost", text) for text in losses(run))]


def losses(run: Run) -> list[str]:
    """Return which workers were lost on the way, in sentences."""
    return [
        f"{plain(str(loss['why']))}; {several(loss['left'], 'worker')} went on from epoch {count(loss['epoch'])}"
        for loss in run.result.get("lost") or []
    ]


def ending(run: Run) -> str:
    """Return what went wrong and what to do about it; nothing for a run that finished."""
    if run.status == "failed":
        return run.error.strip() or "failed, without having said why"
    if run.status == "interrupted":
        reason = f"{run.error.strip()}\n" if run.error.strip() else ""
        return f"{reason}`tenfold resume {run.id}` goes on from the last epoch that was saved"
    return "still running; what is shown is what is known so far" if run.status == "running" else ""


def times(run: Run) -> dict[str, float]:
    """Return the seconds by kind, in the order of KINDS; without a result, added up from the spans."""
    known: dict[str, float] = run.times
    if not known:
        workers = set()
        sums: dict[str, float] = defaultdict(float)
        for span in run.spans():
            sums[span.kind] += span.seconds
            workers.add(span.worker)
        known = {kind: seconds / len(workers) for kind, seconds in sums.items()}
    return {kind: known[kind] for kind in (*KINDS, *sorted(set(known) - set(KINDS))) if known.get(kind)}


def _whom(names: Sequence[str], among: int) -> str:
    if len(names) == among:
        return "all settings" if among > 1 else names[0]
    more = f", and {len(names) - FEW_NAMED} more" if len(names) > FEW_NAMED else ""
    return f"{'; '.join(names[:FEW_NAMED])}{more}"


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
