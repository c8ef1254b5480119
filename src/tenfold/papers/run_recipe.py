"""Run a recipe: its settings one after another, measured if this machine can, otherwise predicted or left out."""

import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenfold.common.imports import tenfold_command
from tenfold.errors import ExperimentError, MachineError, TenfoldError
from tenfold.experiment import Experiment
from tenfold.launchers import find_mpirun
from tenfold.machine.metadata import collect_metadata, measuring_machine
from tenfold.papers.recipe import NEEDS, SCALES, Block, Recipe, Scale, Size, load
from tenfold.papers.recipe_result import RecipeResult, Setting
from tenfold.runs import Run, Store
from tenfold.runs.open_run import list_runs, open_run
from tenfold.runs.store import one_invocation

if TYPE_CHECKING:
    from tenfold.api.simulate import LoadedData
    from tenfold.executors.submitting import Asked, Submitter


COLD_SECONDS = 10.0
"""A first run in a process that trained for less is repeated: loading libraries may have taken much of its time."""
MPIRUN_OPTIONS = ("--oversubscribe",)
ROOT_MAY = "OMPI_ALLOW_RUN_AS_ROOT"
"""Without this variable, Open MPI refuses to start ranks as root, the user in many containers."""
ONLY_TIME = "only the time was predicted; nothing was trained"
ShowProgress = Callable[[str], None]


@one_invocation()
def run(
    recipe: str | Path | Recipe,
    *,
    scale: Scale = "small",
    device: str | None = None,
    runs: str | Path | None = None,
    fresh: bool = False,
    progress: ShowProgress | None = None,
    trust: bool = False,
    on: "Asked | Submitter" = "local",
) -> RecipeResult:
    """Run a recipe and return its numbers beside the paper's.

    Runs that are recorded already are not repeated, so an interrupted recipe continues when it is started again; with
    `fresh` everything is run again. A short first run of a process, whose time is unreliable, is repeated.
    Settings that need more cores than this machine has are predicted on a virtual cluster; what cannot be run or
    predicted is listed with the reason. `progress` is called with a line for each setting. `trust` is that of `load`.
    `on` says where trainings and folds go, as for `compare`; what is predicted, simulated or launched stays here.
    """
    if not isinstance(recipe, Recipe):
        recipe = load(recipe, trust=trust)
    if scale not in SCALES:
        raise ExperimentError(f"unknown scale '{scale}'; known: {', '.join(SCALES)}")
    size = recipe.scales.get(scale, Size())
    missing = [NEEDS[need] for need in recipe.needs if not is_available(need)]
    planned = [(block, settings) for block in recipe.blocks for settings in settings_of(block, size)]
    chosen = {"device": device} if device else {}
    fields = [recipe.experiment | block.fields | size.fields | chosen | settings for block, settings in planned]
    named = [", ".join(f"{key}={value}" for key, value in settings.items()) for _, settings in planned]
    for (block, _), varied, own in zip(planned, named, fields, strict=True) if not missing else ():
        try:
            Experiment(**own).with_trusted_imports()
        except ExperimentError as error:
            raise ExperimentError(f"recipe {recipe.name}, {block.verb} {varied}: {error}") from None
    from tenfold.api.simulate import LoadedData

    results: list[Setting] = []
    loaded = LoadedData()
    for at, ((block, settings), own) in enumerate(zip(planned, fields, strict=True), 1):
        if progress is not None:
            progress(f"{recipe.name}, {at} of {len(planned)}: {block.verb} {named[at - 1]}")
        if missing:
            results.append(Setting(block.verb, settings, reason=f"needs {' and '.join(missing)}"))
        else:
            results.append(_run_setting(block, settings, own, size, runs, loaded, on, fresh=fresh))
    return RecipeResult(recipe, scale, results)


def is_available(need: str) -> bool:
    if need == "gpu":
        import torch

        return torch.cuda.is_available()
    if need == "flite":
        return shutil.which("flite") is not None
    if need == "recordings":
        from tenfold.papers.speech import DEBIAN_FOLDER

        return DEBIAN_FOLDER.is_dir()
    if need == "mpi":
        return find_mpirun() is not None and importlib.util.find_spec("mpi4py") is not None
    from tenfold.data import where

    try:
        return where(need) is not None
    except TenfoldError:
        return False


def settings_of(block: Block, size: Size) -> Iterator[dict[str, Any]]:
    """Yield the settings of a block: every combination of its varied fields, with those that change together."""
    vary = block.vary | {name: values for name, values in size.vary.items() if name in block.vary}
    for values in product(*vary.values()):
        for together in block.together or [{}]:
            yield dict(zip(vary, values, strict=True)) | together


def _run_setting(
    block: Block,
    settings: dict[str, Any],
    fields: dict[str, Any],
    size: Size,
    runs: str | Path | None,
    loaded: "LoadedData",
    on: "Asked | Submitter",
    *,
    fresh: bool,
) -> Setting:
    from tenfold.api.compare import compare
    from tenfold.api.simulate import forecast_grid

    try:
        experiment = Experiment(**fields).with_trusted_imports()
        if experiment.machine.device.startswith("cuda") and not is_available("gpu"):
            return Setting(block.verb, settings, reason=f"needs {NEEDS['gpu']}")
        if block.verb == "launch" and not is_available("mpi"):
            return Setting(block.verb, settings, reason=f"needs {NEEDS['mpi']}")
        short = _too_few_cores(experiment) if block.verb in ("train", "launch", "crossval") else ""
        if block.verb == "launch" and not short:
            return Setting(block.verb, settings, runs=_launched(experiment, size.repeats, runs, fresh=fresh))
        if block.verb == "simulate" or (short and block.verb in ("train", "launch")):
            experiment = _virtual(experiment)
        if block.verb == "crossval" and experiment.parallel.folds is None:
            experiment = experiment.replace(folds=10)
        if block.verb == "forecast" or (block.verb == "crossval" and short):
            (row,) = forecast_grid(_virtual(experiment), {}, loaded).rows
            return Setting(block.verb, settings, note=ONLY_TIME, predicted_seconds=row.seconds.mean, doubts=row.doubts)
        where = "local" if experiment.machine.is_virtual else on
        comparison = compare(experiment, repeats=size.repeats, runs=runs, fresh=fresh, on=where, progress=False)
        first_runs = [run for run in comparison.runs if run.result.get("first_in_process")]
        if where == "local" and any((run.seconds or 0.0) < COLD_SECONDS for run in first_runs):
            comparison = compare(experiment, repeats=size.repeats, runs=runs, fresh=True, progress=False)
    except TenfoldError as error:
        return Setting(block.verb, settings, reason=str(error).partition("\n")[0])
    failed = "; ".join(dict.fromkeys(comparison.failed.values()))
    done: list[Run] = comparison.runs
    return Setting(block.verb, settings, runs=done, reason=failed, note=short)


def _launched(experiment: Experiment, repeats: int, runs: str | Path | None, *, fresh: bool) -> list[Run]:
    """Return runs whose workers are ranks that mpirun starts; those that are recorded already are not repeated."""
    store, seed = Store(runs), experiment.training.seed
    planned = [experiment.replace(seed=seed + repeat) for repeat in range(repeats)]
    here = measuring_machine({"machine": collect_metadata()})
    recorded = [
        run
        for run in ([] if fresh else list_runs(runs=store.folder))
        if run.status == "finished" and "launch" in run.metadata and measuring_machine(run.metadata) == here
    ]
    reused = [
        next((run for run in recorded if run.experiment.flat() == experiment.flat()), None) for experiment in planned
    ]
    return [run or _launch(item, store.folder) for item, run in zip(planned, reused, strict=True)]


def _launch(experiment: Experiment, folder: Path) -> Run:
    """Start one rank per worker under mpirun, and return the recorded run."""
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "experiment.toml"
        experiment.save(file)
        ranks = [str(find_mpirun()), *MPIRUN_OPTIONS, "-n", str(experiment.parallel.workers)]
        options = ["--runs", str(folder), "--quiet", "--json"]
        ended = subprocess.run(
            [*ranks, *tenfold_command("train", str(file), *options)],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | ({ROOT_MAY: "1", f"{ROOT_MAY}_CONFIRM": "1"} if os.geteuid() == 0 else {}),
        )
    if ended.returncode:
        errors = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
        raise MachineError(
            f"mpirun failed with exit code {ended.returncode}: {(errors or ended.stderr.splitlines() or [''])[-1]}"
        )
    return open_run(int(json.loads(ended.stdout)["id"]), runs=folder)


def _virtual(experiment: Experiment) -> Experiment:
    machine = experiment.machine
    link: dict[str, Any] = {} if machine.cluster is not None or machine.link is not None else {"link": "shared-memory"}
    return experiment.replace(engine="virtual", device="cpu", pin="none", **link)


def _too_few_cores(experiment: Experiment) -> str:
    """Return the reason why the workers of an experiment cannot run in parallel here; "" if they can."""
    from tenfold.machine import cores

    needed, there = experiment.parallel.workers * (experiment.machine.threads or 1), cores.budget()
    on_cpu = experiment.machine.device == "cpu"
    return f"predicted: it needs {needed} cores, this machine has {there}" if on_cpu and needed > there else ""
