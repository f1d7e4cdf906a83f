"""A model card: who trained a model, on what data, and its metric, as a Markdown page. A leaf."""

from starling.node.status.snapshot import StatusSnapshot

_DATA = (
    "Every member trained on its own data, which never left its machine; nobody has seen all of it. "
    "What the data were, who may use a model of them, and what it must not be used for is for its members to add."
)


def card(name: str, *, swarm: str, task: str, form: str, status: StatusSnapshot | None) -> str:
    """Return the page. `status` is the node's, now or its last one; None where the node left none.

    Args:
        name: of the model.
        swarm: id of the swarm, the digest of its manifest.
        task: `task.kind`.
        form: of the file: safetensors, torch, hf, peft, onnx.
    """
    rows = {"swarm": f"`{swarm}`", "task": f"`{task}`", "format": form}
    if status is not None:
        done = f"{status.round} of {status.rounds}" if status.rounds else str(status.round)
        rows |= {"rounds": done, "local steps of this node": f"{status.local_steps:,}", "members at the end": str(status.members)}
        if status.value is not None:
            rows[status.metric or ""] = f"{status.value:.6g}, on this node's held-out data, in round {status.value_round}"
        if status.parameters is not None:
            rows["trained parameters"] = f"{status.parameters:,}"
        rows |= {"algorithm": status.algorithm, "overlay": status.overlay}
    table = "\n".join(f"| {key} | {_cell(value)} |" for key, value in rows.items() if value)
    library = {"hf": "transformers", "peft": "peft"}.get(form, "pytorch")
    return (
        f"---\nlibrary_name: {library}\ntags:\n- starling\n- decentralized-learning\n---\n\n# {_cell(name)}\n\n"
        f"Trained by a Starling swarm, without a server.\n\n| | |\n|---|---|\n{table}\n\n## Data\n\n{_DATA}\n"
    )


def _cell(value: str) -> str:
    """Return a value as one table cell: values come from others and must not break the table."""
    return " ".join(value.split()).replace("|", "\\|").replace("<", "&lt;")
