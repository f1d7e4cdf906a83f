"""Trackers that need a package, which is imported when one is made."""

import importlib
from pathlib import Path
from typing import Any

from starling.gossip.errors import ConfigError
from starling.node.status.scalars import Scalar
from starling.node.tracking.catalogue import Run


class TensorBoard:
    """Event files in a folder, which is made; `tensorboard --logdir FOLDER` shows them. Each node needs its own folder."""

    def __init__(self, target: str, run: Run) -> None:
        event, summary = (_package(f"tensorboard.compat.proto.{name}_pb2", "tensorboard") for name in ("event", "summary"))
        writer = _package("tensorboard.summary.writer.event_file_writer", "tensorboard")
        self._event, self._summary = event.Event, summary.Summary
        try:
            Path(target).mkdir(parents=True, exist_ok=True)
            self._writer = writer.EventFileWriter(target)
        except OSError as error:
            raise ConfigError(f"TARGET: {target} cannot be written: {error.strerror}; name another folder") from error

    def add(self, point: Scalar) -> None:
        """Write an event."""
        value = self._summary.Value(tag=point.tag, simple_value=point.value)
        summary = self._summary(value=[value])
        self._writer.add_event(self._event(wall_time=point.time_s, step=point.round, summary=summary))

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


class MlFlow:
    """A run in the experiment named after the swarm; the target is a tracking URI, such as http://127.0.0.1:5000."""

    def __init__(self, target: str, run: Run) -> None:
        client = _package("mlflow", "mlflow").MlflowClient(tracking_uri=target)
        try:
            known = client.get_experiment_by_name(run.name)
            experiment = client.create_experiment(run.name) if known is None else known.experiment_id
            made = client.create_run(experiment, run_name=run.peer[-12:], tags=run._asdict())
        except Exception as error:  # mlflow and its stores have many
            raise ConfigError(f"TARGET: {target} is no tracking URI that answers: {_first_line(error)}") from error
        self._client, self._run = client, made.info.run_id

    def add(self, point: Scalar) -> None:
        """Log one metric at its round."""
        self._client.log_metric(self._run, point.tag, float(point.value), timestamp=int(point.time_s * 1000), step=point.round)

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self._run)


class Wandb:
    """A run in the project that the target names, grouped by swarm. `WANDB_MODE=offline` keeps it on this machine."""

    def __init__(self, target: str, run: Run) -> None:
        wandb: Any = _package("wandb", "wandb")
        try:
            self._run = wandb.init(project=target, name=run.peer[-12:], group=run.swarm, config=run._asdict())
        except Exception as error:  # wandb has many
            raise ConfigError(f"TARGET: no run in the project {target}: {_first_line(error)}") from error
        self._run.define_metric("*", step_metric="round")

    def add(self, point: Scalar) -> None:
        """Log one figure; its round is the axis, since points of different charts are not in one order."""
        self._run.log({point.tag: float(point.value), "round": point.round})

    def close(self) -> None:
        """End the run."""
        self._run.finish()


def _package(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"tracker: {extra} is not installed; `pip install 'starling-swarm[{extra}]'`") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:160]
