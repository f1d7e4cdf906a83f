"""Print the facts of torch and its devices as one JSON line: `python -m starling.node.engine.torch_probe`, run by `starling doctor`."""

import json

import torch


def _gpu(index: int) -> dict[str, object]:
    found = torch.cuda.get_device_properties(index)
    try:
        free = torch.cuda.mem_get_info(index)[0]
    except RuntimeError:  # the GPU is in exclusive use by another process, or out of memory
        free = None
    return {"name": found.name, "total": found.total_memory, "free": free}


def main() -> None:
    """Print the facts as one JSON line."""
    gpus = [_gpu(index) for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    rocm = torch.version.hip
    built_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {rocm}" if rocm else ""
    mps = torch.backends.mps.is_available()
    print(json.dumps({"version": torch.__version__, "built_for": built_for, "gpus": gpus, "mps": mps}))  # noqa: T201 - its output


if __name__ == "__main__":
    main()
