"""A loss that does not separate over samples is refused before anything is trained on it."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn.functional import cross_entropy, mse_loss, normalize

import lull
from lull._errors import RuntimeRefusal
from lull._torch.separable import Asked, _stretched, ask, check_separable, lengths, places, tolerance, unlike

pytestmark = pytest.mark.cpu


def setting() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 5))
    labels = torch.tensor([[1, 2, -100, -100], [3, -100, -100, -100], [0, 1, 2, 3], [4, 4, -100, -100]])
    return model, torch.randn(4, 4, 6), labels


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_mean_and_sum_over_samples_pass_and_modes_come_back(reduction: str) -> None:
    model, x, _ = setting()

    def loss(b: torch.Tensor) -> torch.Tensor:
        return mse_loss(model(b), b[..., :5], reduction=reduction)

    check_separable(model, loss, x, 4, reduction, None)
    assert all(module.training for module in model.modules())


def test_sum_called_a_mean_is_refused_with_what_to_pass() -> None:
    model, x, _ = setting()
    with pytest.raises(RuntimeRefusal, match=r"4 samples have the loss .* want .* reduction='mean'.*pass weights="):
        check_separable(model, lambda b: mse_loss(model(b), b[..., :5], reduction="sum"), x, 4, "mean", None)


def token_mean(model: torch.nn.Module, b: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return cross_entropy(model(b[0]).flatten(0, 1), b[1].flatten(), ignore_index=-100)


def test_mean_over_tokens_needs_weights() -> None:
    model, x, labels = setting()
    with pytest.raises(RuntimeRefusal, match="pass weights="):
        check_separable(model, lambda b: token_mean(model, b), (x, labels), 4, "mean", None)
    counts = (labels != -100).sum(1)
    check_separable(model, lambda b: token_mean(model, b), (x, labels), 4, "mean", counts)


def test_sample_that_has_no_loss_alone_is_refused_unless_its_weight_is_zero() -> None:
    model, x, labels = setting()
    labels[1] = -100
    with pytest.raises(RuntimeRefusal, match="one alone has none"):
        check_separable(model, lambda b: token_mean(model, b), (x, labels), 4, "mean", None)
    counts = (labels != -100).sum(1)
    assert counts[1] == 0
    check_separable(model, lambda b: token_mean(model, b), (x, labels), 4, "mean", counts)


def test_loss_that_compares_samples_is_refused() -> None:
    model, x, _ = setting()

    def contrastive(b: torch.Tensor) -> torch.Tensor:
        z = normalize(model(b).mean(1), dim=-1)
        return cross_entropy(z @ z.T, torch.arange(len(b)))

    with pytest.raises(RuntimeRefusal, match="nothing was trained"):
        check_separable(model, contrastive, x, 4, "mean", None)


def test_loss_that_holds_a_gradient_is_asked_with_gradients() -> None:
    model, x, y = setting()

    def loss(b: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        inputs = b[0].clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
        return slope.square().sum(1).mean()

    check_separable(model, loss, (x, y), len(x), "mean", None)
    with pytest.raises(RuntimeRefusal, match=r"what reduction='sum' makes"):
        check_separable(model, loss, (x, y), len(x), "sum", None)


def test_batch_that_is_sorted_is_asked_from_first_to_last() -> None:
    model, _, _ = setting()
    x, labels = torch.randn(16, 4, 6), torch.ones(16, 4, dtype=torch.long)
    for i in range(4, 16):
        labels[i, 4 - i // 4 :] = -100  # the first four are of full length
    with pytest.raises(RuntimeRefusal, match="pass weights="):
        check_separable(model, lambda b: token_mean(model, b), (x, labels), 16, "mean", None)
    check_separable(model, lambda b: token_mean(model, b), (x, labels), 16, "mean", (labels != -100).sum(1))
    by_class = torch.arange(16) // 4  # the first four are of one class

    def weighted(b: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return cross_entropy(model(b[0]).mean(1), b[1], weight=torch.tensor([1.0, 5.0, 0.2, 2.0, 1.0]))

    with pytest.raises(RuntimeRefusal, match="pass weights="):
        check_separable(model, weighted, (x, by_class), 16, "mean", None)


@pytest.mark.parametrize(
    ("size", "asked"), [(1, (0,)), (2, (0, 1)), (4, (0, 1, 2, 3)), (5, (0, 1, 2, 4)), (16, (0, 5, 10, 15))]
)
def test_places_are_spread_from_the_first_to_the_last(size: int, asked: tuple[int, ...]) -> None:
    assert places(size) == asked


def test_one_sample_says_nothing() -> None:
    model, x, _ = setting()
    check_separable(model, lambda b: mse_loss(model(b), b[..., :5], reduction="sum"), x[:1], 1, "mean", None)


def untrained() -> torch.nn.Module:
    """A language model as it is made: whatever the sample, its loss is that of guessing."""
    torch.manual_seed(3)
    head = torch.nn.Linear(16, 50, bias=False)
    torch.nn.init.normal_(head.weight, std=0.01)
    return torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.LayerNorm(16), head)


def padded(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, 50, (len(lengths), 12), generator=torch.Generator().manual_seed(4))
    return tokens, torch.where(torch.arange(12) < torch.tensor(lengths)[:, None], tokens, -100)


@pytest.mark.parametrize("long", [1, 2, 5, 11])
def test_model_that_says_the_same_of_every_sample_hides_no_wrong_reduction(long: int) -> None:
    model, batch = untrained(), padded([12, long, 12, 12])
    asked = ask(model, lambda b: token_mean(model, b), batch, 4)
    assert asked is not None
    assert asked.alike(None, tolerance(model))
    assert asked.off("mean", None) < 2 * tolerance(model), "it is nearly right by its value"
    with pytest.raises(RuntimeRefusal, match="pass weights="):
        check_separable(model, lambda b: token_mean(model, b), batch, 4, "mean", None)
    counts = (batch[1] != -100).sum(1)
    check_separable(model, lambda b: token_mean(model, b), batch, 4, "mean", counts)


def test_narrow_weights_are_asked_again_when_they_are_larger() -> None:
    """Rounding to 16 bits hides a wrong reduction where samples have like losses."""
    model, batch = untrained().bfloat16(), padded([12, 1, 12, 2])
    before = [p.detach().clone() for p in model.parameters()]
    versions = [p._version for p in model.parameters()]

    def loss(b: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return cross_entropy(model(b[0]).float().flatten(0, 1), b[1].flatten(), ignore_index=-100)

    said = r"with all weights times 4, since .* alike .*pass weights=|pass weights="
    with pytest.raises(RuntimeRefusal, match=said):
        check_separable(model, loss, batch, 4, "mean", None)
    check_separable(model, loss, batch, 4, "mean", (batch[1] != -100).sum(1))
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert [p._version for p in model.parameters()] == versions, "a graph that the user holds stays good"


def test_rounding_that_copies_show_is_allowed_for() -> None:
    asked = Asked([1.0, 2.0], 1.5, (0, 1), copies=1.0)
    assert asked.limit("mean", 1e-3) == pytest.approx(1e-5)
    assert Asked([1.0, 2.0], 1.5, (0, 1), copies=1.00001).limit("mean", 1e-3) == pytest.approx(3e-4, rel=0.01)
    assert Asked([1.0, 2.0], 1.5, (0, 1), copies=1.1).limit("mean", 1e-3) == 1e-3
    assert Asked([1.0, 2.0], 3.0, (0, 1), copies=2.0).limit("sum", 1e-3) == pytest.approx(1e-5)
    assert Asked([1.0, 2.0], 1.5, (0, 1)).limit("mean", 1e-3) == 1e-3, "where copies have no loss"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_have_the_same_bits_after_they_were_larger(dtype: torch.dtype) -> None:
    least, most = torch.finfo(dtype).smallest_normal, torch.finfo(dtype).max / 8
    values = torch.tensor([0.0, -0.0, least, least / 8, -least / 4, 1 / 3, -most, most], dtype=dtype)
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(values.clone())
    bits = {2: torch.int16, 4: torch.int32}[values.element_size()]
    with _stretched(model) as done:
        assert done
        assert not torch.equal(model.weight, values)
    assert torch.equal(model.weight.data.view(bits), values.view(bits))
    with torch.no_grad():
        model.weight[0] = torch.finfo(dtype).max / 2
    with _stretched(model) as done:
        assert not done, "what would overflow is left alone"
    assert model.weight[0] == torch.finfo(dtype).max / 2


def test_model_that_fails_with_larger_weights_is_let_through_as_it_is() -> None:
    model, batch = untrained(), padded([12, 12, 12, 12])
    largest = max(float(p.detach().abs().max()) for p in model.parameters())

    def loss(b: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if max(float(p.detach().abs().max()) for p in model.parameters()) > largest:
            raise ValueError("weights have exploded")
        return token_mean(model, b)

    check_separable(model, loss, batch, 4, "mean", None)
    assert max(float(p.detach().abs().max()) for p in model.parameters()) == largest


def test_short_and_long_samples_are_the_ones_that_are_asked() -> None:
    counts = [12] * 40
    counts[17], counts[23] = 3, 11
    _, labels = padded(counts)
    assert lengths((torch.randn(40, 5), labels), 40) == counts
    assert unlike(counts) == (0, 17, 39)
    mask = (labels != -100).long()
    assert lengths({"input_ids": labels.clamp(min=0), "attention_mask": mask}, 40) == counts
    assert lengths({"mask": mask.bool()}, 40) == counts
    assert lengths({"mask": mask[:, :3], "ids": labels[:, :3]}, 40) is None, "as many for all"
    assert lengths((torch.randn(40, 5), torch.arange(40)), 40) is None, "labels of whole samples"


def test_padding_that_comes_in_a_later_batch_is_asked_about_then() -> None:
    model = untrained()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        elastic = lull.attach(model, optimizer, budget="64MiB", socket="")
    try:
        for _ in range(2):
            elastic.backward(padded([12] * 8), lambda b: token_mean(model, b))
            optimizer.zero_grad()
        with pytest.raises(RuntimeRefusal, match="pass weights="):
            elastic.backward(padded([12] * 7 + [2]), lambda b: token_mean(model, b))
        assert all(p.grad is None for p in model.parameters())
        batch = padded([12] * 7 + [2])
        elastic.backward(batch, lambda b: token_mean(model, b), weights=(batch[1] != -100).sum(1))
    finally:
        elastic.close()


def test_attached_job_refuses_at_its_first_batch_and_leaves_no_trace() -> None:
    model, x, _ = setting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        elastic = lull.attach(model, optimizer, budget="64MiB", socket="")
    try:
        for _ in range(2):  # a script that caught the first is not let through at the second
            with pytest.raises(RuntimeRefusal, match="pass weights="):
                elastic.backward(x, lambda b: mse_loss(model(b), b[..., :5], reduction="sum"))
        assert all(p.grad is None or not p.grad.any() for p in model.parameters())
        assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
        assert torch.equal(state, torch.get_rng_state())
    finally:
        elastic.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trusted = lull.attach(model, optimizer, budget="64MiB", socket="", partition="trusted")
    try:
        trusted.backward(x, lambda b: mse_loss(model(b), b[..., :5], reduction="sum"))
    finally:
        trusted.close()


def test_partition_is_one_of_two_words() -> None:
    model, _, _ = setting()
    with pytest.raises(RuntimeRefusal, match="attach partition: got 'maybe', want checked or trusted"):
        lull.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), partition="maybe")
