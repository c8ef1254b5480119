"""`tenfold.calibrate`: measure this machine for predictions."""

from tenfold.experiment import Experiment
from tenfold.prediction.calibration import ReportProgress, measure_all
from tenfold.prediction.profile import Profile
from tenfold.report.live.follow import reporter


def calibrate(
    experiment: Experiment | None = None,
    profile: Profile | None = None,
    *,
    quick: bool = False,
    progress: bool | ReportProgress | None = None,
) -> Profile:
    """Measure this machine, and the steps of an experiment (default: of the built-in networks), in about a minute.

    What a given profile of the same machine knows beyond that is kept. Nothing is saved; `Profile.save` does. `quick`
    measures within seconds, but less exactly. `progress` is as in `forecast`.
    """
    return measure_all(experiment and experiment.with_trusted_imports(), profile, reporter(progress), quick=quick)
