"""What can go wrong, each with its exit code; `docs/reference/exit-codes` has a page for every one."""

from __future__ import annotations


class CordeeError(Exception):
    """Something a user can act on: printed as one message, without a stack trace, ending with `code`."""

    code = 1
    """The exit code of the command that ends with this error."""

    title = "unexpected failure"
    """Two or three words for the exit-code table."""

    def __init__(self, message: str = "", *, next_step: str = "") -> None:
        """`message` says what happened, `next_step` what the user can do now, where that is known only later."""
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def __str__(self) -> str:
        """Both, as the user reads them."""
        return f"{self.message.rstrip('.')}; {self.next_step}" if self.next_step else self.message


class UsageError(CordeeError):
    """The command line, or a call of the public functions, does not make sense."""

    code = 2
    title = "usage"


class JobError(CordeeError):
    """The job file or a field of the job is wrong."""

    code = 10
    title = "job"


class DataError(CordeeError):
    """The data is missing, unreadable, or not of the form that the job needs."""

    code = 11
    title = "data"


class PlanError(CordeeError):
    """The plan is misspelt, contradicts itself, or asks for something that is not built."""

    code = 12
    title = "plan"


class ModelError(CordeeError):
    """The model or the loss does not accept a batch of the data."""

    code = 13
    title = "model does not fit"


class MixingError(CordeeError):
    """The loss of a batch is not the mean over its samples, so shares of it cannot be added up."""

    code = 14
    title = "loss mixes samples"


class DivergedError(CordeeError):
    """The loss or the gradient became NaN or infinite."""

    code = 15
    title = "diverged"


class WorkerFailed(CordeeError):
    """The user's code raised an exception on a worker."""

    code = 20
    title = "worker failed"

    def __init__(
        self, message: str = "", *, next_step: str = "", rank: int = -1, host: str = "", traceback: str = ""
    ) -> None:
        """Keep who failed, and the worker's own traceback, for callers from Python."""
        super().__init__(message, next_step=next_step)
        self.rank = rank
        self.host = host
        self.traceback = traceback
        if traceback:
            self.__cause__ = WorkerTraceback(traceback)


class WorkerTraceback(Exception):
    """A traceback from another process, shown as the cause of the error that tells of it."""

    def __str__(self) -> str:
        """The worker's own lines."""
        return f"\n{self.args[0]}"


class WorkersLost(CordeeError):
    """So many workers died that the run cannot go on."""

    code = 21
    title = "workers lost"


class WaitedTooLong(CordeeError):
    """A wait reached its deadline."""

    code = 22
    title = "deadline"


class CoordinatorLost(CordeeError):
    """A worker lost its connection to the launcher and ended itself."""

    code = 23
    title = "coordinator lost"


class Evicted(CordeeError):
    """This worker was silent for so long that the others continued without it."""

    code = 24
    title = "evicted"


class RendezvousError(CordeeError):
    """The hosts or processes of a run did not find each other (a port in use, a host that is not there)."""

    code = 30
    title = "rendezvous"


class SecurityError(CordeeError):
    """A connection off loopback without what protects it, or a peer that could not show the token."""

    code = 31
    title = "security"


class StorageError(CordeeError):
    """A file of the run could not be written (disk full, no permission)."""

    code = 40
    title = "storage"


class CheckpointError(CordeeError):
    """A checkpoint is missing, damaged, or belongs to another job or data set."""

    code = 41
    title = "checkpoint"


class Interrupted(CordeeError):
    """Ctrl-C, SIGTERM or a closed terminal: the run ended early, with a checkpoint."""

    code = 130
    title = "interrupted"


def all_errors() -> list[type[CordeeError]]:
    """Every error with an exit code of its own, by code."""
    return sorted((one for one in CordeeError.__subclasses__() if "code" in vars(one)), key=lambda one: one.code)


def error_named(name: str) -> type[CordeeError]:
    """The error class called `name`; `CordeeError` itself for a name we do not know."""
    return next((error for error in all_errors() if error.__name__ == name), CordeeError)
