"""The search for the setting that reaches a target soonest.

1. The clock predicts the seconds of an epoch for every candidate. Those that average less often than others and are
   hardly faster for it are dropped.
2. A first short run tells how noisy gradients are. That says how many more samples larger batches need, and thereby
   which candidates are expected to be slow. The others continue.
3. Short runs give each a learning curve, and trial runs with several seeds show how few epochs reach the target
   (see `trial_search`). What these runs take says what each setting takes here.
4. The setting and the epochs with the fewest expected seconds to the target are chosen, where a run that misses it
   costs its time and is repeated with more epochs (see `epoch_choice`).
"""

from collections.abc import Sequence
from time import perf_counter

from tenfold.cluster.experiment_cluster import HERE, ClusterOrHere
from tenfold.data import Splits
from tenfold.errors import ExperimentError
from tenfold.prediction.calibration import ReportProgress
from tenfold.prediction.calibration.measure_machine import silent
from tenfold.prediction.planning.assessment import Assessment, Search, describe_candidate
from tenfold.prediction.planning.candidates import Candidate
from tenfold.prediction.planning.learning_probe import target_gap
from tenfold.prediction.planning.pricing import Prices
from tenfold.prediction.planning.trial_search import TrialSearch

BUDGET = 90.0
"""Seconds that planning may take."""
CALIBRATION_SHARE = 0.4
"""The part of them that may be spent on measuring step times."""


def search(
    candidates: Sequence[Candidate],
    splits: Splits,
    target: float,
    *,
    cluster: ClusterOrHere = HERE,
    given: Candidate | None = None,
    budget: float = BUDGET,
    loading: float = 0.0,
    report: ReportProgress = silent,
) -> Search:
    """Find the candidate that reaches a target soonest, in about `budget` seconds.

    The target is measured on the validation part, which the data must have; the test part is never used. `given` is the
    setting to compare with, which is tried in any case. `loading` are the seconds for which a run loads its data.
    """
    metric, gap = target_gap(candidates[0].experiment, splits.classes, target)
    began = perf_counter()
    prices = Prices(candidates, splits, cluster, report, deadline=began + CALIBRATION_SHARE * budget, loading=loading)
    calibrated = perf_counter() - began
    trials = TrialSearch(candidates, splits, prices, metric, gap, deadline=began + budget, given=given, report=report)
    trials.run()
    assessments = sorted(trials.assessments, key=lambda one: one.rank)
    probed = perf_counter() - began - calibrated
    return Search(assessments, metric, trials.noise_batch, calibrated, probed, prices.speeds)


def best_of(found: Search, target: float) -> Assessment:
    """Return the soonest of those that were trained; raise ExperimentError if none is expected to reach the target."""
    best = min(found.assessments, key=lambda one: one.rank)
    if best.expected is not None:
        return best
    tried = [one for one in found.assessments if one.probes]
    if not tried:
        raise ExperimentError(f"no setting could be trained: {found.assessments[0].dropped or 'there is none'}")
    top = max(tried, key=lambda one: one.probes[-1].samples)
    last = top.probes[-1]
    raise ExperimentError(
        f"no setting was found that reaches {found.metric} {target:g}: {describe_candidate(top.candidate)} has "
        f"{last.value:.4g} on the validation part after {last.samples:,} samples; choose an easier target or a larger "
        "budget"
    )
