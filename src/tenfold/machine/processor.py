"""What the processor is called and which of its instructions matter for training."""

import platform
from pathlib import Path

# Each name with what Linux (x86, then ARM) and torch call it.
_INSTRUCTIONS = {
    "avx2": {"avx2"},
    "avx512f": {"avx512f", "avx512_f"},
    "avx512_bf16": {"avx512_bf16"},
    "amx": {"amx_tile"},
    "amx_bf16": {"amx_bf16"},
    "neon": {"asimd", "neon"},
    "sve": {"sve"},
    "arm_bf16": {"bf16", "arm_bf16"},
}
_BF16 = {"avx512_bf16", "amx_bf16", "arm_bf16"}


def model(root: Path = Path("/")) -> str:
    """The processor's name, as nearly as the system tells."""
    named = _cpuinfo(root).get("model name") or _capabilities().get("cpu_name")
    return str(named or platform.processor() or platform.machine() or "unknown")


def instructions(root: Path = Path("/")) -> list[str]:
    """Those of the instruction sets that matter here which the processor has."""
    cpuinfo = _cpuinfo(root)
    flags = set((cpuinfo.get("flags") or cpuinfo.get("Features") or "").split())
    flags = flags or {name for name, has in _capabilities().items() if has is True}
    return [name for name, spellings in _INSTRUCTIONS.items() if flags & spellings]


def has_bf16(instruction_sets: list[str]) -> bool:
    """Whether the processor itself multiplies bfloat16; without that, bf16 on the CPU is slower than float32."""
    return not _BF16.isdisjoint(instruction_sets)


def _cpuinfo(root: Path) -> dict[str, str]:
    """What Linux says about the first cpu; on hybrid processors they agree in what is asked here."""
    try:
        text = (root / "proc/cpuinfo").read_text()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.strip().split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _capabilities() -> dict[str, object]:
    """What torch says about the cpu, for systems without /proc (younger versions of torch only)."""
    import torch

    return dict(getattr(torch.cpu, "get_capabilities", dict)())
