"""Values as JSON can hold them."""

import json
import math
from typing import Any


def json_text(value: Any, **how: Any) -> str:
    """Return a value as JSON, with null in place of NaN and infinity; `how` are options of `json.dumps`."""
    return json.dumps(replace_nonfinite(value), allow_nan=False, **how)


def replace_nonfinite(value: Any) -> Any:
    """Return a nested value with None in place of NaN and infinity, which JSON cannot hold."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: replace_nonfinite(one) for key, one in value.items()}
    return [replace_nonfinite(one) for one in value] if isinstance(value, list | tuple) else value
