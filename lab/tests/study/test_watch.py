"""What the machine is said to be like; macOS by what its programs print."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from lab.study import watch
from lab.study.measurements import Surroundings
from lab.study.watch import MachineWatch, power_source, thermal_pressure


@pytest.mark.parametrize(
    ("what", "printed", "said"),
    [
        (thermal_pressure, "com.apple.system.thermalpressurelevel 0\n", "nominal"),
        (thermal_pressure, "com.apple.system.thermalpressurelevel 2\n", "heavy"),
        (thermal_pressure, "com.apple.system.thermalpressurelevel 9\n", ""),
        (thermal_pressure, "Failed to register\n", ""),
        (thermal_pressure, "", ""),
        (power_source, "Now drawing from 'AC Power'\n -InternalBattery-0 100%\n", "AC"),
        (power_source, "Now drawing from 'Battery Power'\n -InternalBattery-0 61%\n", "battery"),
        (power_source, "", ""),
    ],
)
def test_thermal_pressure_and_the_source_of_power(
    monkeypatch: pytest.MonkeyPatch, what: Callable[[], str], printed: str, said: str
) -> None:
    monkeypatch.setattr(watch.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(watch, "_printed", lambda _command: printed)
    assert what() == said


def test_a_program_that_is_missing_or_fails_says_nothing() -> None:
    assert watch._printed(["no-such-program-at-all"]) == ""
    assert watch._printed(["false"]) == ""
    assert watch._printed(["echo", "word"]) == "word\n"


def test_energy_is_the_sum_of_what_the_chip_reports() -> None:
    some = SimpleNamespace(cpu_total_mj=1500, gpu_mj=2500, dram_mj=None, ane_mj=0)
    assert watch._joules(some) == 4.0
    nothing = SimpleNamespace(cpu_total_mj=None, gpu_mj=None, dram_mj=None, ane_mj=None)
    assert watch._joules(nothing) is None


def test_a_watch_tells_load_and_memory_anywhere() -> None:
    one = MachineWatch()
    one.begin()
    found = one.end()
    assert isinstance(found, Surroundings)
    assert found.load is not None
    assert found.load >= 0
    assert found.peak_gb >= 0
    assert (found.joules is None) == (not one.measures_energy)
    assert watch.memory_gb() > 0.5
    assert watch.system_name()
