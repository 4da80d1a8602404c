"""`cordee.core.errors` under its public name."""

from cordee.core.errors import CheckpointError as CheckpointError
from cordee.core.errors import CoordinatorLost as CoordinatorLost
from cordee.core.errors import CordeeError as CordeeError
from cordee.core.errors import DataError as DataError
from cordee.core.errors import DivergedError as DivergedError
from cordee.core.errors import Evicted as Evicted
from cordee.core.errors import Interrupted as Interrupted
from cordee.core.errors import JobError as JobError
from cordee.core.errors import MixingError as MixingError
from cordee.core.errors import ModelError as ModelError
from cordee.core.errors import PlanError as PlanError
from cordee.core.errors import RendezvousError as RendezvousError
from cordee.core.errors import SecurityError as SecurityError
from cordee.core.errors import StorageError as StorageError
from cordee.core.errors import UsageError as UsageError
from cordee.core.errors import WaitedTooLong as WaitedTooLong
from cordee.core.errors import WorkerFailed as WorkerFailed
from cordee.core.errors import WorkersLost as WorkersLost
