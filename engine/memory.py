"""How much memory there is for a KV pool."""

from pathlib import Path

import torch

# Of what is free once the weights are loaded. A GPU is this process's own; on a CPU
# other replicas and the page cache want their share.
GPU_SHARE = 0.9
CPU_SHARE = 0.125

CGROUP = Path("/sys/fs/cgroup")


def free_bytes(device: torch.device) -> int:
    """Bytes on ``device`` that can be had now."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return _available_host_bytes()


def pool_bytes(device: torch.device) -> int:
    """Bytes that a KV pool on ``device`` may take when nobody said how many."""
    return int(free_bytes(device) * (GPU_SHARE if device.type == "cuda" else CPU_SHARE))


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
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
        return None if limit == "max" else max(0, int(limit) - used)
    except (OSError, ValueError):
        return None
