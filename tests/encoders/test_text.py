"""Text queries, with models that are made here from tiny configs: nothing is downloaded."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image

from midspan.cli import main
from midspan.client import Client
from midspan.data.decode import Pixels
from midspan.encoders import Encoder, build_encoder, export_onnx, load_embedder, load_encoder
from midspan.encoders.backbones.huggingface import _import_transformers
from midspan.errors import ConfigError, EncoderError, ItemError
from midspan.gallery import Gallery
from midspan.service.app import create_app
from midspan.service.auth import Tokens
from midspan.service.resources import Resources
from midspan.service.search_service import SearchService
from midspan.service.settings import GallerySettings
from tests.service.shop import LOCAL, QUICK

pytest.importorskip("transformers")
transformers = _import_transformers()

WORDS = ["<pad>", "<s>", "</s>", "<unk>", "a", "red", "green", "blue", "bird", "car"]
TEXTS = ["a red bird", "blue car", "a green car"]
TOWER = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
TOWER = {**TOWER, "num_attention_heads": 2}
VISION = {**TOWER, "image_size": 16, "patch_size": 8}
TEXT = {
    **TOWER,
    "vocab_size": len(WORDS),
    "max_position_embeddings": 12,
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}


def save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = Tokenizer(models.WordLevel({w: n for n, w in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **names)
    made.save_pretrained(folder)


def save_model(kind: str, folder: Path) -> Path:
    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()
    if kind == "clip":
        config = transformers.CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=8)
        model = transformers.CLIPModel(config)
    else:
        config = transformers.SiglipConfig(text_config=TEXT, vision_config=VISION)
        model = transformers.SiglipModel(config)
    with torch.no_grad():
        for tensor in model.parameters():  # as they start, all texts are nearly the same
            tensor.add_(0.2 * torch.randn(tensor.shape))
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model("clip", tmp_path_factory.mktemp("models") / "clip")


@pytest.fixture(scope="module")
def siglip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model("siglip", tmp_path_factory.mktemp("models") / "siglip")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, pixels in enumerate(some_images(12)):
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    return folder


def some_images(count: int) -> Pixels:
    return np.random.default_rng(0).integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)


def load_torch(where: str | Path) -> Encoder:
    encoder = load_encoder(where, device="cpu")
    assert isinstance(encoder, Encoder)
    return encoder


def own_text(folder: Path, texts: list[str], **padding: Any) -> Any:
    """What transformers says of each text, of length 1."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt", **padding)["input_ids"]
        with torch.no_grad():
            made = model.get_text_features(input_ids=ids)
        rows.append(getattr(made, "pooler_output", made)[0].numpy())
    return np.array([row / np.linalg.norm(row) for row in rows])


def test_embed_text_clip_equals_transformers(clip: Path) -> None:
    encoder = load_encoder(f"hf:{clip}?output=projected", device="cpu")
    assert encoder.takes_text
    assert (encoder.name, encoder.dim) == ("clip", 8)
    made = encoder.embed_text(TEXTS)
    assert made.space == encoder.space
    assert made.ids.tolist() == TEXTS
    np.testing.assert_allclose(made.vectors, own_text(clip, TEXTS), atol=1e-5)
    images = some_images(3)
    model = transformers.AutoModel.from_pretrained(clip).eval()
    with torch.no_grad():
        raw = model.get_image_features(pixel_values=encoder.preprocessing.tensor(images))
    raw = getattr(raw, "pooler_output", raw).numpy()
    expected = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    result = encoder.embed(images, progress=False)
    np.testing.assert_allclose(result.vectors, expected, atol=1e-5)
    assert encoder.embed_text(["blue car", "blue car"]).ids.tolist() == ["0", "1"]


def test_embed_text_siglip_is_padded_to_the_trained_length(siglip: Path) -> None:
    encoder = load_encoder(f"hf:{siglip}", device="cpu")
    assert encoder.takes_text
    expected = own_text(siglip, TEXTS, padding="max_length", max_length=12)
    np.testing.assert_allclose(encoder.embed_text(TEXTS).vectors, expected, atol=1e-5)


def test_embed_text_invalid_texts_raise(clip: Path) -> None:
    encoder = load_encoder(f"hf:{clip}?output=projected", device="cpu")
    for texts in ([], [" "], ["a bird", ""]):
        with pytest.raises(EncoderError, match="expected texts"):
            encoder.embed_text(texts)
    with pytest.raises(EncoderError, match="12 tokens at most, got one of 22"):
        encoder.embed_text(["a bird " * 10])


def test_embed_text_without_a_shared_space_raises_with_the_reason(
    clip: Path, tmp_path: Path
) -> None:
    target = f"hf:{clip}?output=projected"
    plain = load_encoder(f"hf:{clip}", device="cpu")
    small = build_encoder(backbone="small-cnn", dim=8, name="small")
    headed = build_encoder(backbone=target, dim=8, seed=0)
    saved = load_torch(load_torch(target).save(tmp_path / "saved"))
    graph = load_encoder(export_onnx(saved, tmp_path / "saved.onnx"), device="cpu")
    for encoder, why in (
        (plain, r"'pooled' features.*hf:<model>\?output=projected"),
        (small, "encoder 'small' takes images, no text; a model of transformers"),
        (headed, "its head 'linear' leads out of the space"),
        (saved, "saved, which keeps the image tower alone"),
        (graph, "a graph has the image tower alone"),
    ):
        assert not encoder.takes_text
        with pytest.raises(EncoderError, match=why):
            encoder.embed_text(["a bird"])
    images = some_images(2)
    same = load_encoder(target, device="cpu").embed(images, progress=False)
    np.testing.assert_allclose(saved.embed(images, progress=False).vectors, same.vectors, atol=1e-6)
    with pytest.raises(ConfigError, match="got 'projecte'"):
        load_encoder(f"hf:{clip}?output=projecte")


def test_embed_text_after_further_training_raises(clip: Path) -> None:
    encoder = load_torch(f"hf:{clip}?output=projected")
    encoder.embed_text(["a bird"])
    with torch.no_grad():
        for tensor in encoder.parameters():
            tensor.add_(0.05 * torch.randn_like(tensor))
    with pytest.raises(EncoderError, match="trained further"):
        encoder.embed_text(["a bird"])


def test_embed_text_missing_tokenizer_or_folder_raises(clip: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(clip, copy)
    for file in copy.glob("token*"):
        file.unlink()
    encoder = load_encoder(f"hf:{copy}?output=projected", device="cpu")
    assert not encoder.takes_text
    with pytest.raises(EncoderError, match="'copy' takes images, no text: no tokenizer"):
        encoder.embed_text(["a bird"])
    (copy / "tokenizer.json").write_text("{}")
    with pytest.raises(EncoderError, match="tokenizer cannot be loaded") as caught:
        encoder.embed_text(["a bird"])
    assert str(tmp_path) not in str(caught.value)
    shutil.rmtree(copy)
    with pytest.raises(EncoderError, match=r"the folder of its model, .* is gone"):
        encoder.embed_text(["a bird"])


def test_embed_text_cached_graph_uses_its_model(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path / "cache"))
    target = f"hf:{clip}?output=projected"
    first = load_embedder(target, device="cpu", now=True)
    first.embed(some_images(12), progress=False)
    second = load_embedder(target, device="cpu")
    assert type(second).__name__ == "OnnxEncoder"
    assert first.takes_text
    assert second.takes_text
    expected = own_text(clip, TEXTS)
    for one in (first, second):
        np.testing.assert_allclose(one.embed_text(TEXTS).vectors, expected, atol=1e-5)


def filled(clip: Path, pictures: Path, place: Path) -> tuple[str, list[str]]:
    """The encoder's name, and the ids in the order of their nearness to TEXTS[0]."""
    target = f"hf:{clip}?output=projected"
    encoder = load_encoder(target, device="cpu")
    items = encoder.embed(pictures, progress=False)
    with Gallery.create(place, items.space) as gallery:
        gallery.add(items)
    scores = items.vectors @ own_text(clip, TEXTS[:1])[0]
    return target, items.ids[np.argsort(-scores)].tolist()


def test_gallery_search_text_finds_the_nearest_image(
    clip: Path,
    pictures: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = tmp_path / "shop.midspan"
    target, nearest = filled(clip, pictures, place)

    def run(*words: object) -> tuple[int, str, str]:
        argv = ["midspan", "gallery", "search", str(place), *map(str, words)]
        monkeypatch.setattr(sys, "argv", argv)
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    code, out, err = run("--text", TEXTS[0], "--encoder", target, "-k", 4, "--json")
    assert code == 0, err
    assert [hit["id"] for hit in json.loads(out)["results"][0]] == nearest[:4]
    code, _, err = run("--text", TEXTS[0])
    assert code != 0
    assert "--text needs --encoder" in err
    code, _, err = run("--text", TEXTS[0], "--encoder", f"hf:{clip}")
    assert code != 0
    assert "no text" in err
    code, _, err = run("--text", TEXTS[0], "--image", pictures / "00.png", "--encoder", target)
    assert code != 0
    assert "expected either --vectors" in err


def service(place: Path, encoder: str) -> TestClient:
    settings = GallerySettings(gallery=str(place), encoder=encoder, runtime="torch")
    service = SearchService.open(settings, resources=Resources(QUICK))
    return TestClient(create_app(service, tokens=Tokens({})), base_url=LOCAL)


def test_service_search_text_finds_the_nearest_image(
    clip: Path, pictures: Path, tmp_path: Path
) -> None:
    place = tmp_path / "shop.midspan"
    target, nearest = filled(clip, pictures, place)
    with service(place, target) as http:
        answer = http.post("/v1/search", json={"text": TEXTS[0], "k": 4})
        assert answer.status_code == 200, answer.text
        assert [hit["id"] for hit in answer.json()["results"]] == nearest[:4]
        for body in ({"text": "a bird", "id": nearest[0]}, {"text": ""}, {"text": "bird " * 40}):
            assert http.post("/v1/search", json=body).status_code == 422, body
        schema = http.get("/openapi.json").json()["components"]["schemas"]["AnySearch"]
        assert "text" in schema["properties"]


def test_service_search_text_without_a_text_tower_answers_422(
    pictures: Path, tmp_path: Path
) -> None:
    folder = build_encoder(backbone="small-cnn", dim=8, name="small").save(tmp_path / "small")
    items = load_encoder(folder, device="cpu").embed(pictures, progress=False)
    with Gallery.create(tmp_path / "shop.midspan", items.space) as gallery:
        gallery.add(items)
    with service(tmp_path / "shop.midspan", str(folder)) as http:
        answer = http.post("/v1/search", json={"text": "a bird"})
    assert answer.status_code == 422
    assert "encoder 'small' takes images, no text" in answer.json()["error"]["message"]


def test_client_search_text_and_id_together_raises() -> None:
    with Client("http://127.0.0.1:9") as client, pytest.raises(ItemError, match="text="):
        client.search(text="a bird", id="1")
