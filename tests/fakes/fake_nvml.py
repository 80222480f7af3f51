"""pynvml over a recorded machine: the functions that trimtab calls, with pynvml's own errors and numbers.

The machines in gpu_machines.json are put together from published outputs of nvidia-smi (-q, topo -p2p,
topo -m); each says from which.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

MIB = 1024 * 1024
MACHINES: dict[str, Any] = json.loads(Path(__file__).with_name("gpu_machines.json").read_text())["machines"]


def method_name(function: str) -> str:
    """As our methods are called: nvmlDeviceGetName is device_get_name."""
    plain = function.removeprefix("nvml")
    for written, word in (("UUID", "Uuid"), ("P2PStatus", "PeerStatus"), ("NvLink", "Nvlink")):
        plain = plain.replace(written, word)
    return re.sub(r"(?<!^)(?=[A-Z])", "_", plain).lower()


class FakeNvml:
    """Handles are card numbers; ``errors`` maps "function" or "function:card" to an NVML error code."""

    def __init__(self, machine: str | dict[str, Any]) -> None:
        self.machine = MACHINES[machine] if isinstance(machine, str) else machine
        self.is_open = False
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name == "nvmlMemory_v2":
            return getattr(pynvml, name)
        if not hasattr(type(self), method_name(name)):
            raise AttributeError(name)
        return lambda *arguments, **options: self._call(name, arguments, options)

    def _call(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self.calls += 1
        errors = self.machine.get("errors", {})
        keys = [name, *(f"{name}:{argument}" for argument in arguments[:1])]
        if options.get("version"):
            keys.append(f"{name}_v2")
        for key in keys:
            if key in errors:
                raise pynvml.NVMLError(errors[key])
        if not self.is_open and name != "nvmlInit":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        return getattr(self, method_name(name))(*arguments, **options)

    def _card(self, handle: int, key: str) -> Any:
        """A fact of a card; a card that lacks it does not support the question."""
        value = self.machine["cards"][handle].get(key)
        if value is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return value

    def init(self) -> None:
        self.is_open = True

    def shutdown(self) -> None:
        self.is_open = False

    def system_get_driver_version(self) -> str:
        return self.machine["driver"]

    def system_get_cuda_driver_version(self) -> int:
        return self.machine["cuda"]

    def device_get_count(self) -> int:
        return len(self.machine["cards"])

    def device_get_handle_by_index(self, index: int) -> int:
        return index

    def device_get_name(self, handle: int) -> str:
        return self._card(handle, "name")

    def device_get_uuid(self, handle: int) -> str:
        return self._card(handle, "uuid")

    def device_get_pci_info(self, handle: int) -> Any:
        return SimpleNamespace(busId=self._card(handle, "bus").encode())

    def device_get_memory_info(self, handle: int, version: int | None = None) -> Any:
        total, reserved, used = (value * MIB for value in self._card(handle, "memory_mib"))
        free = total - reserved - used
        if version:
            return SimpleNamespace(total=total, reserved=reserved, used=used, free=free)
        return SimpleNamespace(total=total, used=used + reserved, free=free)

    def device_get_cuda_compute_capability(self, handle: int) -> tuple[int, int]:
        return tuple(self._card(handle, "capability"))

    def device_get_memory_bus_width(self, handle: int) -> int:
        return self._card(handle, "bus_bits")

    def device_get_max_clock_info(self, handle: int, clock: int) -> int:
        assert clock == pynvml.NVML_CLOCK_MEM
        return self._card(handle, "memory_mhz")

    def device_get_mig_mode(self, handle: int) -> list[int]:
        return self._card(handle, "mig")

    def device_get_compute_mode(self, handle: int) -> int:
        return self.machine["cards"][handle].get("compute_mode", 0)

    def device_get_enforced_power_limit(self, handle: int) -> int:
        return self._card(handle, "watts")[0] * 1000

    def device_get_power_management_limit_constraints(self, handle: int) -> list[int]:
        return [100_000, self._card(handle, "watts")[1] * 1000]

    def device_get_display_active(self, handle: int) -> int:
        return self.machine["cards"][handle].get("display", 0)

    def device_get_nvlink_state(self, handle: int, link: int) -> int:
        links = self._card(handle, "nvlinks")
        if link >= links:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return 1

    def device_get_peer_status(self, one: int, other: int, index: int) -> int:
        access = self.machine.get("p2p")
        if access is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if isinstance(access, list):
            linked = sorted((one, other)) in access
            access = "nvlink" if linked else "none"
        if index == pynvml.NVML_P2P_CAPS_INDEX_NVLINK:
            return pynvml.NVML_P2P_STATUS_OK if access == "nvlink" else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED
        return pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED if access == "none" else pynvml.NVML_P2P_STATUS_OK

    def device_get_compute_running_processes(self, handle: int) -> list[Any]:
        return self._processes(handle, "compute")

    def device_get_graphics_running_processes(self, handle: int) -> list[Any]:
        return self._processes(handle, "graphics")

    def _processes(self, handle: int, kind: str) -> list[Any]:
        entries = self.machine["cards"][handle].get(kind, [])
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib * MIB)
            for pid, mib, _ in entries
        ]

    def system_get_process_name(self, pid: int) -> str:
        for card in self.machine["cards"]:
            for entry in (*card.get("compute", []), *card.get("graphics", [])):
                if entry[0] == pid and entry[2]:
                    return entry[2]
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
