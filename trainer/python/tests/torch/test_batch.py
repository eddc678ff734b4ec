"""Batches are cut whatever mappings and dataclasses hold their tensors."""

from __future__ import annotations

from collections import UserDict
from dataclasses import InitVar, dataclass
from types import MappingProxyType
from typing import Any

import pytest
import torch

from lull._errors import RuntimeRefusal
from lull._torch.batch import batch_size, part, sample_copy

pytestmark = pytest.mark.cpu


class Named(UserDict[str, Any]):
    note = ""


@dataclass(frozen=True)
class Pair:
    x: torch.Tensor
    kind: str = "a"


@dataclass
class Odd:
    x: torch.Tensor
    scale: InitVar[int]


@dataclass
class Settings:
    rate: float = 0.5


def test_userdict_is_cut_and_keeps_its_type_and_attributes() -> None:
    whole = Named(x=torch.arange(6), deep={"pair": Pair(torch.arange(6))})
    whole.note = "kept"
    cut = part(whole, 2, 4, batch_size(whole))
    assert isinstance(cut, Named)
    assert cut.note == "kept"
    assert cut["x"].tolist() == [2, 3]
    assert cut["deep"]["pair"].x.tolist() == [2, 3]
    assert len(whole["x"]) == 6


def test_other_mappings_and_dataclasses_are_cut() -> None:
    assert part(MappingProxyType({"x": torch.arange(6)}), 0, 2, 6)["x"].tolist() == [0, 1]
    pair = sample_copy(Pair(torch.arange(6), "b"), 1, 6)
    assert (pair.x.tolist(), pair.kind) == ([0], "b")


def test_dataclass_without_tensors_passes_as_it_is() -> None:
    settings = Settings()
    assert part((torch.arange(6), settings), 0, 2, 6)[1] is settings


def test_refusals_name_the_type_found() -> None:
    with pytest.raises(RuntimeRefusal, match="dimension 0 in a Settings, want at least one, in tuples, lists, mapp"):
        batch_size(Settings())
    with pytest.raises(RuntimeRefusal, match=r"batch: Odd cannot be made again .*want a dataclass that"):
        part(Odd(torch.arange(6), scale=2), 0, 2, 6)
