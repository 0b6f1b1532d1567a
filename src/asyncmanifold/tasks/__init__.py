"""Tasks: a model, a loss, metrics and the clients' data."""

from asyncmanifold.tasks.data import Data, DatasetData, TensorData, as_data
from asyncmanifold.tasks.task import Task

__all__ = ["Data", "DatasetData", "Task", "TensorData", "as_data"]
