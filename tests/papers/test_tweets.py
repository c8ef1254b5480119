"""Tweets: reading, features that are fitted to the training part, and recommendations."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import tenfold
from tenfold import papers
from tenfold.data import load, where
from tenfold.errors import DataError, StoreError
from tenfold.papers.recommender import PAIR_FEATURES, PeopleToFollow
from tenfold.papers.tweets import FOLLOWS, TweetOptions, read_tweets

PEOPLE = 20
TOPICS = ("taxes budget growth jobs", "climate forest river energy")


@pytest.fixture
def tweets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of two parties of ten, who post on their topic, mention and follow their own."""
    folder = tmp_path / "data" / "tweets"
    (folder / "follows").mkdir(parents=True)
    rng = np.random.default_rng(0)
    lines, edges = [], ["follower\tfollowee\tcount"]
    for person in range(PEOPLE):
        party = person % 2
        for _ in range(4):
            words = " ".join(rng.choice(TOPICS[party].split(), 3))
            friend = 2 * int(rng.integers(PEOPLE // 2)) + party
            text = f"{words} @P{friend} https://example.org/x"
            lines.append(json.dumps({"user_id": str(person), "screen_name": f"P{person}", "text": text}))
        edges += [f"{person}\t{other}\t1" for other in range(party, PEOPLE, 2) if other != person]
    with gzip.open(folder / "posts.jsonl.gz", "wt") as file:
        file.write("\n".join(lines))
    (folder / FOLLOWS).write_text("\n".join(edges))
    monkeypatch.setenv("TENFOLD_DATA", str(tmp_path / "data"))
    return folder


def test_a_person_is_a_sample_with_what_is_known_of_each_candidate(tweets: Path) -> None:
    assert where("tweets") == tweets
    splits = load("tweets", options={"least_posts": 4, "dimensions": 3})
    assert (len(splits.train), len(splits.test or ()), splits.outputs) == (16, 4, PEOPLE)
    assert splits.shape == (3 + PAIR_FEATURES * PEOPLE,)
    own = splits.train.x[:, -PEOPLE:]
    assert (own.argmax(1).numpy() == splits.numbers["train"]).all()
    assert splits.fit is None


def test_posts_of_a_person_are_in_one_part(tweets: Path) -> None:
    data = read_tweets(tweets)
    splits = load("tweets", options={"least_posts": 4, "sample": "post", "features": "hashed", "dimensions": 32})
    assert splits.shape == (32,)
    assert splits.groups is not None
    tested = data.author[splits.numbers["test"]]
    assert not set(splits.groups.tolist()) & set(tested.tolist())


def test_words_of_the_test_part_do_not_change_the_features(tweets: Path) -> None:
    options = {"least_posts": 4, "dimensions": 2, "pairs": False}
    before = load("tweets", options=options)
    tested = before.numbers["test"]
    data = read_tweets(tweets)
    names = [data.people[number] for number in data.author]
    changed = [
        json.dumps({"user_id": name[1:], "screen_name": name, "text": text + " unheard" * (number in tested)})
        for name, number, text in zip(names, data.author, data.posts, strict=True)
    ]
    with gzip.open(tweets / "posts.jsonl.gz", "wt") as file:
        file.write("\n".join(changed))
    read_tweets.cache_clear()
    assert torch.allclose(load("tweets", options=options).train.x, before.train.x, atol=1e-4)


def test_a_run_recommends_people(tweets: Path, tmp_path: Path) -> None:
    fields = {"data": "tweets", "data_options": {"least_posts": 4, "dimensions": 3}, "loss": "bce", "runs": tmp_path}
    run = tenfold.train(
        **fields, model="recommender", optimizer="adam", lr=0.05, epochs=20, batch_size=4, metrics=["precision_at_5"]
    )
    assert run.metrics["precision_at_5"] > 0.8
    found = papers.recommend(run, "@p3", top=5)
    assert len(found) == 5
    assert "P3" not in {item.name for item in found}
    assert all(item.followed == (int(item.name[1:]) % 2 == 1) for item in found)
    table = PeopleToFollow(run).table(5)
    assert list(table) == [f"run {run.id}", "random", "most followed", "neighbors by text", "ridge regression"]
    assert table[f"run {run.id}"]["precision_at_5"] >= table["random"]["precision_at_5"]
    with pytest.raises(DataError, match="is called 'nobody'"):
        papers.recommend(run, "nobody")
    other = tenfold.train(model="mlp", data="digits", epochs=1, limit=50, runs=tmp_path)
    with pytest.raises(StoreError, match="tweets"):
        papers.recommend(other, "P3")


def test_what_is_wrong_is_said(tweets: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.options\.words"):
        TweetOptions(words=3)
    (tweets / "more.jsonl").write_text('{"user_id": 1}\n')
    read_tweets.cache_clear()
    with pytest.raises(DataError, match=r"more\.jsonl"):
        load("tweets")
    monkeypatch.setenv("TENFOLD_DATA", str(tmp_path / "empty"))
    monkeypatch.setenv("TENFOLD_CACHE", str(tmp_path / "empty"))
    with pytest.raises(DataError, match="tweets"):
        load("tweets")
