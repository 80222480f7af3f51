"""trimtab: run open-weight LLMs at their best on the machine at hand."""

from trimtab.errors import (
    DoesNotFitError,
    EngineStartError,
    EnvironmentMissingError,
    GatewayError,
    MissingFactError,
    NoPlanError,
    SloUnreachableError,
    StackFileError,
    TrimtabError,
)

__all__ = [
    "DoesNotFitError",
    "EngineStartError",
    "EnvironmentMissingError",
    "GatewayError",
    "MissingFactError",
    "NoPlanError",
    "SloUnreachableError",
    "StackFileError",
    "TrimtabError",
    "__version__",
]

__version__ = "0.1.0"
