"""Batches are cut whatever mappings and dataclasses hold their tensors."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from dataclasses import InitVar, dataclass, field
from types import MappingProxyType
from typing import Any

import pytest
import torch

from lull._errors import RuntimeRefusal
from lull._torch.batch import anew, batch_size, part, sample_copy, tensors_in, whole

pytestmark = pytest.mark.cpu


class Named(UserDict[str, Any]):
    note = ""


@dataclass(frozen=True)
class Pair:
    x: torch.Tensor
    kind: str = "a"


@dataclass
class Prepared:
    """Made once, by what its maker and its user do to it."""

    x: torch.Tensor
    scale: InitVar[int]
    mask: torch.Tensor = field(init=False)
    late: torch.Tensor = field(init=False)

    def __post_init__(self, scale: int) -> None:
        self.x = self.x * scale
        self.mask = self.x > 4


@dataclass(frozen=True, slots=True)
class Slotted:
    x: torch.Tensor
    y: torch.Tensor


class Batch(dict[str, Any]):
    """As some libraries make them."""

    note = ""


class Uncopied(Batch):
    def __copy__(self) -> Uncopied:
        raise TypeError("one of a kind")


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


def test_what_is_marked_as_whole_is_never_cut_and_gives_no_size() -> None:
    table = torch.arange(6)
    batch = {"table": whole(table), "deep": Pair(whole(table)), "x": torch.arange(4)}
    assert batch_size(batch) == 4
    cut = part(batch, 0, 1, 4)
    assert cut["table"] is table
    assert cut["deep"].x is table
    assert cut["x"].tolist() == [0]
    few = sample_copy(batch, 2, 4)
    assert anew(few)["table"].tolist() == table.tolist()
    assert anew(few)["table"] is not table
    assert len([*tensors_in(few)]) == 3


def test_other_mappings_and_dataclasses_are_cut() -> None:
    assert part(MappingProxyType({"x": torch.arange(6)}), 0, 2, 6)["x"].tolist() == [0, 1]
    pair = sample_copy(Pair(torch.arange(6), "b"), 1, 6)
    assert (pair.x.tolist(), pair.kind) == ([0], "b")


def test_dataclass_without_tensors_passes_as_it_is() -> None:
    settings = Settings()
    assert part((torch.arange(6), settings), 0, 2, 6)[1] is settings


def test_dataclass_keeps_what_came_after_its_making_and_nothing_is_done_again() -> None:
    whole = Prepared(torch.arange(6), scale=2)
    whole.late = torch.arange(6) + 10
    whole.kind = "b"  # type: ignore[attr-defined]
    cut = part(whole, 2, 4, batch_size(whole))
    assert cut.x.tolist() == [4, 6], "scaled once"
    assert cut.mask.tolist() == [False, True]
    assert cut.late.tolist() == [12, 13]
    assert cut.kind == "b"
    assert whole.x.tolist() == [0, 2, 4, 6, 8, 10]
    early = part(Prepared(torch.arange(6), scale=2), 0, 1, 6)
    assert not hasattr(early, "late")
    slotted = part(Slotted(torch.arange(6), torch.arange(6)), 4, 6, 6)
    assert (slotted.x.tolist(), slotted.y.tolist()) == ([4, 5], [4, 5])


@pytest.mark.parametrize("kind", [Batch, Named, OrderedDict])
def test_mapping_keeps_its_type_and_what_else_it_has(kind: Any) -> None:
    whole = kind(x=torch.arange(6), n=3)
    whole.note = "kept"
    cut = part(whole, 2, 4, 6)
    assert type(cut) is kind
    assert (cut["x"].tolist(), cut["n"]) == ([2, 3], 3)
    assert getattr(cut, "note", "kept") == "kept"
    assert len(whole["x"]) == 6


def test_refusals_name_the_type_found() -> None:
    with pytest.raises(RuntimeRefusal, match="dimension 0 in a Settings, want at least one, in tuples, lists, mapp"):
        batch_size(Settings())
    with pytest.raises(RuntimeRefusal, match=r"batch: Uncopied cannot be copied with other values \(TypeError: one of"):
        part(Uncopied(x=torch.arange(6)), 0, 2, 6)
