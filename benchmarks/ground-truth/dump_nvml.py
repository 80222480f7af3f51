"""What NVML says about this machine's cards, question by question: python dump_nvml.py OUT.json

Serial numbers and UUIDs are blanked. An unanswered question keeps NVML's own words.
"""

import json
import sys
from pathlib import Path

import pynvml as n

PER_CARD = {
    "name": n.nvmlDeviceGetName,
    "brand": n.nvmlDeviceGetBrand,
    "architecture": n.nvmlDeviceGetArchitecture,
    "cuda_compute_capability": n.nvmlDeviceGetCudaComputeCapability,
    "num_gpu_cores": n.nvmlDeviceGetNumGpuCores,
    "memory_bus_width_bits": n.nvmlDeviceGetMemoryBusWidth,
    "max_sm_clock_mhz": lambda h: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM),
    "max_memory_clock_mhz": lambda h: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_MEM),
    "sm_clock_mhz": lambda h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM),
    "power_limit_mw": n.nvmlDeviceGetPowerManagementLimit,
    "enforced_power_limit_mw": n.nvmlDeviceGetEnforcedPowerLimit,
    "power_limits_mw": n.nvmlDeviceGetPowerManagementLimitConstraints,
    "power_usage_mw": n.nvmlDeviceGetPowerUsage,
    "temperature_c": lambda h: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU),
    "mig_mode": n.nvmlDeviceGetMigMode,
    "ecc_mode": n.nvmlDeviceGetEccMode,
    "compute_mode": n.nvmlDeviceGetComputeMode,
    "persistence_mode": n.nvmlDeviceGetPersistenceMode,
    "display_active": n.nvmlDeviceGetDisplayActive,
    "pcie_generation": n.nvmlDeviceGetCurrPcieLinkGeneration,
    "pcie_width": n.nvmlDeviceGetCurrPcieLinkWidth,
    "max_pcie_generation": n.nvmlDeviceGetMaxPcieLinkGeneration,
    "max_pcie_width": n.nvmlDeviceGetMaxPcieLinkWidth,
    "pci_bus_id": lambda h: n.nvmlDeviceGetPciInfo(h).busId,
    "minor_number": n.nvmlDeviceGetMinorNumber,
    "numa_node": n.nvmlDeviceGetNumaNodeId,
    "utilization": lambda h: vars_of(n.nvmlDeviceGetUtilizationRates(h)),
    "memory": lambda h: vars_of(n.nvmlDeviceGetMemoryInfo(h)),
    "memory_v2": lambda h: vars_of(n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2)),
    "bar1_memory": lambda h: vars_of(n.nvmlDeviceGetBAR1MemoryInfo(h)),
    "compute_processes": lambda h: [vars_of(p) for p in n.nvmlDeviceGetComputeRunningProcesses(h)],
    "graphics_processes": lambda h: [vars_of(p) for p in n.nvmlDeviceGetGraphicsRunningProcesses(h)],
    "nvlinks_active": lambda h: [ask(n.nvmlDeviceGetNvLinkState, h, link) for link in range(18)],
    "uuid_form": lambda h: n.nvmlDeviceGetUUID(h)[:4] + "00000000-0000-0000-0000-000000000000",
}


def vars_of(found):
    names = [name for name, _ in getattr(found, "_fields_", [])] or list(vars(found))
    return {name: plain(getattr(found, name)) for name in names}


def plain(value):
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, (int, float, str, type(None), bool)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return {key: plain(one) for key, one in value.items()} if isinstance(value, dict) else repr(value)


def ask(question, *args):
    try:
        return plain(question(*args))
    except n.NVMLError as error:
        return {"nvml_error": type(error).__name__, "code": error.value}
    except Exception as error:
        return {"python_error": f"{type(error).__name__}: {error}"}


def main():
    n.nvmlInit()
    count = n.nvmlDeviceGetCount()
    handles = [n.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    document = {
        "pynvml": getattr(n, "__version__", None),
        "driver_version": ask(n.nvmlSystemGetDriverVersion),
        "cuda_driver_version": ask(n.nvmlSystemGetCudaDriverVersion_v2),
        "nvml_version": ask(n.nvmlSystemGetNVMLVersion),
        "device_count": count,
        "devices": [
            {name: ask(question, handle) for name, question in PER_CARD.items()} for handle in handles
        ],
        "pairs": [
            {
                "from": one,
                "to": other,
                "topology": ask(n.nvmlDeviceGetTopologyCommonAncestor, handles[one], handles[other]),
                "p2p_read": ask(
                    n.nvmlDeviceGetP2PStatus, handles[one], handles[other], n.NVML_P2P_CAPS_INDEX_READ
                ),
                "p2p_nvlink": ask(
                    n.nvmlDeviceGetP2PStatus, handles[one], handles[other], n.NVML_P2P_CAPS_INDEX_NVLINK
                ),
            }
            for one in range(count)
            for other in range(count)
            if one != other
        ],
    }
    try:
        import torch

        document["torch"] = []
        for index in range(count):
            before = torch.cuda.mem_get_info(index)
            document["torch"].append(
                {"mem_get_info": before, "properties": {
                    name: plain(getattr(torch.cuda.get_device_properties(index), name))
                    for name in ("name", "major", "minor", "total_memory", "multi_processor_count", "L2_cache_size")
                }}
            )  # fmt: skip
        document["devices_with_context"] = [
            {name: ask(PER_CARD[name], handle) for name in ("memory", "compute_processes")}
            for handle in handles
        ]
    except ImportError:
        pass
    Path(sys.argv[1]).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
