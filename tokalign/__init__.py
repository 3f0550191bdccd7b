"""tokalign: speculative decoding across tokenizers, prepared offline."""

import sys
from importlib import import_module

if sys.version_info < (3, 11):  # noqa: UP036 (in a clone that was not installed)
    raise SystemExit(f"tokalign needs Python 3.11 or newer; this is {sys.version.split()[0]}")

# Nothing is imported here that Python has not loaded: `__main__` makes the path of modules safe.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokalign.api.call import speculative_generate_step
    from tokalign.api.patch import patch_mlx_lm
    from tokalign.api.text import (
        GenerationResponse,
        Grammar,
        clear_session,
        generate,
        load,
        stream_generate,
    )
    from tokalign.api.together import batch_generate
    from tokalign.runtime.mlx.sampling import Sampling

__version__ = "0.1.0"

__all__ = [
    "GenerationResponse",
    "Grammar",
    "Sampling",
    "batch_generate",
    "clear_session",
    "generate",
    "load",
    "patch_mlx_lm",
    "speculative_generate_step",
    "stream_generate",
]

_ELSEWHERE = {
    "Sampling": "runtime.mlx.sampling",
    "batch_generate": "api.together",
    "patch_mlx_lm": "api.patch",
    "speculative_generate_step": "api.call",
}


def __getattr__(name: str) -> "Any":
    """Load the Python API on first use, because it imports mlx."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"tokalign.{_ELSEWHERE.get(name, 'api.text')}"), name)
    except ModuleNotFoundError as error:
        from importlib.util import find_spec

        package = (error.name or "").partition(".")[0]
        if package not in ("mlx", "mlx_lm") or find_spec(package):  # of a version without that
            raise
        from tokalign.installation import install_line

        raise ModuleNotFoundError(
            f"tokalign.{name} runs models with mlx, which is not installed; install it with: "
            + install_line(extra="mlx"),
            name=error.name,
        ) from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
