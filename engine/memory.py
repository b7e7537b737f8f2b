"""How much memory there is for a KV pool."""

from pathlib import Path

import torch

# A GPU is this process's own. A CPU's memory is shared with other replicas and the page
# cache; a share of all there is, not of what is free at the moment, gives replicas on equal
# machines equal pools, and so equal parts of the load.
GPU_SHARE = 0.9
CPU_SHARE = 0.125
CPU_SHARE_OF_FREE = 0.5

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def free_bytes(device: torch.device) -> int:
    """Bytes on ``device`` that can be had now."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return _available_host_bytes()


def pool_bytes(device: torch.device) -> int:
    """Bytes that a KV pool on ``device`` may take when nobody said how many."""
    free = free_bytes(device)
    if device.type == "cuda":
        return int(free * GPU_SHARE)
    return int(min(_host_bytes() * CPU_SHARE, free * CPU_SHARE_OF_FREE))


def _host_bytes() -> int:
    """All memory of the machine, or of the control group where that has less."""
    return _least(_meminfo("MemTotal"), _cgroup_limit())


def _available_host_bytes() -> int:
    """Memory that can be had without swapping, within the control group's limit."""
    return _least(_meminfo("MemAvailable"), _cgroup_available())


def _least(*sizes: int | None) -> int:
    known = [size for size in sizes if size is not None]
    # Neither is known outside Linux; 8 GiB is what a laptop can be expected to have.
    return min(known) if known else 8 << 30


def _meminfo(name: str) -> int | None:
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_limit() -> int | None:
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        return None if limit == "max" else int(limit)
    except (OSError, ValueError):
        return None


def _cgroup_available() -> int | None:
    limit = _cgroup_limit()
    try:
        used = int((CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return None if limit is None else max(0, limit - used)
