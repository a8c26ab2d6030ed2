"""As much of Ray as the pool uses, in one thread: actors work when they are waited for."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class ActorDied(RayError):
    pass


class Die(BaseException):
    """Raised within an actor: its process is gone."""


class Hang(BaseException):
    """Raised within an actor: this call never comes back."""


class Promise:
    def __init__(self, actor: Actor | None, call: Callable[[], Any]) -> None:
        self.actor, self.call = actor, call
        self.value: Any = None
        self.error: RayError | None = None
        self.ready = self.hangs = False

    def run(self) -> None:
        try:
            self.value = self.call()
        except Die:
            assert self.actor is not None
            self.actor.die()
            return
        except Hang:
            self.hangs = True
            return
        except Exception as error:
            self.error = RayTaskError(f"{type(error).__name__}: {error}")
        self.ready = True


class Actor:
    def __init__(self, made: Any) -> None:
        self.made, self.alive = made, True
        self.promises: list[Promise] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.made, name)

        def remote(argument: Any) -> Promise:
            value = argument.value if isinstance(argument, Promise) else argument
            promise = Promise(self, lambda: method(value))
            self.promises.append(promise)
            if not self.alive:
                self.die()
            return promise

        return SimpleNamespace(remote=remote)

    def step(self) -> None:
        """The oldest call that was not made yet."""
        waiting = [one for one in self.promises if not one.ready]
        if self.alive and waiting and not waiting[0].hangs:
            waiting[0].run()

    def die(self) -> None:
        self.alive = False
        for promise in self.promises:
            if not promise.ready:
                promise.error, promise.ready = ActorDied("the actor died\nand more"), True


class FakeRay:
    """`places`: actors that find room. `late`: the others are there, but never get to work."""

    def __init__(self, *, cpus: float = 2.0, gpus: float = 0.0, places: int = 100) -> None:
        self.exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
        self.has = {"CPU": cpus, "GPU": gpus}
        self.places = places
        self.actors: list[Actor] = []
        self.options: dict[str, Any] = {}
        self.most = 0  # calls that one actor had at once

    def put(self, value: Any) -> Promise:
        promise = Promise(None, lambda: value)
        promise.run()
        return promise

    def remote(self, kind: type) -> Any:
        def options(**options: Any) -> Any:
            self.options = options
            return SimpleNamespace(remote=lambda: self._new(kind))

        return SimpleNamespace(options=options)

    def _new(self, kind: type) -> Actor:
        self.actors.append(Actor(kind()))
        return self.actors[-1]

    def wait(
        self, promises: Sequence[Promise], *, num_returns: int, timeout: float
    ) -> tuple[list[Promise], list[Promise]]:
        working = [actor for actor in self.actors if actor.alive][: self.places]
        self.most = max(
            [self.most, *(sum(not p.ready for p in actor.promises) for actor in working)]
        )
        if timeout:
            for actor in working:
                actor.step()
        ready = [promise for promise in promises if promise.ready]
        if not ready:
            time.sleep(min(timeout, 0.001))
        found = list(itertools.islice(ready, num_returns))
        return found, [promise for promise in promises if promise not in found]

    def get(self, promise: Promise) -> Any:
        if promise.error is not None:
            raise promise.error
        return promise.value

    def kill(self, actor: Actor) -> None:
        actor.die()

    def cluster_resources(self) -> dict[str, float]:
        return self.has

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True}]

    def is_initialized(self) -> bool:
        return True
