"""The phases of an upgrade in every mode, on every engine: shadow → canary → running → paused →
finished → forgotten, and a rollback from each.

A model says in which phase the upgrade is, which share of the queries it answers and which vectors
each item has. After every step the gallery must agree with it: phase, counts, what a rollback
would lose, what searches find and which way answers. A script makes every step of the diagram in
docs/upgrade.md on every engine; random walks find other orders of them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from midspan.errors import EvaluationError, GalleryError, ItemError
from midspan.gallery import Gallery
from midspan.gallery.routing import arm_of
from midspan.spaces import Embeddings, Space
from midspan.upgrade import MODES, Check, GateResult, Mode, Upgrade, judged_by, own_gate
from midspan.upgrade import start as begin
from midspan.upgrade.worker import Settings
from tests.gallery.milvus import Milvus
from tests.gallery.postgres import Postgres
from tests.upgrade.world import OLD, add, encoder, ids, settings_for, vectors

OPEN = ("running", "paused")
FIRST = 4  # items
MOST = 9
QUICK = Settings(batch=4, growth=1, wait=False)
VERDICTS = ("PASS", "INCONCLUSIVE", "FAIL")
SHARES = (0.0, 0.5, 1.0)  # of the traffic: shadow, canary, all


def result(verdict: str) -> GateResult:
    check = Check("retention", 0.9, 0.8, 1.0, 0.98, verdict)  # type: ignore[arg-type]
    return GateResult(verdict, (check,), {}, True, "map", 50, ())  # type: ignore[arg-type]


class UpgradeMachine(RuleBasedStateMachine):
    """Between OLD and the new space of `mode`; `locate` says where the gallery is made."""

    locate: Callable[[Path], str]
    mode: Mode
    seen: set[tuple[str, str]]  # steps that were made: stage, step

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        folder = Path(self.folder.name)
        self.gallery = Gallery.create(type(self).locate(folder), OLD)
        self.new, self.bridge = settings_for(self.mode, folder)
        self.phase = "none"
        self.share = 1.0
        self.promised = True
        self.lost = 0  # items without an old vector when the upgrade began
        self.gate: str | None = None
        self.judged: tuple[int, int] | None = None  # what the verdict was on: new vectors, items
        self.failed_before = False  # the FAIL of a rolled back upgrade with the same vectors
        self.items: dict[str, set[str]] = {}  # id → fingerprints, true vectors only
        self.made = 0

    def teardown(self) -> None:
        self.gallery.close()
        self.folder.cleanup()

    @property
    def stage(self) -> str:
        """The phase, and what it is called by its share of the traffic."""
        if self.phase != "running" or self.share == 1:
            return self.phase
        return "canary" if self.share else "shadow"

    def _passed(self, step: str, phase: str) -> None:
        self.seen.add((self.stage, step))
        self.phase = phase

    @property
    def upgrade(self) -> Upgrade:
        return Upgrade(self.gallery)

    @property
    def serving(self) -> Space:
        return self.new if self.gallery.state.live[0] == self.new.fingerprint else OLD

    def mapped(self) -> set[str]:
        """Items that answer with a mapped vector, of which the model knows nothing."""
        own = {OLD.fingerprint, self.new.fingerprint}
        items = self.gallery.get_many(list(self.items))
        return {item.id for item in items if set(item.spaces) - own}

    def tally(self) -> tuple[int, int]:
        return sum(self.new.fingerprint in has for has in self.items.values()), len(self.items)

    # ---- items

    @initialize()
    def fill(self) -> None:
        for name in self._names(FIRST):
            self.items[name] = {OLD.fingerprint}

    def _names(self, count: int) -> list[str]:
        names = ids(count, first=self.made)
        self.made += count
        add(self.gallery, names, OLD)
        return names

    @precondition(lambda self: len(self.items) < MOST and self.phase in ("none", *OPEN))
    @rule()
    def add_old(self) -> None:
        if self.gallery.state.live[0] == self.new.fingerprint and self.phase == "none":
            return  # left behind for good
        (name,) = self._names(1)
        self.items[name] = {OLD.fingerprint}

    @precondition(lambda self: len(self.items) < MOST and self.phase in OPEN)
    @rule()
    def add_both(self) -> None:
        (name,) = ids(1, first=self.made)
        self.made += 1
        add(self.gallery, [name], self.new, OLD)
        self.items[name] = {self.new.fingerprint, OLD.fingerprint}

    @precondition(lambda self: len(self.items) < MOST and self.phase in (*OPEN, "finished"))
    @rule()
    def add_new_only(self) -> None:
        """Refused while a rollback is promised."""
        (name,) = ids(1, first=self.made)
        self.made += 1
        if self.phase in OPEN and self.promised:
            with pytest.raises(ItemError, match="promises a rollback"):
                add(self.gallery, [name], self.new)
            return
        add(self.gallery, [name], self.new)
        self.items[name] = {self.new.fingerprint}

    @precondition(lambda self: len(self.items) > 1)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.items)))
        assert self.gallery.delete([name]) == 1
        del self.items[name]

    # ---- steps

    @precondition(lambda self: self.phase == "none" and self.serving is OLD)
    @rule(promised=st.booleans(), share=st.sampled_from(SHARES))
    def start(self, promised: bool, share: float) -> None:
        self.upgrade.start(
            self.gallery,
            to=self.new,
            mode=self.mode,
            bridge=self.bridge,
            order="random",
            rollback=promised,
            traffic=share,
        )
        self._started("running", promised=promised, share=share)

    def _started(self, phase: str, *, promised: bool, share: float) -> None:
        self._passed("start", phase)
        self.share, self.promised = share, promised
        remembered = self.failed_before and self.tally()[0] > 0
        self.gate, self.judged = ("FAIL", self.judged) if remembered else (None, None)
        self.lost = sum(OLD.fingerprint not in has for has in self.items.values())  # before it

    @precondition(
        lambda self: (
            self.phase == "none"
            and self.mode == "map-gallery"
            and self.serving is OLD
            and all(OLD.fingerprint in has for has in self.items.values())
        )
    )
    @rule(share=st.sampled_from(SHARES))
    def start_that_stops_while_it_maps(self, share: float) -> None:
        def dies(*args: object, **settings: object) -> int:
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(begin, "map_items", dies)
            with pytest.raises(KeyboardInterrupt):
                self.upgrade.start(
                    self.gallery, to=self.new, mode=self.mode, bridge=self.bridge, traffic=share
                )
        self._started("mapping", promised=True, share=share)

    @precondition(lambda self: self.phase == "mapping")
    @rule()
    def start_again(self) -> None:
        self.upgrade.start(
            self.gallery, to=self.new, mode=self.mode, bridge=self.bridge, order="random"
        )
        self._passed("start", "running")

    @precondition(lambda self: self.phase in (*OPEN, "mapping"))
    @rule(share=st.sampled_from(SHARES))
    def traffic(self, share: float) -> None:
        self.upgrade.set_traffic(share)
        self._passed("traffic", self.phase)
        self.share = share

    @precondition(lambda self: self.gallery.state.target is not None and self.phase != "mapping")
    @rule(limit=st.sampled_from((2, 100)))
    def run(self, limit: int) -> None:
        target = self.gallery.state.target
        assert target is not None
        space = {self.new.fingerprint: self.new, OLD.fingerprint: OLD}[target]
        report = self.upgrade.run(encoder(space), limit=limit, settings=QUICK)
        if self.phase == "paused":
            assert (report.stopped, report.written) == ("paused", 0)
            return
        lacking = [name for name, has in self.items.items() if target not in has]
        assert report.written == min(limit, len(lacking))
        own = {OLD.fingerprint, self.new.fingerprint}
        for item in self.gallery.get_many(list(self.items)):
            self.items[item.id] = set(item.spaces) & own

    @precondition(lambda self: self.phase == "running")
    @rule()
    def pause(self) -> None:
        self.upgrade.pause(reason="tea")
        self._passed("pause", "paused")

    @precondition(lambda self: self.phase == "paused")
    @rule()
    def resume(self) -> None:
        if self.gate == "FAIL":
            with pytest.raises(GalleryError, match="with `override`"):
                self.upgrade.resume()
        self.upgrade.resume(override="because" if self.gate == "FAIL" else None)
        self._passed("resume", "running")

    @precondition(lambda self: self.phase in OPEN)
    @rule(verdict=st.sampled_from(VERDICTS))
    def judge(self, verdict: str) -> None:
        judged_by(self.gallery, result(verdict))
        self.gate, self.judged = verdict, self.tally()
        if verdict == "FAIL":
            self._passed("fail", "paused")

    @precondition(lambda self: self.phase in OPEN)
    @rule(force=st.booleans())
    def finish(self, force: bool) -> None:
        lacking = {name for name, has in self.items.items() if self.new.fingerprint not in has}
        kept = force and lacking and lacking <= self.mapped()  # they answer with mapped vectors
        if lacking and not kept:
            with pytest.raises(GalleryError, match="vector"):
                self.upgrade.finish(force=force, override="because")
            return
        if self.judged != self.tally():  # finish asks the gate itself, if it can
            try:
                self.gate, self.judged = own_gate(self.gallery).verdict, self.tally()
            except EvaluationError:
                with pytest.raises(GalleryError, match="requires a PASS of the gate, which"):
                    self.upgrade.finish(force=force)
        doubtful = self.gate != "PASS" or self.judged != self.tally()
        if doubtful and self.judged == self.tally():
            with pytest.raises(GalleryError, match="expected PASS"):
                self.upgrade.finish(force=force)
        done = self.upgrade.finish(force=force, override="because" if doubtful else None)
        assert done.kept == sum(OLD.fingerprint in has for has in self.items.values())
        assert done.left == len(lacking)
        self._passed("finish", "finished")

    @precondition(lambda self: self.phase == "running")
    @rule(paused=st.booleans())
    def complete(self, paused: bool) -> None:
        """To the end; by single steps a walk gets there rarely."""
        self.run(100)
        if paused:
            self.pause()
        self.finish(force=False)

    @precondition(lambda self: self.phase == "finished")
    @rule()
    def forget(self) -> None:
        before = self.gallery.count().stored
        writable = self.gallery.state.writable()
        dropped = sum(count for space, count in before.items() if space not in writable)
        assert self.upgrade.forget().dropped == dropped
        assert set(self.gallery.count().stored) <= set(writable)
        for has in self.items.values():
            has.discard(OLD.fingerprint)
        self._passed("forget", "none")

    @precondition(lambda self: self.phase != "none")
    @rule(drop=st.booleans())
    def rollback(self, drop: bool) -> None:
        vanished = sum(OLD.fingerprint not in has for has in self.items.values())
        if drop and vanished:
            with pytest.raises(GalleryError, match="would be left without any"):
                self.upgrade.rollback(drop=True)
            drop = False
        assert self.upgrade.rollback(drop=drop).without == vanished
        if self.promised and self.phase in OPEN:
            assert vanished <= self.lost, "the promise is kept"
        if drop:
            for has in self.items.values():
                has.discard(self.new.fingerprint)
        self._passed("rollback", "none")
        self.failed_before = self.gate == "FAIL"
        assert self.gallery.state.live == (OLD.fingerprint,)

    @rule()
    def what_the_phase_forbids_is_refused(self) -> None:
        version = self.gallery.state.version
        allowed = {
            "none": ("start",),
            "mapping": ("start", "traffic", "rollback"),
            "running": ("pause", "resume", "traffic", "finish", "rollback"),  # resume: it runs
            "paused": ("pause", "resume", "traffic", "finish", "rollback"),
            "finished": ("forget", "rollback"),
        }[self.phase]
        steps: dict[str, Callable[[], object]] = {
            "start": lambda: self.upgrade.start(
                self.gallery, to=self.new, mode=self.mode, bridge=self.bridge
            ),
            "pause": self.upgrade.pause,
            "resume": lambda: self.upgrade.resume(override="because"),
            "finish": lambda: self.upgrade.finish(force=True, override="because"),
            "traffic": lambda: self.upgrade.set_traffic(0.5),
            "forget": self.upgrade.forget,
            "rollback": self.upgrade.rollback,
        }
        for name, step in steps.items():
            if name not in allowed:
                with pytest.raises(GalleryError):
                    step()
        if self.gallery.state.target is None:
            with pytest.raises(GalleryError, match="nothing is to be embedded"):
                self.upgrade.run(encoder(self.new), settings=QUICK)
        assert self.gallery.state.version == version, "a refusal changes nothing"

    # ---- what holds after every step

    @invariant()
    def the_record_agrees(self) -> None:
        status = self.upgrade.status()
        assert status.phase == self.phase
        assert status.old + status.new + status.failed == status.all == len(self.items)
        if self.phase == "none":
            assert status.would_vanish is None
            return
        vanish = sum(OLD.fingerprint not in has for has in self.items.values())
        assert (status.would_vanish, status.gate) == (vanish, self.gate)

    @invariant()
    def every_item_with_a_vector_is_found(self) -> None:
        live = set(self.gallery.state.live)
        expected = {name for name, has in self.items.items() if has & live} | self.mapped()
        query: Embeddings | list[Embeddings] = vectors(["q"], self.serving)
        if self.phase in OPEN:
            query = [vectors(["q"], OLD), vectors(["q"], self.new)]
        (found,) = self.gallery.search(query, k=MOST + 5, arm="new")
        assert {hit.id for hit in found} == expected
        if self.phase != "none":
            assert expected == set(self.items), "an upgrade loses nobody"

    @invariant()
    def the_share_of_traffic_decides_who_answers(self) -> None:
        if self.phase not in OPEN:
            return
        query = [vectors(["q"], OLD), vectors(["q"], self.new)]
        for client in ("anna", "bert"):
            way = arm_of(client.encode(), self.share)
            assert self.share not in (0, 1) or way == ("new" if self.share else "old")
            answered = self.gallery.search(query, k=5, client=client)
            assert answered == self.gallery.search(query, k=5, arm=way)


def in_memory(folder: Path) -> str:
    return f"memory:{uuid.uuid4().hex}"


def in_a_file(folder: Path) -> str:
    return str(folder / f"{uuid.uuid4().hex}.midspan")


def in_qdrant_local(folder: Path) -> str:
    return f"qdrant+local://:memory:/s{uuid.uuid4().hex[:12]}?catalogue={folder / 'catalogue.db'}"


def in_milvus(milvus: Milvus) -> Callable[[Path], str]:
    def locate(folder: Path) -> str:
        return f"{milvus.location('s' + uuid.uuid4().hex[:12])}?catalogue={folder / 'c.midspan'}"

    return locate


ANYWHERE = ("pause", "fail", "finish")  # whatever the share of the traffic
STEPS = {
    ("none", "start"),
    ("shadow", "traffic"),
    ("canary", "traffic"),
    ("paused", "resume"),
    ("paused", "finish"),
    ("finished", "forget"),
    *((stage, step) for stage in ("shadow", "canary", "running") for step in ANYWHERE),
    *((stage, "rollback") for stage in ("shadow", "canary", *OPEN, "finished")),
}
MAPPING = {("mapping", "start"), ("mapping", "traffic"), ("mapping", "rollback")}


def machine_for(locate: Callable[[Path], str], mode: str) -> type[UpgradeMachine]:
    made = {"locate": staticmethod(locate), "mode": mode, "seen": set[tuple[str, str]]()}
    return type("Machine", (UpgradeMachine,), made)


def follow_the_script(locate: Callable[[Path], str], mode: str) -> None:
    """Every step of the diagram, with everything that must hold after each."""
    kind = machine_for(locate, mode)
    machine = kind()

    def steps(*calls: Callable[[], object]) -> None:
        for call in calls:
            call()
            machine.the_record_agrees()
            machine.every_item_with_a_vector_is_found()
            machine.the_share_of_traffic_decides_who_answers()

    def start(share: float) -> Callable[[], None]:
        return lambda: machine.start(promised=True, share=share)

    def back() -> None:
        machine.rollback(drop=False)

    try:
        steps(machine.fill, start(0.0), back)
        steps(start(0.0), lambda: machine.traffic(0.5), machine.add_both, back)
        steps(start(0.5), lambda: machine.traffic(1.0), machine.add_old, machine.add_new_only)
        steps(machine.what_the_phase_forbids_is_refused, lambda: machine.run(2), back)
        steps(start(1.0), machine.pause, machine.resume, lambda: machine.judge("FAIL"))
        steps(machine.what_the_phase_forbids_is_refused, back)
        steps(start(1.0), lambda: machine.judge("FAIL"), machine.resume)
        steps(lambda: machine.judge("PASS"), lambda: machine.finish(force=False))
        steps(lambda: machine.complete(paused=True), back)
        for share in (0.0, 0.5):
            steps(start(share), machine.pause, machine.resume, lambda: machine.judge("FAIL"))
            steps(machine.resume, lambda: machine.complete(paused=False))
            steps(machine.what_the_phase_forbids_is_refused, back)
        if mode == "map-gallery":
            stopped = machine.start_that_stops_while_it_maps
            steps(lambda: stopped(0.5), machine.what_the_phase_forbids_is_refused, back)
            steps(lambda: stopped(0.5), lambda: machine.traffic(0.0), machine.start_again, back)
        steps(start(1.0), lambda: machine.complete(paused=False), machine.add_new_only)
        steps(machine.what_the_phase_forbids_is_refused, machine.forget)
        steps(machine.what_the_phase_forbids_is_refused)
    finally:
        machine.teardown()
    wanted = STEPS | (MAPPING if mode == "map-gallery" else set())
    assert kind.seen >= wanted, f"the script makes every step, also {wanted - kind.seen}"


def walk(locate: Callable[[Path], str], mode: str, *, examples: int, length: int) -> None:
    run_state_machine_as_test(
        machine_for(locate, mode),
        settings=settings(
            max_examples=examples,
            stateful_step_count=length,
            deadline=None,
            derandomize=True,
            phases=(Phase.generate,),  # shrinking takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize(
    "mode", ["direct", *(pytest.param(mode, marks=pytest.mark.slow) for mode in MODES[1:])]
)
def test_every_step_of_every_mode_agrees_with_the_model(mode: str) -> None:
    follow_the_script(in_memory, mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["both", "map-gallery"])
@pytest.mark.parametrize("locate", [in_a_file, in_qdrant_local])
def test_every_step_in_a_file_and_in_qdrant_agrees_with_the_model(
    locate: Callable[[Path], str], mode: str
) -> None:
    if locate is in_qdrant_local:
        pytest.importorskip("qdrant_client")
    follow_the_script(locate, mode)


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["direct", "both", "map-gallery"])
def test_every_step_in_postgresql_agrees_with_the_model(postgres: Postgres, mode: str) -> None:
    follow_the_script(lambda _: postgres.location("s" + uuid.uuid4().hex[:12]), mode)


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.milvus
def test_every_step_in_milvus_agrees_with_the_model(milvus: Milvus) -> None:
    follow_the_script(in_milvus(milvus), "both")


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_random_walks_in_memory_agree_with_the_model(mode: str) -> None:
    walk(in_memory, mode, examples=3, length=30)


@pytest.mark.slow
@pytest.mark.parametrize("locate", [in_a_file, in_qdrant_local])
def test_random_walks_in_a_file_and_in_qdrant_agree_with_the_model(
    locate: Callable[[Path], str],
) -> None:
    if locate is in_qdrant_local:
        pytest.importorskip("qdrant_client")
    walk(locate, "both", examples=2, length=20)


@pytest.mark.server
@pytest.mark.slow
def test_random_walks_in_postgresql_agree_with_the_model(postgres: Postgres) -> None:
    walk(lambda _: postgres.location("s" + uuid.uuid4().hex[:12]), "both", examples=2, length=20)


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.milvus
def test_random_walks_in_milvus_agree_with_the_model(milvus: Milvus) -> None:
    walk(in_milvus(milvus), "both", examples=1, length=12)
