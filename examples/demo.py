"""Train LeNet-5 on MNIST with one worker and with a worker per core, to the same accuracy, and write a report.

Where MNIST cannot be had, the digits that come with scikit-learn take its place.
"""

import os
import subprocess
import sys


def tenfold(*arguments: str) -> int:
    print("$ tenfold", *arguments, flush=True)
    return subprocess.run([sys.executable, "-m", "tenfold", *arguments], check=False).returncode


source, epochs, target = "mnist", "3", "0.99"
if tenfold("data", "get", source) != 0:
    source, epochs, target = "digits", "30", "0.95"
    print("MNIST cannot be downloaded here: using the digits that come with scikit-learn", flush=True)
cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
experiment = ("--model", "lenet5", "--data", source, "--epochs", epochs, "--target", target)
sys.exit(tenfold("compare", *experiment, "--workers", f"1,{max(2, cores)}", "-o", "report.html"))
