"""An experiment as one value, its fields by section, its TOML form."""

from tenfold.experiment.experiment import FIELDS, SECTIONS, Experiment, nested
from tenfold.experiment.section_fields import (
    FOLD_FIELDS,
    STAGE_FIELDS,
    Data,
    Machine,
    Model,
    Parallel,
    Section,
    Training,
)
