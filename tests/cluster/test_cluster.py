import pytest
from looped import looped

from tenfold.cluster import LINKS, Cluster, Link, StepTime
from tenfold.cluster import cluster as described
from tenfold.cluster.cluster import cluster_of
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment

EXAMPLE = "\n".join(line[4:] for line in described.__doc__.splitlines() if line.startswith("    "))


@pytest.fixture
def example(tmp_path):
    path = tmp_path / "edge.toml"
    path.write_text(EXAMPLE)
    return Cluster.load(path)


class TestLinks:
    def test_a_link_by_its_numbers(self):
        own = Link(latency=1e-3, bandwidth=1e6)
        for given in (own, {"latency": 1e-3, "bandwidth": 1e6}):
            assert Cluster.of(2, given).groups[0].link == own

    def test_what_carries_more_costs_less_a_byte(self):
        order = ["lte", "wifi", "1gbe", "10gbe", "25gbe", "100gbe", "infiniband", "nvlink"]
        assert sorted(order, key=lambda name: -LINKS[name].per_byte) == order


class TestFiles:
    def test_the_example_of_the_docstring(self, example):
        assert [group.name for group in example.groups] == ["rack", "phones"]
        assert example.workers == 20
        assert example.groups[1].link == LINKS["wifi"]
        assert example.between[0].link == Link(latency=0.01, bandwidth=5e6)
        assert example.between[0].shared

    def test_what_is_saved_loads_again(self, example, tmp_path):
        path = tmp_path / "again.toml"
        example.save(path)
        assert Cluster.load(path) == example
        assert 'link = "10gbe"' in path.read_text()

    @looped(
        ("text", "sentence"),
        [
            ("", "groups: is missing"),
            ("groups = []", "groups = []: "),
            ("[[groups]]\ncount = 0", "greater"),
            (
                "[[groups]]\n[[groups]]\nname = 'b'\ncout = 3",
                "count",
            ),
            ("grops = 3\n[[groups]]", "groups"),
            ("[[groups]]\nlink = '10gb'", "10gbe"),
            ("[[groups]]\nlink = 10", "10gbe"),
            ("[[groups]]\nlink = {latency = 1e-3}", "groups[1].link.bandwidth: is missing"),
            ("[[groups]]\nlink = {latency = -1.0, bandwidth = 1.0}", "groups[1].link.latency = -1.0: should be"),
            ("[[groups]]\nlink = {latency = 1e-3, bandwith = 3.0}", "bandwidth"),
            ("[[groups]]\n[[groups]]", "nodes"),
            ("[[groups]]\n[[between]]\ngroups = ['nodes', 'node']\nlink = 'lte'", "between: unknown group 'node'"),
            (
                "[[groups]]\n" + "[[between]]\ngroups = ['nodes', 'nodes']\nlink = 'lte'\n" * 2,
                "connect",
            ),
            ("[[groups]]\n[stragglers]\ntransient = -1.0", "stragglers.transient"),
            ("[[groups]]\n[stragglers]\nnoise = 'normal'", "log-normal"),
            ("[[groups]]\n[stragglers]\nnoise = 'shifted-exponential'\ntransient = 1.5", "at most 1"),
            ("[[groups]]\nspeed = nan", "groups[1].speed"),
            ("[[groups", "is not valid TOML"),
        ],
    )
    def test_a_bad_file_is_answered_with_a_sentence(self, text, sentence, tmp_path):
        path = tmp_path / "bad.toml"
        path.write_text(text)
        with pytest.raises(ExperimentError) as error:
            Cluster.load(path)
        assert sentence in str(error.value)
        assert str(error.value).startswith(str(path))


class TestPlacing:
    def test_workers_fill_node_after_node(self, example):
        assert example.placed(20) == [16, 4]
        assert example.placed(3) == [3, 0]
        wiring = example.wiring(18)
        assert wiring.node.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 9]
        assert wiring.node_group.tolist() == [0] * 16 + [1] * 2

    def test_too_many_are_refused(self, example):
        with pytest.raises(ExperimentError, match="phones"):
            example.placed(21)


class TestStepTimes:
    def test_speed_and_crowded_cores_change_the_time_of_a_step(self):
        group = {"count": 2, "workers": 4, "cores": 8, "threads": 4, "speed": 0.5}
        (first, *_) = Cluster(groups=[group]).step_times(8, StepTime(mean=1.0, fixed=0.25))
        assert first.mean == 1.0 * 2 / 0.5
        assert first.fixed == 1.0

    def test_a_node_is_crowded_by_the_workers_that_it_runs_not_by_those_that_it_could_run(self):
        group = {"count": 2, "workers": 8, "cores": 4}
        times = Cluster(groups=[group]).step_times(10, StepTime(mean=1.0))
        assert [seconds.mean for seconds in times] == [2.0] * 8 + [1.0] * 2
        assert Cluster(groups=[group]).slowdown(4) == 1.0
        assert Cluster(groups=[group]).slowdown(8) == 2.0

    def test_the_paper_s_computer_gains_nothing_from_more_workers_than_cores(self):
        cluster = cluster_of(Experiment(cluster="dsmp-c1", workers=8))
        assert sum(1 / step_time.mean for step_time in cluster.step_times(8, StepTime(mean=1.0))) == 4

    def test_by_hand_needs_no_profile(self):
        hardware = Cluster.of(3, step_seconds=0.2).hardware(3)
        assert [step_time.mean for step_time in hardware.step_times(3)] == [0.2] * 3
        assert not hardware.calibrated
        assert Cluster.of(3).hardware(3, StepTime(mean=1.0)).calibrated

    def test_groups_can_have_profiles_of_their_own(self, example):
        times = example.step_times(20, {"rack": StepTime(mean=1.0), "phones": StepTime(mean=2.0)})
        assert times[0].mean == 1.0
        assert times[-1].mean == pytest.approx(20.0)

    def test_without_either_it_says_what_is_missing(self):
        with pytest.raises(ExperimentError, match="nodes"):
            Cluster.of(2).step_times(2)

    def test_stragglers_add_to_what_was_measured(self, example):
        first = example.step_times(1, StepTime(mean=1.0, between_workers=0.12, between_steps=0.0))[0]
        assert first.between_workers == pytest.approx(0.13)
        assert first.between_steps == pytest.approx(0.1)

    @pytest.mark.parametrize("noise", ["log-normal", "shifted-exponential"])
    def test_they_add_up_to_no_more_than_the_noise_takes(self, noise):
        stragglers = {"noise": noise, "persistent": 1.0, "transient": 1.0}
        uneven = StepTime(mean=1.0, between_workers=0.1, between_steps=0.1)
        (first,) = Cluster.of(1, stragglers=stragglers).step_times(1, uneven)
        most = 1.0 if noise == "shifted-exponential" else pytest.approx(1.01**0.5)
        assert first.between_workers == first.between_steps == most
