"""What the machine is like while something is measured: load, heat, power and memory.

Nothing here needs more rights than an ordinary user has. Energy is read by `zeus-apple-silicon`
where it is installed (the extra `energy`, macOS on Apple silicon).
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import mlx.core as mx

from lab.study.measurements import Surroundings
from tokalign.runtime.mlx.machine import peak_memory

_THERMAL = ("nominal", "moderate", "heavy", "trapping", "sleeping")
"""Levels of the notification com.apple.system.thermalpressurelevel, from 0."""

_WINDOW = "generation"


class MachineWatch:
    """Asks the system after each generation, and the energy meter around it."""

    def __init__(self) -> None:
        self._meter = _energy_meter()

    @property
    def measures_energy(self) -> bool:
        """Whether joules are measured."""
        return self._meter is not None

    def begin(self) -> None:
        """A generation is about to begin."""
        mx.reset_peak_memory()
        if self._meter is not None:
            self._meter.begin_window(_WINDOW)

    def end(self) -> Surroundings:
        """What the machine was like. Cost: some milliseconds, outside what is timed."""
        joules = None if self._meter is None else _joules(self._meter.end_window(_WINDOW))
        return Surroundings(
            load=round(os.getloadavg()[0], 2),
            thermal=thermal_pressure(),
            power=power_source(),
            joules=joules,
            peak_gb=round(peak_memory(), 3),
        )


def thermal_pressure() -> str:
    """The thermal pressure that macOS reports; empty elsewhere."""
    if platform.system() != "Darwin":
        return ""
    words = _printed(["notifyutil", "-g", "com.apple.system.thermalpressurelevel"]).split()
    level = words[-1] if words else ""
    return _THERMAL[int(level)] if level.isdecimal() and int(level) < len(_THERMAL) else ""


def power_source() -> str:
    """ "AC" or "battery" as macOS reports it; empty elsewhere."""
    if platform.system() != "Darwin":
        return ""
    said = _printed(["pmset", "-g", "batt"])
    return "AC" if "'AC Power'" in said else "battery" if "'Battery Power'" in said else ""


def system_name() -> str:
    """The operating system and its version."""
    mac = platform.mac_ver()[0]
    return f"macOS {mac}" if mac else f"{platform.system()} {platform.release()}"


def memory_gb() -> float:
    """The machine's memory in 10⁹ bytes."""
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)


def _printed(command: Sequence[str]) -> str:
    """What a command prints; empty if it is missing, fails or hangs."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return run.stdout


def _energy_meter() -> Any:
    """The chip's energy meter; None where there is none that an ordinary user may read."""
    if platform.system() != "Darwin" or find_spec("zeus_apple_silicon") is None:
        return None
    from zeus_apple_silicon import AppleEnergyMonitor

    try:
        return AppleEnergyMonitor()
    except RuntimeError:  # a chip that the library does not know
        return None


def _joules(metrics: Any) -> float | None:
    """All rails that the chip reports, CPU, GPU, memory and neural engine, in joules."""
    rails = (metrics.cpu_total_mj, metrics.gpu_mj, metrics.dram_mj, metrics.ane_mj)
    known = [rail for rail in rails if rail is not None]
    return round(sum(known) / 1e3, 3) if known else None
