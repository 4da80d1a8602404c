"""A job that was made in a process, not in a file: packed for its workers, over memory of the user's own.

Only this and the tasks of `feed` are ever pickled, and neither leaves the processes of one user on one host.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from cordee.core.errors import JobError

if TYPE_CHECKING:
    from cordee.train.job import Job


def pack_job(job: Job) -> bytes:
    """A job as bytes for the workers: its lambdas and classes by value, as a notebook has no module to import.

    Modules go by name, so before the job comes the path that this process imports from: its script's folder is there.
    """
    import cloudpickle

    try:
        packed: bytes = cloudpickle.dumps(sys.path) + cloudpickle.dumps(job)
    except Exception as error:  # whatever a user's object raises when it is asked for its state
        raise JobError(
            f"the job cannot be sent to the workers: {error}. A function of it uses an object that this process alone "
            "can have (a lock, a thread, a connection): make it inside the function, or write the job to a file "
            'and train that: cordee.train("job.py")'
        ) from error
    return packed


def receive_job(descriptor: int) -> Job:
    """The job that the launcher of this worker has packed."""
    import cloudpickle

    from cordee.train.job import Job

    with open(f"/proc/self/fd/{descriptor}", "rb") as file:  # opened anew: workers would share the place in the file
        os.close(descriptor)
        paths: list[str] = cloudpickle.load(file)
        sys.path[:] = list(dict.fromkeys([*paths, *sys.path]))  # modules are imported as in the process that sent it
        job = cloudpickle.load(file)
    if not isinstance(job, Job):
        raise JobError(f"expected a cordee.Job, got {type(job).__name__}")
    return job
