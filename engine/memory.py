"""How much memory there is for a KV pool."""

from pathlib import Path

import torch

# Of what is free once the weights are loaded. A GPU is this process's own; on a CPU
# other replicas and the page cache want their share.
GPU_SHARE = 0.9
CPU_SHARE = 0.125


def pool_bytes(device: torch.device) -> int:
    """Bytes that a KV pool on ``device`` may take."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * GPU_SHARE)
    return int(_available_host_bytes() * CPU_SHARE)


def _available_host_bytes() -> int:
    """Memory that can be had without swapping, within the control group's limit."""
    candidates = [_meminfo_available(), _cgroup_available()]
    known = [size for size in candidates if size is not None]
    # Neither file exists outside Linux; 8 GiB is what a laptop can be expected to have.
    return min(known) if known else 8 << 30


def _meminfo_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_available() -> int | None:
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - used)
