"""Tasks that Python code gives, as settings that build them."""

from __future__ import annotations

from typing import Any

from asyncmanifold.configuration.own_tasks import Build, enter_function, own_task_class
from asyncmanifold.errors import InputError
from asyncmanifold.tasks.task import Task, TaskSettings


class PythonTask:
    """A task object, or a function that no other process could import: it cannot be named in a file."""

    def __init__(self, given: Task | Build) -> None:
        self.given = given

    def build(self, seed: int) -> Task:
        """Return the task."""
        task = self.given if isinstance(self.given, Task) else self.given(seed)
        if not isinstance(task, Task):
            raise InputError(f"the function of the seed must return a Task, not {type(task).__name__}")
        return task


def task_settings(task: Any) -> TaskSettings:
    """Return what builds a task: a ``Task`` itself, or a function of the seed that returns one.

    A function in a file is known by its place, so that a run's directory says how its task is built again.
    """
    if isinstance(task, Task):
        return PythonTask(task)
    if not callable(task):
        raise InputError(f"a task must be a Task or a function of the seed, not {type(task).__name__}")
    place = enter_function(task)
    return PythonTask(task) if place is None else own_task_class(place)()
