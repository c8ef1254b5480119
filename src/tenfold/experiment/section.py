"""The base of all sections of an experiment."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Common to all sections: frozen, strict, nothing unknown."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )
