"""The texts of a report about a run: its settings, times, warnings, and the quality of its model."""

import base64
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tenfold.common.metric_traits import loss_last
from tenfold.errors import StoreError
from tenfold.experiment import Experiment
from tenfold.machine.metadata import MOST_LOAD_PER_CORE
from tenfold.prediction.ledger import Ledger
from tenfold.reports.formatting import (
    count,
    duration,
    field_value,
    grouped,
    interval,
    metric_value,
    name_some,
    one_line,
    plural,
    ratio,
)
from tenfold.runs import Run
from tenfold.runs.store import CROSSVAL, SCRIPT, SWEEP
from tenfold.runs.stored_predictions import Predictions

LARGEST_CONFUSION_MATRIX = 40
"""With more classes than this, a confusion matrix is unreadable."""
BINS = 10
MOST_POINTS = 1500


def model_quality(run: Run) -> dict[str, Any] | None:
    """Return confusion matrix, accuracy by class, calibration and mistakes of a run's model; for a regression, values.

    Return None if no predictions are stored.
    """
    if run.status == "running":
        return None
    for part in ("validation",) if run.kind == CROSSVAL else ("test", "validation"):
        try:
            predictions = run.predictions_on(part)
        except StoreError:
            continue
        about = {"part": predictions.part, "samples": len(predictions), "kind": predictions.kind}
        if predictions.kind == "classes" and predictions.targets.ndim == 1 and len(predictions):
            return about | _classes(predictions)
        alike = predictions.outputs.size == predictions.targets.size
        return about | _numbers(predictions) if predictions.kind == "numbers" and alike and len(predictions) else None
    return None


def _classes(predictions: Predictions) -> dict[str, Any]:
    matrix = predictions.confusion()
    right, of_class, said = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    return {
        "classes": len(matrix),
        "confusion": matrix.tolist() if len(matrix) <= LARGEST_CONFUSION_MATRIX else None,
        "byClass": [
            {
                "class": at,
                "samples": int(of_class[at]),
                "recall": float(right[at] / of_class[at]) if of_class[at] else None,
                "precision": float(right[at] / said[at]) if said[at] else None,
            }
            for at in range(len(matrix))
        ],
        **_calibration(predictions),
        "mistakes": _mistakes(predictions),
    }


def _calibration(predictions: Predictions) -> dict[str, Any]:
    """Return mean confidence and accuracy in bins of confidence, and the expected calibration error.

    ECE = sum over bins of n_b / n |accuracy_b - confidence_b| (Guo, Pleiss, Sun & Weinberger 2017).
    """
    labeled = predictions.targets >= 0
    confidence, right = predictions.confidences.astype(np.float64)[labeled], predictions.right.reshape(-1)[labeled]
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    bins, error = [], 0.0
    for item in np.unique(place):
        chosen = place == item
        sure, share = float(confidence[chosen].mean()), float(right[chosen].mean())
        bins.append({"confidence": sure, "accuracy": share, "samples": int(chosen.sum())})
        error += chosen.mean() * abs(sure - share)
    return {"calibration": bins, "calibrationError": float(error)}


def _mistakes(predictions: Predictions) -> list[dict[str, Any]]:
    confidence, said = predictions.confidences, predictions.predictions
    return [
        {
            "sample": int(predictions.samples[place]),
            "true": int(predictions.targets[place]),
            "predicted": int(said[place]),
            "confidence": float(confidence[place]),
            "picture": png_address(picture),
        }
        for place, picture in zip(predictions.worst, predictions.pictures, strict=True)
    ]


def _numbers(predictions: Predictions) -> dict[str, Any]:
    """Return predicted and true values, evenly subsampled if there are many, and mean and spread of the residuals."""
    true, said = (values.reshape(-1).astype(np.float64) for values in (predictions.targets, predictions.outputs))
    residuals = said - true
    chosen = np.linspace(0, len(true) - 1, min(len(true), MOST_POINTS)).astype(int)
    counts, edges = np.histogram(residuals[np.isfinite(residuals)], bins=40)
    return {
        "true": true[chosen].tolist(),
        "predicted": said[chosen].tolist(),
        "residuals": {"counts": counts.tolist(), "edges": edges.tolist()},
        "bias": float(residuals.mean()),
        "deviation": float(residuals.std()),
    }


def png_address(picture: NDArray[np.uint8]) -> str:
    """Return a picture [height, width, 1 or 3] as a data URL of a PNG file."""
    height, width, channels = picture.shape
    rows = b"".join(b"\0" + picture[row].tobytes() for row in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2}[channels], 0, 0, 0)
    file = b"\x89PNG\r\n\x1a\n"
    for kind, content in ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")):
        file += struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"


MEASURED, PREDICTED = "measured", "predicted"
HOW_RUN = {MEASURED: "real", PREDICTED: "simulated"}
"""The names of runs by their clock in plots of metrics: a simulated run computes the same metrics as a real one."""
INTERVAL = "[low-high]: eight of ten runs should fall in this range"
UNCALIBRATED = "uncalibrated: step times were given by hand, not measured; predicted times are only as good as those"


class HasClock(Protocol):
    """Anything with times that were measured or predicted."""

    @property
    def clock(self) -> str: ...


def clock_names(timed: Iterable[HasClock]) -> str:
    clocks = {item.clock for item in timed}
    return " and ".join(sorted(clocks)) or MEASURED


def is_uncalibrated(run: Run) -> bool:
    return run.clock == PREDICTED and run.result.get("calibrated") is False


def speed_notes(speeds: Iterable[float]) -> list[str]:
    """Return a sentence on this machine's speed during predictions if it differs from the speed at calibration."""
    factors = [f"{speed:.2g}x" for speed in sorted(speeds)]
    if set(factors) <= {"1x"}:
        return []
    ends = " to ".join(dict.fromkeys((factors[0], factors[-1])))
    return [f"this machine is now {ends} as fast as when calibrated; predicted times are scaled by it"]


def ledger_note(ledger: Ledger) -> str:
    """Return a sentence on the error of past predictions for this machine; "" if no runs have tested them."""
    if ledger.median_error is None or ledger.coverage is None:
        return ""
    tau = ""
    if ranked := ledger.rank_correlation():
        tau = f"; Kendall's tau {ranked[0]:.2f} over {plural(ranked[1], 'pair')} of times more than 5% apart"
    predictions, runs = plural(len(ledger.by_prediction()), "prediction"), plural(len(ledger.scores), "run")
    inside = round(ledger.coverage * len(ledger.scores))
    return (
        f"{predictions} for this machine, tested by {runs}: "
        f"median error {ledger.median_error:.1%}; {inside} of {runs} in their 80% interval{tau}"
    )


def describe_clock(run: Run) -> str:
    """Return the words after a time: "measured", or "predicted [1.18-1.31], uncalibrated"."""
    around = f" {interval(*run.interval, run.seconds)}" if run.interval and run.seconds is not None else ""
    return f"{run.clock}{around}{', uncalibrated' if is_uncalibrated(run) else ''}"


def training_time(run: Run) -> str:
    """Return the training time with its clock: "1.24 s predicted [1.18-1.31]"."""
    return f"{duration(run.seconds)} {describe_clock(run)}" if run.seconds is not None else duration(None)


def page_statement(timed: Iterable[HasClock]) -> str:
    """Return the sentence at the foot of a page that says whether its times were measured or predicted."""
    return {
        MEASURED: "Every time on this page was measured",
        PREDICTED: "Every time on this page is predicted, unless marked as measured",
    }.get(clock_names(timed), "Every time on this page was measured, unless marked as predicted or simulated")


KIND_NAMES = {
    "data": "data",
    "copy": "copying",
    "compute": "compute",
    "wait": "waiting",
    "communicate": "communication",
    "evaluate": "evaluation",
    "save": "saving",
    "start": "startup",
}
"""The names of the kinds of time, in the order in which they are shown."""
KINDS = tuple(KIND_NAMES)
TRAINING_KINDS, OTHER_KINDS = KINDS[:5], KINDS[5:]
FEW_NAMED = 4
NOTICED_LISTENING = 0.5
"""Time in the display and in callbacks is shown from this many seconds on."""


def describe_model(run: Run) -> str:
    name = _given_name(run, "model")
    size = run.metadata.get("parameters")
    return f"{name}, {plural(size, 'parameter')}" if size is not None else name


def describe_data(run: Run) -> str:
    """Return the data set and the number of samples in its parts."""
    details: dict[str, Any] = run.metadata.get("data") or {}
    parts = [("train", "training"), ("validation", "validation"), ("test", "test")]
    *sizes, last = [f"{count(details[key])} {word}" for key, word in parts if details.get(key)] or [""]
    text = one_line(str(details.get("name") or _given_name(run, "data")))
    if last:
        text += f", {' and '.join([', '.join(sizes), last] if sizes else [last])} samples"
    return text + "".join(f"; {one_line(str(note))}" for note in details.get("notes") or ())


def _given_name(run: Run, field: str) -> str:
    """Return the model or data as specified; for a script, its name or its arguments."""
    text = field_value(run.experiment.flat()[field])
    return text[1:-1] if run.kind == SCRIPT else text


def describe_length(run: Run) -> str:
    """Return the number of epochs and steps, and the reason if there are fewer than requested."""
    if run.kind == SCRIPT:
        return plural(run.result.get("steps", 0), "optimizer step")
    wanted, done = run.experiment.training.epochs, run.result.get("epochs", len(run.history))
    text = plural(done, "epoch") if done == wanted else f"{count(done)} of {plural(wanted, 'epoch')}"
    if (steps := run.result.get("steps")) is not None:
        text += f", {plural(steps, 'step')}"
    if run.result.get("stopped_early"):
        by = run.result.get("stopped_by")
        text += f", stopped by {one_line(by)}" if by else ", stopped early"
    if (best := run.result.get("best_epoch")) is not None:
        text += f", weights of epoch {count(best)}"
    return text


def describe_target(run: Run) -> str:
    text = f"{run.experiment.training.target:g}"
    if run.seconds_to_target is None:
        return f"{text} not reached"
    steps = plural(run.result["steps_to_target"], "step")
    return f"{text} reached after {duration(run.seconds_to_target)} of training, {run.clock} ({steps})"


def other_times(run: Run) -> str:
    times = run.times
    spent = [f"{KIND_NAMES[kind]} {duration(times[kind])}" for kind in ("start", "evaluate", "save") if kind in times]
    if spent and "start" in times and (copied := run.result.get("start_copy_seconds")):
        spent[0] += f" (of which copying the data to the GPU {duration(copied)})"
    text = f"{', '.join(spent)}, {run.clock}" if spent else ""
    if (listening := run.result.get("listening_seconds") or 0.0) > NOTICED_LISTENING:
        text += f"{'; ' if text else ''}display and callbacks {duration(listening)}, measured"
    return text


def prediction_notes(run: Run) -> list[str]:
    """Return sentences about a prediction: whether it is calibrated, and reasons for it. Empty for a measured run."""
    if run.clock != PREDICTED:
        return []
    reasons = [one_line(str(reason)) for reason in run.result.get("reasons") or []]
    if is_uncalibrated(run):
        reasons.insert(0, f"The clock is {UNCALIBRATED}.")
    reasons += [f"{text[0].upper()}{text[1:]}." for text in speed_notes([run.result.get("machine_speed", 1.0)])]
    if (run.result.get("calibration_load") or 0.0) > MOST_LOAD_PER_CORE:
        reasons.append("It is based on steps measured while other programs were running, so it is unreliable.")
    if (seconds := run.result.get("simulated_in")) is not None:
        reasons.append(f"The simulation itself took {duration(seconds)}, measured.")
    return reasons


def worker_threads(run: Run) -> int | None:
    """Return the threads per worker; virtual workers may have more threads than were used to compute their steps."""
    threads = run.experiment.machine.threads
    return threads if run.clock == PREDICTED and threads else run.result.get("threads", threads)


def describe_workers(run: Run) -> str:
    """Return the number of workers and threads, the device, the link of a virtual cluster, and the executor."""
    workers = run.result.get("workers", run.experiment.parallel.workers)
    threads = worker_threads(run)
    each = f" with {plural(threads, 'thread')}" + (" each" if workers > 1 else "") if threads else ""
    parallel, divided = run.experiment.parallel, ""
    if parallel.divides_model:
        divided = f", which divide {parallel.divide} of {plural(parallel.replicas, 'replica')}"
    if run.kind == CROSSVAL:
        each = ""  # each fold has its own number of threads
    if run.clock == PREDICTED:
        if run.experiment.machine.cluster not in (None, "here"):
            each = ""  # the cluster's groups say how many threads their workers have
        return f"{plural(workers, 'virtual worker')}{each}{divided}, {describe_hardware(run.experiment)}"
    text = f"{plural(workers, 'worker')}{each}{divided} on {field_value(run.experiment.machine.device)}"
    if pinned := [",".join(map(str, cpus)) for cpus in pinned_cpus(run) if cpus]:
        text += f", cpus {' | '.join(pinned)}"
    return text + _describe_executor(run)


def _describe_executor(run: Run) -> str:
    """Return the executor that trained a run, and the machine if there was only one; "" without an executor."""
    executor = one_line(str(run.metadata.get("executor") or ""))
    if not executor:
        return ""
    if run.kind in (CROSSVAL, SWEEP):
        return f", in jobs of {executor}"
    host = one_line(str((run.metadata.get("machine") or {}).get("host") or ""))
    return f", in a job of {executor}" + (f" on machine {host}" if host else "")


def describe_lr(run: Run) -> str:
    """Return the learning rate before warm-up and schedule, and the reason if it was changed; "" if unknown."""
    lr = run.metadata.get("lr") or {}
    if run.kind == SWEEP:  # the learning rate of the best trial is among its values
        return ""
    if "base" not in lr or "scale" not in lr:
        return ""
    base, scale, parallel = lr["base"], lr["scale"], run.experiment.parallel
    if scale == 1:
        return f"{base:.3g}"
    count = plural(parallel.replicas, "replica" if parallel.divides_model else "worker")
    why = f"for {count}, lr_scaling = {parallel.lr_scaling}"
    return f"{base * scale:.3g} = {base:.3g} × {scale:.3g} ({why}; lr_scaling = none keeps {base:.3g})"


def describe_hardware(experiment: Experiment) -> str:
    """Return the link or the cluster of a virtual run: "link 10gbe", "cluster here"."""
    machine = experiment.machine
    if machine.cluster is not None:
        return f"cluster {field_value(machine.cluster)}"
    from tenfold.cluster.cluster import DEFAULT_LINK

    return f"link {field_value(machine.link)}" if machine.link is not None else f"link {DEFAULT_LINK}, the default"


def pinned_cpus(run: Run) -> list[list[int]]:
    """Return the CPUs of each pinned worker; other versions may have recorded a number of cores."""
    cores = run.metadata.get("cores")
    return cores.get("workers") or [] if isinstance(cores, dict) else []


def evaluated_part(run: Run) -> str:
    return one_line(str(run.result.get("part") or "test"))


def merge_reasons(explained: Sequence[tuple[str, Iterable[str]]]) -> list[str]:
    """Return the sentences that explain predictions, each once, with the settings that it applies to."""
    reasons = grouped((one_line(reason), name) for name, sentences in explained for reason in dict.fromkeys(sentences))
    return [
        f"{sentence} ({'all settings' if 1 < len(names) == len(explained) else name_some(names, FEW_NAMED)})"
        for sentence, names in reasons.items()
    ]


def result_rows(run: Run) -> list[tuple[str, str]]:
    """Return the results of a run as pairs of name and text; results that were not measured are omitted."""
    subject = ("script", "arguments") if run.kind == SCRIPT else ("model", "data")
    rows = [(subject[0], describe_model(run)), (subject[1], describe_data(run)), ("trained", describe_length(run))]
    rows += score_rows(run)
    if lr := describe_lr(run):
        rows.append(("learning rate", lr))
    if run.seconds is not None:
        speed = run.result.get("samples_per_second")
        rows.append(
            ("training time", training_time(run) + (f", {count(speed)} samples/s" if speed is not None else ""))
        )
    if run.experiment.training.target is not None:
        rows.append(("target", describe_target(run)))
    if run.kind == SCRIPT and "speedup" in run.result:
        alone = f"over one rank in {duration(run.result['baseline_seconds'])}"
        rows.append(("speedup", f"{ratio(run.result['speedup'])} {alone}, predicted"))
    if other := other_times(run):
        rows.append(("other time", other))
    if joules := run.result.get("energy_joules"):
        rows.append(("energy", f"{joules:,.3g} J of the whole machine, startup and evaluation included, measured"))
    rows += [("" if at else "prediction", text) for at, text in enumerate(prediction_notes(run))]
    return [*rows, ("workers", describe_workers(run)), *(("lost", text) for text in describe_lost_workers(run))]


def score_rows(run: Run) -> list[tuple[str, str]]:
    part = evaluated_part(run)
    return [(f"{part} {one_line(name)}", metric_value(name, value)) for name, value in loss_last(run.metrics).items()]


def describe_lost_workers(run: Run) -> list[str]:
    """Return sentences on why each worker was lost, and on how the run continued."""
    texts = []
    for loss in run.result.get("lost") or []:
        text = f"{one_line(str(loss['why']))}; {plural(loss['left'], 'worker')} continued "
        if loss.get("step") is None:
            text += f"from epoch {count(loss['epoch'])}"
        else:
            text += f"after step {count(loss['step'])}"
            text += f", replaced after step {count(loss['joined'])}" if loss.get("joined") is not None else ""
        texts.append(text)
    return texts


def describe_end(run: Run) -> str:
    """Return the reason why a run ended early, and advice; empty for a finished run."""
    if run.status == "failed":
        return run.error.strip() or "failed without an error message"
    if run.status == "interrupted":
        reason = f"{run.error.strip()}\n" if run.error.strip() else ""
        if run.kind == SCRIPT:
            return reason or "interrupted"
        folds = run.kind == CROSSVAL
        goes_on = "trains the folds that are missing" if folds else "continues from the last completed epoch"
        return f"{reason}`tenfold resume {run.id}` {goes_on}"
    return "still running; these are the results so far" if run.status == "running" else ""


def times_by_kind(run: Run) -> dict[str, float]:
    """Return the seconds by kind, in the order of KINDS; for an unfinished run, the sum of its spans."""
    times: dict[str, float] = run.times
    if not times:
        each = times_by_worker(run)
        kinds = dict.fromkeys(kind for worker in each for kind in worker)
        times = {kind: sum(worker.get(kind, 0.0) for worker in each) / len(each) for kind in kinds}
    return {kind: times[kind] for kind in (*KINDS, *sorted(set(times) - set(KINDS))) if times.get(kind)}


def times_by_worker(run: Run) -> list[dict[str, float]]:
    """Return the seconds of each worker by kind: the sums of its spans."""
    sums: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for span in run.spans():
        sums[span.worker][span.kind] += span.seconds
    return [dict(sums[worker]) for worker in sorted(sums)]
