"""Jobs as Flower's messages; the model is encoded once for all jobs that start from the same version."""

from __future__ import annotations

from math import isfinite

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType

from asyncmanifold.flower.codec import TrainingRequest, job_content, model_record
from asyncmanifold.flower.identity import Identity
from asyncmanifold.server.protocol import Job
from asyncmanifold.session.session import Session


class JobMessages:
    """Makes the messages of one run."""

    def __init__(self, session: Session, identity: Identity, train_config: ConfigRecord) -> None:
        self._session, self._identity, self._config = session, identity, train_config
        self._encoded: tuple[int, ArrayRecord] | None = None  # the last version sent, and its arrays

    def make(self, job: Job, node: int, deadline: float | None) -> Message:
        """Return the message that asks a node to train a job; without a deadline Flower's own holds."""
        if self._encoded is None or self._encoded[0] != job.version:
            self._encoded = None  # its memory can be used again
            self._encoded = job.version, model_record(job.theta, job.statistics)
        session, method = self._session, self._session.method
        request = TrainingRequest(
            job, method.embedding, method.outgoing, session.training, session.run.seed, self._identity
        )
        return Message(
            content=job_content(request, self._encoded[1], self._config),
            message_type=MessageType.TRAIN,
            dst_node_id=node,
            group_id=str(job.version),
            ttl=deadline if deadline is not None and isfinite(deadline) else None,
        )
