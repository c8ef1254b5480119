"""What is asked: an experiment as one value, its fields by section, its TOML form."""

from tenfold.experiment.data import Data
from tenfold.experiment.division import FOLD_FIELDS, Division
from tenfold.experiment.experiment import Experiment
from tenfold.experiment.fields import FIELDS, SECTIONS, nested
from tenfold.experiment.machine import Machine
from tenfold.experiment.model import Model
from tenfold.experiment.section import Section
from tenfold.experiment.training import Training

__all__ = [
    "FIELDS",
    "FOLD_FIELDS",
    "SECTIONS",
    "Data",
    "Division",
    "Experiment",
    "Machine",
    "Model",
    "Section",
    "Training",
    "nested",
]
