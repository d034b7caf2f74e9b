# SPDX-License-Identifier: Apache-2.0
"""batched: a function over arrays, called row by row from any thread or task, run over batches."""

from __future__ import annotations

import enum
import functools
import inspect
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

import numpy as np

from headrace import _core
from headrace.config import BatchingOptions
from headrace.errors import FailedPrecondition, InvalidArgument
from headrace.lane import Lane

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.engine import Engine, ServedModel
    from headrace.reply import Outputs, Reply

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")

SIGNATURE_NAME = "serving_default"
OPEN = 0  # the dtype that the caller's array has

NO_NAMES = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@overload
def batched(function: Callable[P, R], /) -> Batched[P, R]: ...


@overload
def batched(**options: Any) -> Callable[[Callable[P, R]], Batched[P, R]]: ...


def batched(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Makes a function over batches callable with single rows, from any thread or task at once.

        @headrace.batched(max_batch_size=32)
        def embed(x: NDArray[np.float32]) -> NDArray[np.float32]:
            return model(x)                      # x: [rows, ...], the rows of all who call at the time

        y = embed(x)                             # x: [1 or more rows, ...]; y: the same rows
        y = await embed.predict_async(x)

    The parameters are arrays whose first dimension counts rows; requests share a batch if their dtypes and other
    dimensions agree, and if they give the same parameters, where some have defaults.  The result is an array, a tuple
    of arrays or a dict of them, each with a row for every row of the input, and always of the same kind.  Whoever calls
    gets their own rows of it, in contiguous, writable arrays of their own.

    The function runs on executor threads, one at a time unless num_batch_threads is more than 1.  It may keep or change
    its arguments.  What it raises reaches the callers of that batch as Unknown, with the original as `__cause__`; a
    HeadraceError reaches them with its own code.  A wrong number of rows is an InvalidArgument that names both.

    On methods, each instance has a queue of its own, which ends with it.

    `options` are the fields of BatchingOptions.  Raises InvalidArgument for a wrong value and for functions that cannot
    be batched (`*args`, `**kwargs`, no parameters, `async def`), TypeError for an unknown option.
    """
    checked = BatchingOptions(**options)
    if function is None:
        return lambda decorated: Batched(decorated, checked)
    return Batched(function, checked)


class Kind(enum.Enum):
    """What a function returns."""

    ARRAY = "an array"
    TUPLE = "a tuple"
    DICT = "a dict"


@dataclass(frozen=True)
class Parameters:
    """The names of a function's parameters, which are those of its inputs."""

    signature: inspect.Signature

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(self.signature.parameters)

    @functools.cached_property
    def optional(self) -> frozenset[str]:
        """Those with a default."""
        return self._of(lambda each: each.default is not inspect.Parameter.empty)

    @functools.cached_property
    def absent_if_none(self) -> frozenset[str]:
        return self._of(lambda each: each.default is None)

    @functools.cached_property
    def positional_only(self) -> dict[str, Any]:
        """Their defaults."""
        parameters = self.signature.parameters.values()
        return {each.name: each.default for each in parameters if each.kind is inspect.Parameter.POSITIONAL_ONLY}

    @functools.cached_property
    def positional(self) -> bool:
        """Whether all may be given by position."""
        return not self._of(lambda each: each.kind is inspect.Parameter.KEYWORD_ONLY)

    @staticmethod
    def of(function: Callable[..., Any], name: str) -> Parameters:
        """Raises InvalidArgument for a function that cannot be batched."""
        bodies = (function, type(function).__call__)  # of a function, of an object that is called
        if any(inspect.iscoroutinefunction(body) or inspect.isasyncgenfunction(body) for body in bodies):
            raise InvalidArgument(f"{name} is an async function; batch a plain one, and await its predict_async()")
        if any(inspect.isgeneratorfunction(body) for body in bodies):
            raise InvalidArgument(f"{name} is a generator; a batched function returns arrays")
        try:
            signature = inspect.signature(function)
        except ValueError as error:
            raise InvalidArgument(f"{name} has no signature that could be read: {error}") from None
        for parameter in signature.parameters.values():
            if parameter.kind in NO_NAMES:
                raise InvalidArgument(f"{name} has {parameter}; its inputs must have names: write its parameters out")
        if not signature.parameters:
            raise InvalidArgument(f"{name} has no parameters; a batch consists of the rows of its inputs")
        return Parameters(signature)

    def bind(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
        """The inputs of a call; one that is None as by default is left out.  Raises TypeError as the function would."""
        if not keywords and self.positional and len(arguments) == len(self.names):
            inputs = dict(zip(self.names, arguments, strict=True))
        else:
            inputs = self.signature.bind(*arguments, **keywords).arguments
        if not self.absent_if_none:
            return inputs
        return {name: value for name, value in inputs.items() if value is not None or name not in self.absent_if_none}

    def without_first(self, name: str) -> Parameters:
        """Those of a method, without its instance.  Raises InvalidArgument if that is all it has."""
        rest = list(self.signature.parameters.values())[1:]
        if not rest:
            raise InvalidArgument(f"{name} has no parameters; a batch consists of the rows of its inputs")
        return Parameters(self.signature.replace(parameters=rest))

    def specs(self) -> list[_core.TensorSpec]:
        return [_core.TensorSpec(name, OPEN, None, optional=name in self.optional) for name in self.names]

    def _of(self, condition: Callable[[inspect.Parameter], bool]) -> frozenset[str]:
        return frozenset(each.name for each in self.signature.parameters.values() if condition(each))


class Run:
    """A function as executors call it: arrays by name in, arrays by name out.

    It refers to the instance of a method only weakly, and not to its Batched at all: their end is the end of the
    executors.
    """

    def __init__(
        self, function: Callable[..., Any], name: str, parameters: Parameters, instance: weakref.ref[Any] | None
    ) -> None:
        self._function = function
        self._name = name
        self._positional_only = parameters.positional_only
        self._instance = instance
        self._lock = threading.Lock()
        self.kind: Kind | None = None  # written under _lock, once
        self._tuple: Callable[[Iterable[NDArray[Any]]], Any] = tuple  # written before `kind`

    def __call__(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        arguments = []
        if self._instance is not None:
            instance = self._instance()
            if instance is None:
                raise FailedPrecondition(f"the object whose {self._name} was called is gone")
            arguments.append(instance)
        # No parameter may be left out before one that is given.
        arguments += [inputs.get(name, default) for name, default in self._positional_only.items()]
        keywords = {name: value for name, value in inputs.items() if name not in self._positional_only}
        return self._named(self._function(*arguments, **keywords))

    def _named(self, result: Any) -> dict[str, NDArray[Any]]:
        """The outputs as they are called over the wire."""
        kind = Kind.ARRAY
        if isinstance(result, Mapping):
            kind = Kind.DICT
            outputs = {self._output_name(name): np.asarray(value) for name, value in result.items()}
        elif isinstance(result, tuple):
            kind = Kind.TUPLE
            outputs = {f"output_{i}": np.asarray(value) for i, value in enumerate(result)}
        elif result is None:
            raise InvalidArgument(f"{self._name} returned None; it must return an array, a tuple or a dict of arrays")
        else:
            outputs = {"output": np.asarray(result)}
        if not outputs:
            raise InvalidArgument(f"{self._name} returned {kind.value} without arrays")
        if self.kind is not kind:
            with self._lock:
                if self.kind is None:
                    self._tuple = getattr(type(result), "_make", tuple)  # a named one is made so
                    self.kind = kind
                elif self.kind is not kind:
                    raise InvalidArgument(
                        f"{self._name} returned {kind.value}, before it returned {self.kind.value}; it must always"
                        " return the same"
                    )
        return outputs

    def _output_name(self, name: object) -> str:
        if not isinstance(name, str) or not name:
            raise InvalidArgument(f"{self._name} returned a dict with the key {name!r}; an output is named by text")
        return name

    def result(self, outputs: Outputs) -> Any:
        """The outputs as the function returns them."""
        if self.kind is Kind.DICT:
            return outputs
        return self._tuple(outputs.values()) if self.kind is Kind.TUPLE else outputs["output"]


class Batched(Generic[P, R]):
    """A function over batches, called with single rows.  See batched(), which makes it.

    Thread safety: everything from any thread, and from tasks of any number of event loops.  Executors start at the
    first use; after a fork the child may use what the parent had not used before, other uses raise FailedPrecondition.
    """

    __name__: str
    __qualname__: str
    __signature__: inspect.Signature  # of methods, whose function has the instance as well

    def __init__(self, function: Callable[P, R], options: BatchingOptions) -> None:
        self._static = isinstance(function, staticmethod)
        if isinstance(function, staticmethod):
            function = function.__func__
        if not callable(function):
            raise InvalidArgument(f"a {type(function).__name__} cannot be batched; put @batched next to the function")
        functools.update_wrapper(self, function, updated=())  # what an object that is called has is its own
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__qualname__ = getattr(function, "__qualname__", self.__name__)
        self._function = function
        self._options = options
        self._parameters = Parameters.of(function, self.__name__)
        self._instance: object | None = None  # kept while the method is at hand, as a bound method does
        self._run, self._lane = _queue(self.__name__, function, self._parameters, options, None)
        self._lock = threading.Lock()
        self._closed = False  # guarded by _lock
        # Those of instances by id, since an instance may have an equality of its own; guarded by _lock.
        self._bound: dict[int, tuple[weakref.ref[Any], Parameters, Run, Lane]] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What the function returns for these rows.  Waits for it.  Raises HeadraceError."""
        if self._wants_instance():
            return self._of_first(args)(*args[1:], **kwargs)
        return cast("R", self._run.result(self._lane.predict(self._parameters.bind(args, kwargs), None, cast=False)))

    async def predict_async(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The same in an event loop, which wakes up once for all its replies of a batch.

        The arrays are copied.  Cancelling the task cancels the request.
        """
        if self._wants_instance():
            return await self._of_first(args).predict_async(*args[1:], **kwargs)
        outputs = await self._lane.predict_async(self._parameters.bind(args, kwargs), None, cast=False)
        return cast("R", self._run.result(outputs))

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Reply[R]:
        """Queues the rows, which are copied, and returns the promise of the function's result."""
        if self._wants_instance():
            return self._of_first(args).submit(*args[1:], **kwargs)
        native = self._lane.submit_native(self._parameters.bind(args, kwargs), None, cast=False)
        return self._lane.reply(native, self._run.result, self)

    def close(self, timeout: float = 30.0) -> bool:
        """Refuses new calls, answers those accepted within `timeout` seconds and the rest with Unavailable.

        False if a run had not returned by then and was left behind.  On a method of a class: for all instances.
        """
        until = time.monotonic() + timeout
        with self._lock:
            self._closed = True
            bound = list(self._bound.values())  # in one step: an instance may go meanwhile, and its entry with it
        lanes = [self._lane, *(lane for _, _, _, lane in bound)]
        ended = [lane.close(max(0.0, until - time.monotonic())) for lane in lanes]
        return all(ended)

    def served(self) -> ServedModel:
        """The model that serves the calls, for a server that serves others with it.  Raises FailedPrecondition."""
        if self._wants_instance():
            raise FailedPrecondition(f"{self.__qualname__} is a method; serve that of an instance")
        return self._lane.served()

    def stats(self) -> dict[str, Any]:
        """Counters since the first use: requests by how they ended, batches by reason and by rows, and times."""
        return self._lane.stats()

    @overload
    def __get__(self, instance: None, owner: type) -> Batched[P, R]: ...

    @overload
    def __get__(self: Batched[Concatenate[T, Q], R], instance: T, owner: type) -> Batched[Q, R]: ...

    def __get__(self, instance: Any, owner: type) -> Any:
        """The method of an instance, which has a queue of its own."""
        if instance is None or self._instance is not None or self._static:
            return self
        bound: Batched[Any, Any] = object.__new__(Batched)
        bound.__dict__.update(self.__dict__)
        bound._instance = instance
        bound._parameters, bound._run, bound._lane = self._queue_of(instance)
        bound.__signature__ = bound._parameters.signature
        bound._bound = {}
        return bound

    def __reduce__(self) -> str | tuple[Callable[..., Any], tuple[object, str]]:
        """Pickled by name, as functions and methods are."""
        return self.__qualname__ if self._instance is None else (getattr, (self._instance, self.__name__))

    def _wants_instance(self) -> bool:
        return self._instance is None and not self._static and self._parameters.names[0] in ("self", "cls")

    def _of_first(self, args: tuple[Any, ...]) -> Batched[..., R]:
        if not args:
            raise TypeError(f"{self.__qualname__}() is a method; call it on an instance")
        bound: Batched[..., R] = self.__get__(args[0], type(args[0]))
        return bound

    def _queue_of(self, instance: object) -> tuple[Parameters, Run, Lane]:
        key = id(instance)
        with self._lock:
            found = self._bound.get(key)
            if found is not None and found[0]() is instance:
                return found[1:]
            try:
                reference = weakref.ref(instance, lambda _: self._bound.pop(key, None))
            except TypeError:
                raise InvalidArgument(
                    f"{type(instance).__name__} has __slots__ without __weakref__: its {self.__name__} cannot have a"
                    " queue that ends with the instance; add __weakref__ to __slots__"
                ) from None
            parameters = self._parameters.without_first(self.__name__)
            run, lane = _queue(self.__name__, self._function, parameters, self._options, reference)
            if self._closed:
                lane.close(0.0)
            self._bound[key] = (reference, parameters, run, lane)
            return parameters, run, lane


def _queue(
    name: str,
    function: Callable[..., Any],
    parameters: Parameters,
    options: BatchingOptions,
    instance: weakref.ref[Any] | None,
) -> tuple[Run, Lane]:
    """What a function, or the method of one instance, has of its own."""
    run = Run(function, name, parameters, instance)
    signature = _core.Signature(SIGNATURE_NAME, parameters.specs(), [])

    def serve(engine: Engine) -> ServedModel:
        return engine.add_functions(name, {SIGNATURE_NAME: (signature, run)}, options)

    return run, Lane(f"queue of {name}", serve)
