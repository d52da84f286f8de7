"""What a hosted model is: the fields of a model spec, and what can be told of its folder before vLLM starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from mosaic_queues.errors import ConfigurationError

ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""What an agent may call a model after `vllm:`; it is a part of a queue's name."""

_OURS = {
    "model": "model",
    "tokenizer_revision": "revision",
    "revision": "revision",
    "dtype": "dtype",
    "tensor_parallel_size": "tensor_parallel",
    "max_model_len": "max_length",
    "gpu_memory_utilization": "memory_gb",
    "kv_cache_memory_bytes": "kv_memory_gb",
    "quantization": "quantization",
    "enable_lora": "adapters",
    "device_ids": "gpus",
    "max_num_seqs": "max_running",
}
"""Engine arguments that a field of the spec sets."""
YAML_ENDS = (".yaml", ".yml")


class ModelSpec(BaseModel):
    """A model that a GPU worker hosts.

    Attributes:
        alias: what agents call it: `vllm:ALIAS`. Default: the last part of `model`.
        model: path of a model folder, or a model's name.
        revision: of a model that is given by name.
        dtype: of weights and activations; `auto`: as stored, `float32` on a processor without a GPU.
        tensor_parallel: over how many GPUs the weights are spread.
        max_length: most tokens of prompt and answer together; default: what the model can.
        memory_gb: of one GPU, for weights and KV cache together, in GiB; default: nine tenths of it.
        kv_memory_gb: for the KV cache alone, in GiB; goes before `memory_gb`.
        quantization: method, where the model's files do not say it.
        adapters: LoRA adapters by the name that agents use: paths of their folders.
        gpus: indices of the GPUs that this model uses; default: the first ones.
        max_running: most requests that run at once, however much memory is free.
        options: further arguments of vLLM's `AsyncEngineArgs`, by their names.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    alias: str = ""
    model: str = Field(min_length=1)
    revision: str | None = None
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    tensor_parallel: int = Field(1, ge=1)
    max_length: int | None = Field(None, ge=1)
    memory_gb: float | None = Field(None, gt=0)
    kv_memory_gb: float | None = Field(None, gt=0)
    quantization: str | None = None
    adapters: dict[str, Path] = {}
    gpus: tuple[int, ...] = ()
    max_running: int | None = Field(None, ge=1)
    options: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _named(cls, fields: Any) -> Any:
        if not isinstance(fields, dict) or fields.get("alias") or not isinstance(fields.get("model"), str):
            return fields
        last = fields["model"].rstrip("/").rpartition("/")[2]
        return fields | {"alias": re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._")}

    @field_validator("alias")
    @classmethod
    def _usable_alias(cls, alias: str) -> str:
        if not ALIAS.fullmatch(alias):
            raise ValueError(f"{alias!r} is no alias; use letters, digits, '.', '_' and '-'")
        return alias

    @field_validator("options")
    @classmethod
    def _not_ours(cls, options: dict[str, Any]) -> dict[str, Any]:
        for name in options:
            if ours := _OURS.get(name):
                raise ValueError(f"{name!r} is set by the field {ours!r} of the spec; write it there")
        return options

    @model_validator(mode="after")
    def _enough_gpus(self) -> ModelSpec:
        if len(set(self.gpus)) != len(self.gpus):
            raise ValueError(f"gpus {list(self.gpus)} names one twice")
        if self.gpus and len(self.gpus) != self.tensor_parallel:
            raise ValueError(
                f"tensor_parallel {self.tensor_parallel} needs as many gpus, but {list(self.gpus)} are named"
            )
        return self

    @property
    def folder(self) -> Path | None:
        """Where the model lies, or None for one that is given by name."""
        return Path(self.model).expanduser() if is_path(self.model) else None

    @classmethod
    def read(cls, source: str, *, options: Mapping[str, Any] | None = None) -> ModelSpec:
        """The spec in a YAML file, or that of a model folder or name with nothing else set.

        Args:
            source: path of a YAML file, path of a model folder, or a model's name.
            options: engine arguments on top of those of the file.

        Raises:
            ConfigurationError: the file, or what it says, is of no use.
        """
        fields: dict[str, Any] = _fields(Path(source)) if source.endswith(YAML_ENDS) else {"model": source}
        if options:
            fields = fields | {"options": {**(fields.get("options") or {}), **options}}
        return cls._of(fields, source)

    @classmethod
    def of_pool(cls, fields: Mapping[str, Any]) -> ModelSpec:
        """The spec of a model of the model pool.

        Raises:
            ConfigurationError: the pool says what is of no use.
        """
        return cls._of(fields, f"{fields['alias']} of the model pool")

    @classmethod
    def _of(cls, fields: Mapping[str, Any], source: str) -> ModelSpec:
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise ConfigurationError(_told(error, source)) from None


def is_path(model: str) -> bool:
    """Whether `model` is meant as a path: it begins like one, has more than one slash, or is there, or its first
    folder is."""
    begins = ("/", "./", "../", "~")
    first = model.partition("/")[0]
    return model.startswith(begins) or model.count("/") > 1 or Path(model).is_dir() or Path(first).is_dir()


def option(text: str) -> tuple[str, Any]:
    """The name and the value of `name=value`, the value read as YAML: `block_size=32`.

    Raises:
        ConfigurationError: `text` is not of that form.
    """
    name, equals, value = text.partition("=")
    if not (name.strip() and equals):
        raise ConfigurationError(f"the engine option {text!r} is not of the form name=value")
    try:
        return name.strip().replace("-", "_"), yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"the value of the engine option {text!r} cannot be read: {error}") from None


def check_options(options: Mapping[str, Any], known: frozenset[str]) -> None:
    """Refuses an engine argument that vLLM does not have.

    Raises:
        ConfigurationError: names the nearest that there is.
    """
    for name in sorted(options.keys() - known):
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "see AsyncEngineArgs in vLLM's documentation"
        raise ConfigurationError(f"vLLM has no engine argument {name!r}; {hint}")


def _fields(path: Path) -> dict[str, Any]:
    try:
        fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"the model spec {str(path)!r} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the model spec {str(path)!r} is not YAML: {error}") from None
    if not isinstance(fields, dict):
        raise ConfigurationError(
            f"the model spec {str(path)!r} holds no fields; write at least 'model: <path or name>'"
        )
    return fields


def _told(error: ValidationError, source: str) -> str:
    """All that is wrong with a spec, a line each; an unknown field with the nearest known one."""
    lines = []
    for problem in error.errors():
        field = ".".join(str(step) for step in problem["loc"])
        said = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            near = get_close_matches(field, ModelSpec.model_fields, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "an engine argument belongs under 'options'"
            said = f"there is no such field; {hint}"
        lines.append(
            f"model spec {source!r}, field {field!r}: {said}" if field else f"model spec {source!r}: {said}"
        )
    return "\n".join(lines)
