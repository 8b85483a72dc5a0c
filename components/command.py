"""`python -m components.STEP --executor-input '{{$}}'`: the same few lines for every step."""

from __future__ import annotations

import argparse
import inspect
import signal
import sys
from collections.abc import Callable, Mapping
from types import FrameType, NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from components.outputs import Outputs, read_executor_input, write_outputs
from eval_core.errors import ConcordError, UsageError

_INTERRUPTED = 130
_NAMES: Mapping[type, str] = {str: "text", int: "a whole number", float: "a number", dict: "a JSON object"}


def main(step: Callable[..., Outputs]) -> int:
    """Call `step` with the inputs that the pipeline gives, write its outputs and return its exit code.

    SIGTERM, by which a cluster ends a pod, is an interrupt like Ctrl-C: the step ends what it has started.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {step.__module__.rpartition('.')[0]}",
        description=inspect.getdoc(step),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--executor-input", required=True, metavar="JSON", help="what a pipeline puts in the place of '{{$}}'"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        given = read_executor_input(arguments.executor_input)
        outputs = step(**bind(step, given.inputs))
        write_outputs(given, outputs)
    except ConcordError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; what is committed is kept", file=sys.stderr, flush=True)
        return _INTERRUPTED
    return outputs.exit_code


def bind(step: Callable[..., Outputs], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a step's parameters, each of the type that its signature names.

    JSON has one kind of number, so a whole number may arrive as 2.0.

    Raises:
        UsageError: an input is missing or of another type.
    """
    hints = get_type_hints(step)
    bound = {}
    for name, parameter in inspect.signature(step).parameters.items():
        value = inputs.get(name)
        if value is None:
            if parameter.default is parameter.empty:
                raise UsageError(f"input '{name}' is missing")
            continue
        bound[name] = _convert(name, value, hints[name])
    return bound


def _convert(name: str, value: Any, wanted: Any) -> Any:
    members = (
        [member for member in get_args(wanted) if member is not NoneType] if isinstance(wanted, UnionType) else [wanted]
    )
    kind = get_origin(members[0]) or members[0]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is float and is_number:
        return float(value)
    if kind is int and is_number and float(value).is_integer():
        return int(value)
    if kind in (str, dict) and isinstance(value, kind):
        return value
    raise UsageError(f"input '{name}' must be {_NAMES[kind]}, not {value!r:.60}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
