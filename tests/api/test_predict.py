"""The model of a run, used on other samples and data."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result
from PIL import Image
from sklearn.datasets import load_digits
from torch.utils.data import BatchSampler, DataLoader, SubsetRandomSampler, TensorDataset, default_collate
from typer.testing import CliRunner

import tenfold
from tenfold.cli import app
from tenfold.errors import DataError
from tenfold.runs import Run

DIGITS = load_digits()


class TwoInputs(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(5, 2)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([left, right], 1))


class NextToken(torch.nn.Module):
    """Returns (logits, loss), as language models do that take their labels."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = torch.nn.Embedding(7, 4), torch.nn.Linear(4, 7)

    def forward(
        self, tokens: torch.Tensor, labels: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        logits = self.last(self.embedding(tokens))
        return logits, None if labels is None else torch.nn.functional.cross_entropy(logits.mT, labels)


def tenfold_(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    fields = {"model": "mlp", "data": "digits", "epochs": 3, "seed": 1}
    return tenfold.train(runs=folder, **fields)


@pytest.fixture
def regression(folder: Path) -> Run:
    x = torch.arange(40.0).reshape(20, 2) / 40
    return tenfold.train(model="mlp", data=(x, x.sum(1)), epochs=1, hidden=(4,), runs=folder)


def test_samples_of_another_length_than_the_first_one_of_training(tmp_path: Path) -> None:
    def collate(samples: list[tuple[list[int], int]]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(item) for item, _ in samples], batch_first=True)
        return {"tokens": tokens, "mask": tokens > 0}, torch.tensor([label for _, label in samples])

    class Words(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(9, 2)

        def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return (self.words(tokens) * mask[..., None]).sum(1)

    samples = [([1 + i % 7] * (2 + i % 4), i % 2) for i in range(40)]
    run = tenfold.train(model=Words, data=samples, collate=collate, epochs=1, runs=tmp_path)
    assert run.evaluate(samples[2:]).keys() == {"loss", "accuracy"}
    long = torch.ones(3, 9, dtype=torch.int64)
    assert len(run.predict({"tokens": long, "mask": long > 0})) == 3
    with pytest.raises(DataError, match="in the same form as in training"):
        run.predict({"tokens": long[0], "mask": long[0] > 0})


class TestPredicting:
    def test_pixels_as_the_files_hold_them_are_scaled_as_in_training(self, run: Run) -> None:
        raw = DIGITS.images  # floats, but whole numbers from 0 to 16
        predicted = run.predict(raw)
        assert predicted.dtype == np.int64
        assert (predicted == DIGITS.target).mean() > 0.85
        assert (run.predict(raw.astype(np.uint8)) == predicted).all()
        assert (run.predict(DIGITS.data) == predicted).all()  # flat rows

    def test_scaled_inputs_are_taken_as_they_are_and_a_tensor_gives_a_tensor(self, run: Run) -> None:
        raw = torch.from_numpy(DIGITS.images).float()
        scaled = ((raw - raw.mean()) / raw.std()).unsqueeze(1)
        predicted = run.predict(scaled)
        assert isinstance(predicted, torch.Tensor)
        assert (predicted.numpy() == run.predict(DIGITS.images)).all()
        shares = run.predict_proba(scaled)
        assert shares.shape == (1797, 10)
        torch.testing.assert_close(shares.sum(1), torch.ones(1797))
        assert (shares.argmax(1) == predicted).all()

    def test_numbers_are_predicted_as_numbers(self, regression: Run) -> None:
        assert regression.predict(np.zeros((3, 2), np.float32)).shape == (3,)
        with pytest.raises(tenfold.TenfoldError, match="probabilities"):
            regression.predict_proba(np.zeros((3, 2), np.float32))

    def test_several_inputs_come_as_in_training(self, folder: Path) -> None:
        data = {"left": torch.randn(40, 3), "right": torch.randn(40, 2), "label": torch.arange(40) % 2}
        run = tenfold.train(model=TwoInputs, data={"train": data}, epochs=1, runs=folder)
        x = {"left": data["left"].numpy(), "right": data["right"].numpy()}
        assert run.predict(x).shape == (40,)
        with pytest.raises(tenfold.TenfoldError, match="inputs"):
            run.predict(x | {"right": x["left"]})

    @pytest.mark.parametrize("given", ["dict", "tuple"])
    def test_labels_that_the_network_took_in_training_are_not_needed(self, folder: Path, given: str) -> None:
        tokens = torch.arange(200).reshape(40, 5) % 7
        labels = (tokens + 1) % 7
        inputs = {"tokens": tokens, "labels": labels} if given == "dict" else (tokens, labels)
        run = tenfold.train(model=NextToken(), data=(inputs, labels), loss="network", epochs=1, runs=folder)
        expected = run.model(tokens)[0].argmax(-1)
        forms = [{"tokens": tokens}, inputs] if given == "dict" else [tokens, (tokens,), inputs]
        for x in [*forms, (inputs, labels)]:
            assert torch.equal(run.predict(x), expected)
        with pytest.raises(DataError, match="takes"):
            run.predict({"labels": labels} if given == "dict" else (labels[:, :2],))

    def test_the_data_of_training_are_taken_as_they_are(self, folder: Path) -> None:
        x, y = torch.randn(40, 3), torch.arange(40) % 2
        run = tenfold.train(model="mlp", data=(x, y), epochs=1, runs=folder)
        expected = run.predict(x)
        samples = list(zip(x, y, strict=True))
        for form in ((x, y), TensorDataset(x, y), DataLoader(TensorDataset(x, y), shuffle=True), samples):
            assert torch.equal(run.predict(form), expected)
        assert np.array_equal(run.predict((x.numpy(), y.numpy())), expected.numpy())
        with pytest.raises(DataError, match="takes samples of shape"):
            run.predict(TensorDataset(x[:, :2], y))
        columns = {"left": x, "right": x[:, :2], "label": y}
        run = tenfold.train(model=TwoInputs, data=columns, epochs=1, runs=folder)
        assert torch.equal(run.predict(columns), run.predict({"left": x, "right": x[:, :2]}))

    @pytest.mark.parametrize(
        ("x", "sentence"),
        [
            (np.zeros((2, 9, 9)), r"x has shape \(2, 9, 9\).* should have shape \(n, 1, 8, 8\)"),
            (np.zeros((8, 8)), r"a single sample is given as x\[None\]"),
            (np.zeros((0, 8, 8)), "x is empty"),
            (np.full((1, 8, 8), np.nan), "NaN"),
            (np.array(["a"]), "x is of type <U1; it should be numbers"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, run: Run, x: np.ndarray, sentence: str) -> None:
        with pytest.raises(tenfold.TenfoldError, match=sentence):
            run.predict(x)


class TestEvaluating:
    def test_by_default_the_numbers_are_those_of_the_run(self, run: Run, folder: Path) -> None:
        again = tenfold.open_run(run.id, runs=folder)
        assert again.evaluate() == pytest.approx(run.metrics, rel=1e-4)
        assert again.evaluate(part="train")["loss"] < again.evaluate()["loss"]
        assert set(again.evaluate(metrics=["f1_macro"])) == {"loss", "f1_macro"}

    def test_other_data_without_parts_are_used_whole(self, run: Run) -> None:
        raw = torch.from_numpy(DIGITS.images).float().unsqueeze(1)
        x = (raw - raw.mean()) / raw.std()
        right = (run.predict(x).numpy() == DIGITS.target).mean()
        assert run.evaluate((x, DIGITS.target))["accuracy"] == pytest.approx(right)

    def test_a_data_loader_is_what_it_reads(self, run: Run) -> None:
        x = torch.from_numpy(DIGITS.images[:100]).float().unsqueeze(1)
        samples = TensorDataset(x, torch.from_numpy(DIGITS.target[:100]))
        measured = run.evaluate(DataLoader(samples, batch_size=7, shuffle=True))
        assert measured == pytest.approx(run.evaluate(samples))
        assert run.evaluate({"train": DataLoader(samples), "test": DataLoader(samples)}) == pytest.approx(measured)
        own = DataLoader(samples, collate_fn=lambda batch: default_collate(batch))
        with pytest.raises(tenfold.TenfoldError, match="functions"):
            run.evaluate((own, DataLoader(samples)))
        assert run.evaluate((own, own)) == pytest.approx(measured)
        some = SubsetRandomSampler([1, 2])
        for loader in (
            DataLoader(samples, sampler=some),
            DataLoader(samples, batch_sampler=BatchSampler(some, 2, drop_last=False)),
        ):
            with pytest.raises(tenfold.TenfoldError, match="SubsetRandomSampler"):
                run.evaluate(loader)

    def test_what_does_not_fit_is_refused(self, run: Run, regression: Run, folder: Path) -> None:
        images = np.zeros((4, 1, 8, 8), np.float32)
        for data, part, sentence in (
            (None, "validation", "the data have no validation part; they have train, test"),
            (None, "tset", "unknown part 'tset'; did you mean 'test'"),
            ((images[..., :4], np.arange(4)), None, r"the samples have shape \(1, 8, 4\)"),
            ((images, np.array([0, 1, 2, 12])), None, "the label 12; .* 0 to 9"),
            ((images, np.ones(4, np.float32)), None, "the targets are numbers, .* trained to predict classes"),
        ):
            with pytest.raises(tenfold.TenfoldError, match=sentence):
                run.evaluate(data, part=part)
        with pytest.raises(tenfold.TenfoldError, match="objects"):
            tenfold.open_run(regression.id, runs=folder).evaluate()


class TestVerbs:
    def test_predict_reads_files_of_three_kinds(self, run: Run, folder: Path, tmp_path: Path) -> None:
        images = DIGITS.images[:5]
        np.save(tmp_path / "x.npy", images)
        np.savez(tmp_path / "x.npz", x=images, y=DIGITS.target[:5])
        header = ",".join(f"pixel {i}" for i in range(64))
        np.savetxt(tmp_path / "x.csv", DIGITS.data[:5], delimiter=",", header=header, comments="")
        told = [
            tenfold_("predict", str(run.id), str(path), "--runs", str(folder)).stdout for path in tmp_path.iterdir()
        ]
        assert told[0] == told[1] == told[2]
        rows = list(csv.DictReader(io.StringIO(told[0])))
        assert [int(row["class"]) for row in rows] == run.predict(images).tolist()
        labels, shares = tmp_path / "labels.csv", tmp_path / "shares.npy"
        assert (
            "5 predictions are in"
            in tenfold_(
                "predict", str(run.id), str(tmp_path / "x.npy"), "-o", str(labels), "--runs", str(folder)
            ).stdout
        )
        assert labels.read_text() == told[0]
        words = ("--probabilities", "-o", str(shares), "--runs", str(folder))
        tenfold_("predict", str(run.id), str(tmp_path / "x.npy"), *words)
        assert np.load(shares).shape == (5, 10)

    def test_a_table_is_read_by_the_names_of_its_columns(self, folder: Path, tmp_path: Path) -> None:
        rows = [f"{i % 7},{('red', 'blue')[i % 2]},{('no', 'yes')[i % 2]}" for i in range(60)]
        (tmp_path / "train.csv").write_text("\n".join(["size,color,ripe", *rows]))
        run = tenfold.train(
            model="mlp", data=str(tmp_path / "train.csv"), target_column="ripe", epochs=40, lr=0.05, runs=folder
        )
        (tmp_path / "new.csv").write_text("id,color,size\n1,blue,3\n2,red,3\n")
        said = tenfold_("predict", str(run.id), str(tmp_path / "new.csv"), "--runs", str(folder))
        assert said.stdout == "sample,class\n0,yes\n1,no\n", said.stderr
        (tmp_path / "new.csv").write_text("id,color\n1,blue\n2,red\n")
        refused = tenfold_("predict", str(run.id), str(tmp_path / "new.csv"), "--runs", str(folder))
        assert "has no column 'size', which the model was trained on" in refused.stderr

    def test_other_tables_have_the_categories_and_classes_of_the_one_trained_on(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        rows = [f"{i % 7},{('01', '02', 'x')[i % 3]},{('no', 'yes')[i % 3 > 0]}" for i in range(60)]
        Path("train.csv").write_text("\n".join(["size,code,ripe", *rows]))
        fields = {"target_column": "ripe", "epochs": 40, "lr": 0.05, "standardize": False, "runs": folder}
        run = tenfold.train(model="mlp", data="train.csv", **fields)
        Path("new.csv").write_text("size,code,ripe\n3,01,no\n4,01,no\n")  # one class, and codes that are all numbers
        assert run.predict({"size": ["3", "4"], "code": ["01", "02"]}).tolist() == [0, 1]
        assert run.evaluate("new.csv") == {"loss": pytest.approx(0, abs=0.3), "accuracy": 1.0}
        Path("new.csv").write_text("size,code,ripe\n3,03,no\n4,01,no\n")
        with pytest.warns(UserWarning, match="code"):
            run.evaluate("new.csv")
        for content, message in (
            ("size,code,ripe\n3,01,maybe\n", "'ripe' holds 'maybe', which the model was not trained on.* no, yes"),
            ("size,code,ripe\n,01,yes\n", "some inputs are missing"),
            ("size,code,ripe\nbig,01,yes\n", "the column 'size' holds text; it should hold numbers"),
            ("size,ripe\n1,yes\n", "the table has no column 'code', which the model was trained on"),
        ):
            Path("new.csv").write_text(content)
            with pytest.raises(tenfold.TenfoldError, match=message):
                run.evaluate("new.csv")

    def test_images_keep_the_names_of_their_classes(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for name, shade in (("pets/cat", 10), ("pets/dog", 240), ("more/dog", 240), ("wild/wolf", 240)):
            Path(name).mkdir(parents=True)
            for number in range(8):
                Image.new("L", (6, 6), shade).save(Path(name) / f"{number}.png")
        run = tenfold.train(model="mlp", data="pets", data_options={"size": 4}, epochs=30, lr=0.05, runs=folder)
        assert run.evaluate("more")["accuracy"] == 1.0  # of the classes trained on, dog is the second
        monkeypatch.setenv("HOME", str(tmp_path))
        assert run.evaluate("~/more")["accuracy"] == 1.0
        with pytest.raises(tenfold.TenfoldError, match="wolf"):
            run.evaluate("wild")
        Path("more/dog/0.png").rename("more/a.png")
        said = tenfold_("predict", str(run.id), "more", "--runs", str(folder))
        assert said.stdout.splitlines()[:3] == ["sample,class", "a.png,dog", "dog/1.png,dog"], said.stderr
        said = tenfold_("predict", str(run.id), "pets/cat/1.png", "--runs", str(folder))
        assert said.stdout.splitlines() == ["sample,class", "1.png,cat"], said.stderr
