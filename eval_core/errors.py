"""Every error that a user can meet, in one tree.

::

    ConcordError                     exit code 1
    ├── UsageError                   exit code 2: the input is wrong, nothing was started
    │   ├── SpecError                a key, a type or a value in the spec
    │   ├── DataError                a file of examples: names the file and the line
    │   ├── ModelError               a model folder that can't be used as it is
    │   └── RunMismatchError         the run folder holds another plan
    ├── StorageError                 the run's storage can't do what is needed, or is full
    ├── CorruptFileError             a file of the run whose digest doesn't fit its content
    ├── IncompleteRunError           work is missing: says how to resume
    └── WorkerError                  the attempt ended: a rank died, stalled or met a fault
        └── CalledOffError           exit code 3: another rank has said why already

A message names the thing that is wrong and the way out of it, in one line. `ValueError` is never
used for a user's mistake, and `assert` only for what can't happen.
"""


def first_line(error: BaseException) -> str:
    """What someone else's error says, as far as it fits into a message of ours."""
    return str(error).strip().split("\n", 1)[0]


class ConcordError(Exception):
    """Base of all errors with a message for the user."""

    exit_code = 1


class UsageError(ConcordError):
    """The user's input is wrong; nothing was started."""

    exit_code = 2


class SpecError(UsageError):
    """The spec has an unknown key, a wrong type or an impossible value."""


class DataError(UsageError):
    """A file of examples can't be read or has a bad line."""


class ModelError(UsageError):
    """The model folder can't be used as it is."""


class RunMismatchError(UsageError):
    """The run's storage already holds another plan."""


class StorageError(ConcordError):
    """The run's storage refused a call or lacks an ability that is needed."""


class CorruptFileError(ConcordError):
    """A file of the run is torn or altered."""


class IncompleteRunError(ConcordError):
    """Shards are missing, so no number can be given yet."""


class WorkerError(ConcordError):
    """The attempt ended before the work did."""


class CalledOffError(WorkerError):
    """Another rank ended the attempt and has given the reason."""

    exit_code = 3
