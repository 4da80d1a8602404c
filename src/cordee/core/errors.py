"""What can go wrong, each with its exit code; `docs/reference/exit-codes` has a page for every one."""

from __future__ import annotations


class CordeeError(Exception):
    """Something a user can act on: printed as one message, without a stack trace, ending with `code`."""

    code = 1
    """The exit code of the command that ends with this error."""

    title = "unexpected failure"
    """Two or three words for the exit-code table."""

    def __init_subclass__(cls, code: int | None = None, title: str = "") -> None:
        """A class without a `code` has that of its parent."""
        if code is not None:
            cls.code, cls.title = code, title

    def __init__(self, message: str = "", *, next_step: str = "") -> None:
        """`message` says what happened, `next_step` what the user can do now, where that is known only later."""
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def __str__(self) -> str:
        """Both, as the user reads them."""
        return f"{self.message.rstrip('.')}; {self.next_step}" if self.next_step else self.message


class UsageError(CordeeError, code=2, title="usage"):
    """The command line, or a call of the public functions, does not make sense."""


class JobError(CordeeError, code=10, title="job"):
    """The job file or a field of the job is wrong."""


class DataError(CordeeError, code=11, title="data"):
    """The data is missing, unreadable, or not of the form that the job needs."""


class PlanError(CordeeError, code=12, title="plan"):
    """The plan is misspelt, contradicts itself, or asks for something that does not work here."""


class ModelError(CordeeError, code=13, title="model does not fit"):
    """The model or the loss does not accept a batch of the data."""


class MixingError(CordeeError, code=14, title="loss mixes samples"):
    """The loss of a batch is not the mean over its samples, so shares of it cannot be added up."""


class DivergedError(CordeeError, code=15, title="diverged"):
    """The loss or the gradient became NaN or infinite."""


class WorkerFailed(CordeeError, code=20, title="worker failed"):
    """The user's code raised an exception on a worker."""

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


class WorkersLost(CordeeError, code=21, title="workers lost"):
    """So many workers died that the run cannot go on."""


class WaitedTooLong(CordeeError, code=22, title="deadline"):
    """A wait reached its deadline."""


class CoordinatorLost(CordeeError, code=23, title="coordinator lost"):
    """A worker lost its connection to the launcher and ended itself."""


class Evicted(CordeeError, code=24, title="evicted"):
    """The others continued without this worker or host: it was silent for too long, or did not reach one of them."""


class CutOff(CordeeError, code=25, title="cut off"):
    """Other hosts of the run are out of reach, and may continue: this side has no majority of the hosts, and ends."""


class RendezvousError(CordeeError, code=30, title="rendezvous"):
    """The hosts or processes of a run did not find each other (a port in use, a host that is not there)."""


class SecurityError(CordeeError, code=31, title="security"):
    """A connection off loopback without what protects it, or a peer that could not show the token."""


class StorageError(CordeeError, code=40, title="storage"):
    """A file of the run could not be written (disk full, no permission)."""


class CheckpointError(CordeeError, code=41, title="checkpoint"):
    """A checkpoint is missing, damaged, or belongs to another job or data set."""


class AuditError(CordeeError, code=42, title="audit"):
    """The record of a run does not prove that it trained what one process would have."""


class Interrupted(CordeeError, code=130, title="interrupted"):
    """Ctrl-C, SIGTERM or a closed terminal: the run ended early, with a checkpoint."""


def all_errors() -> list[type[CordeeError]]:
    """Every error with an exit code of its own, by code."""
    return sorted((one for one in CordeeError.__subclasses__() if "code" in vars(one)), key=lambda one: one.code)


def kind_of_error(error: CordeeError) -> type[CordeeError]:
    """Its class, or the nearest one above with an exit code of its own: what other processes know it by."""
    return next(kind for kind in type(error).__mro__ if issubclass(kind, CordeeError) and "code" in vars(kind))


def error_named(name: str) -> type[CordeeError]:
    """The error class called `name`; `CordeeError` itself for a name we do not know."""
    return next((error for error in all_errors() if error.__name__ == name), CordeeError)
