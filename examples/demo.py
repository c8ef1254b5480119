"""Train LeNet-5 on MNIST with one worker and with a worker per core, to the same accuracy, and write a report.

The time of both is predicted first, from a quick calibration of this machine. Where MNIST cannot be had, the digits
that come with scikit-learn take its place.
"""

import os
import subprocess
import sys
import tempfile
import webbrowser
from pathlib import Path

import tenfold
from tenfold.machine.cores import set_wait_policy

set_wait_policy()  # before torch is imported: on a busy machine its threads should sleep while they wait
target, epochs, source, threads = 0.99, 2, "mnist", None
if subprocess.run([sys.executable, "-m", "tenfold", "data", "get", source], check=False).returncode != 0:
    target, epochs, source, threads = 0.95, 12, "digits", 1  # too small for several threads
    print("MNIST cannot be downloaded here: using the digits that come with scikit-learn", flush=True)
cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
workers = [1, max(2, cores)]
experiment = tenfold.Experiment(
    model="lenet5",
    data=source,
    epochs=epochs,
    target=target,
    workers=workers[-1],
    threads=threads,
    oversubscribe=cores < 2,
)

print(f"predicting the time of {epochs} epochs with {workers[0]} and {workers[1]} workers", flush=True)
with tempfile.TemporaryDirectory() as folder:
    os.environ["TENFOLD_PROFILE"] = str(Path(folder) / "profile.toml")
    tenfold.calibrate(experiment, quick=True).save()
    predicted = tenfold.forecast(experiment, cluster="here", workers=workers)

print(f"training both until they reach {target:.0%}", flush=True)
comparison = tenfold.compare(experiment, workers=workers)
print(comparison)
for row, forecast in zip(comparison.rows, predicted.forecasts, strict=True):
    run, marks = row.runs[0], forecast.prediction.marks
    expected = marks[min(marks, key=lambda step: abs(step - run.result["steps"]))]
    reached = "reached" if run.seconds_to_target is not None else "not reached"
    print(
        f"{row.label}: {target:.0%} {reached}, accuracy {run.accuracy:.2%}, "
        f"training time {expected:.2f} s predicted, {run.seconds:.2f} s measured"
    )
alone, divided = comparison.rows
if divided.target_speedup is not None:
    print(f"speedup at equal accuracy, with {divided.workers} workers: {divided.target_speedup:.2f}")
page = comparison.report("report.html").resolve()
print(f"the report is in {page}")
if sys.stdout.isatty():
    webbrowser.open(page.as_uri())
