"""Tasks: a model, a loss, metrics and the clients' data."""

from asyncmanifold.tasks.data import Data, TensorData
from asyncmanifold.tasks.own_data import DatasetData, as_data
from asyncmanifold.tasks.task import Task

__all__ = ["Data", "DatasetData", "Task", "TensorData", "as_data"]
