"""Whole runs with confidences, variations and learners, on scikit-learn's digits."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from midspan.encoders.uncertainty import embed_judged
from midspan.errors import ConfigError, Interrupted
from midspan.training import RunConfig, train
from midspan.training.inputs import loader
from midspan.training.old import read_classifier

URL: dict[str, Any] = {
    "data": {"name": "digits"},
    "encoder": {
        "backbone": "small-cnn",
        "dim": 16,
        "sub_embeddings": 4,
        "confident": True,
        "first_confidence": 16.0,
    },
    "loss": {"name": "universal", "margin": 2.0},
    "variations": {"names": ["blur", "occlusion"]},
    "train": {"epochs": 2, "batch_size": 64, "lr": 3e-3},
}


def changed(**sections: dict[str, Any]) -> RunConfig:
    raw = {name: dict(section) for name, section in URL.items()}
    for name, section in sections.items():
        raw[name] = {**raw.get(name, {}), **section}
    return RunConfig.from_dict(raw)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path / "cache"))


def test_universal_loss_with_variations_learns(tmp_path: Path) -> None:
    result = train(changed(), out=tmp_path / "run", progress=False)
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    terms = {"recognition", "confidence", "variation", "confusion", "observer"}
    assert terms <= lines[0].keys()
    assert lines[-1]["recognition"] < lines[0]["recognition"]
    assert result.scores["self"] > 0.45  # three unseen digits: chance is about 0.33
    images = np.zeros((2, 8, 8, 1), dtype=np.uint8)
    images[1] = 200
    told = embed_judged(result.encoder, images, progress=False).columns["confidence"]
    assert told.shape == (2, 4)
    assert not np.allclose(told, 16.0)  # they have learnt something
    classifier, names = read_classifier(tmp_path / "run")
    assert classifier is not None
    assert len(names) == 7
    lengths = classifier.rows.view(7, 4, 4).norm(dim=2)
    torch.testing.assert_close(lengths, torch.ones(7, 4))
    assert 4 < classifier.scale < 64


def test_stopped_universal_run_continues_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = changed(train={"learners": 2})  # all at once
    whole = train(config, out=tmp_path / "whole", progress=False)
    calls = 0

    def stopping(*given: Any) -> Any:
        load = loader(*given)

        def read(rows: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 30:
                os.kill(os.getpid(), signal.SIGINT)
            return load(rows)

        return read

    with monkeypatch.context() as patch:
        patch.setattr("midspan.training.run.loader", stopping)
        with pytest.raises(Interrupted):
            train(config, out=tmp_path / "run", progress=False)
    resumed = train(config, out=tmp_path / "run", progress=False)
    assert resumed.encoder.fingerprint() == whole.encoder.fingerprint()


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"encoder": {"confident": False}}, "add confident = true"),
        (
            {"loss": {"name": "cosface", "margin": 0.1}},
            "take name = 'universal', or drop confident",
        ),
        ({"variations": {"names": ["fog"]}}, "no variation is called 'fog'"),
        ({"encoder": {"sub_embeddings": 1}}, "even number such as 8"),
        ({"variations": {"wieght": 1.0}}, "no setting 'wieght'"),
    ],
)
def test_confidence_settings_contradicting_the_loss_raise_config_error(
    tmp_path: Path, sections: dict[str, dict[str, Any]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(changed(**sections), out=tmp_path / "run", progress=False)
