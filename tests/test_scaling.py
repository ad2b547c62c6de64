"""Many GPUs against ZeRO's table, Megatron's formulas and published scaling."""

from __future__ import annotations

import dataclasses
import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calc import collectives, scaling
from calc.catalog import gpus, published
from calc.errors import ScenarioError
from calc.evaluation import evaluate
from calc.scaling import Layout, ModelShape, Offload, Strategy, Workload, memory, step_time
from calc.scaling.published import comparison

GB = 10**9
SHAPE = ModelShape(gathered_bytes=15 * GB, gradient_bytes=15 * GB, block_share=1 / 40)
WORK = Workload(
    forward_seconds=0.1,
    backward_seconds=0.2,
    optimizer_seconds=0.02,
    accumulation_steps=4,
    gradient_bytes=15 * GB,
    gathered_bytes=15 * GB,
    layers=32,
    layer_bytes=2**26,
    key_value_bytes=2**25,
    routed_bytes=2**27,
    routed_layers=16,
)
FABRIC = collectives.read_fabric("nvlink-4+infiniband-ndr-x8")


class TestMemory:
    @pytest.mark.parametrize(
        ("strategy", "gigabytes"),
        [("ddp", 120), ("zero1", 31.40625), ("zero2", 16.640625), ("zero3", 1.875), ("fsdp", 1.875)],
    )
    def test_zeros_table_of_7_5_billion_on_64(self, strategy: str, gigabytes: float) -> None:
        # Rajbhandari et al. 2019, arXiv:1910.02054, figure 1: 2 + 2 + 12 bytes a parameter.
        shares = memory.division(Layout(strategy=Strategy(strategy), data=64), SHAPE)
        held = 15 * shares.weights + 15 * shares.gradients + 90 * shares.optimizer_state
        assert held == pytest.approx(gigabytes)

    @pytest.mark.parametrize(("ranks", "bytes_each"), [(8, 7.5), (64, 6.1875)])
    def test_megatrons_distributed_optimizer(self, ranks: int, bytes_each: float) -> None:
        # bf16 weights 2 + fp32 main gradients 4, and 12 bytes of master weights and moments divided.
        shares = memory.division(Layout(strategy=Strategy.ZERO1, data=ranks), SHAPE)
        held = 2 * shares.weights + 4 * shares.gradients + 12 * shares.optimizer_state
        assert held == pytest.approx(bytes_each)

    @pytest.mark.parametrize(
        ("tensor", "sequence_parallel", "units"), [(1, False, 34), (8, False, 13), (8, True, 4.25), (2, False, 22)]
    )
    def test_korthikantis_units_of_sbh(self, tensor: int, sequence_parallel: bool, units: float) -> None:  # noqa: FBT001
        assert 34 * memory.activation_share(tensor, sequence_parallel=sequence_parallel) == pytest.approx(units)

    def test_the_pipelines_first_stage_holds_the_whole_models_worth(self) -> None:
        assert memory.pipeline_activation_share(8, 32) == 1
        assert memory.pipeline_activation_share(8, 2) == pytest.approx(0.25)

    def test_one_gpu_is_left_as_it_is(self) -> None:
        for strategy in Strategy:
            shares = memory.division(Layout(strategy=strategy), SHAPE)
            assert set(dataclasses.astuple(shares)) == {0, 1}
            assert shares.gathered_bytes == shares.bucket_bytes == 0

    def test_ddp_holds_the_gradients_twice(self) -> None:
        # torch, DistributedDataParallel: views of the buckets would save "the total gradients size".
        assert memory.division(Layout(data=8), SHAPE).bucket_bytes == 15 * GB

    def test_fsdp_gathers_two_blocks_and_the_root_and_drops_the_casts(self) -> None:
        shape = ModelShape(gathered_bytes=10 * GB, gradient_bytes=10 * GB, block_share=0.05, root_share=0.2)
        shares = memory.division(Layout(strategy=Strategy.FSDP, data=8), shape)
        assert shares.casts == 0
        assert shares.gathered_bytes == 3 * GB
        assert shares.bucket_bytes == 2 * GB

    def test_experts_are_spread_over_their_group(self) -> None:
        shape = dataclasses.replace(SHAPE, expert_share=0.8)
        shares = memory.division(Layout(data=8, expert=8), shape)
        assert shares.weights == pytest.approx(0.2 + 0.8 / 8)

    def test_offload_empties_the_gpu(self) -> None:
        only_state = memory.division(Layout(data=8, cpu_offload=Offload.OPTIMIZER), SHAPE)
        assert only_state.optimizer_state == only_state.step_temporaries == 0
        assert only_state.weights == 1
        everything = memory.division(Layout(strategy=Strategy.ZERO3, data=8, cpu_offload=Offload.ALL), SHAPE)
        assert everything.weights == everything.gradients == 0

    def test_llama_3_1_8b_in_eight_stages(self) -> None:
        # Of 8.03 billion parameters 4 blocks of 218.1 million, and the embedding or the head: 128,256 x 4,096.
        total, block, embedding = 8.030e9, 218.1e6, 525.3e6
        shape = dataclasses.replace(
            SHAPE, block_share=block / total, root_share=1 - 32 * block / total, end_share=embedding / total
        )
        shares = memory.division(Layout(pipeline=8), shape)
        assert shares.weights * total == pytest.approx(4 * block + embedding, rel=0.001)

    def test_megatrons_way_of_dividing(self) -> None:
        shares = memory.division(Layout(tensor=8, pipeline=4, context=2, sequence_parallel=True), SHAPE)
        assert shares.weights == pytest.approx(1 / 32)
        assert shares.activations == pytest.approx(1 / 16)
        assert shares.logits_and_loss == pytest.approx(1 / 16)

    @pytest.mark.property
    @given(
        st.sampled_from(list(Strategy)),
        st.sampled_from([1, 2, 4, 8]),
        st.sampled_from([1, 2, 4]),
        st.sampled_from([1, 2, 4]),
    )
    def test_more_replicas_never_hold_more(self, strategy: Strategy, tensor: int, pipeline: int, context: int) -> None:
        held = [
            dataclasses.astuple(
                memory.division(
                    Layout(strategy=strategy, data=data, tensor=tensor, pipeline=pipeline, context=context), SHAPE
                )
            )
            for data in (2, 4, 8, 16)
        ]
        for fewer, more in itertools.pairwise(held):
            assert all(a >= b for a, b in zip(fewer, more, strict=True))


class TestLayout:
    def test_what_is_left_over_becomes_replicas(self) -> None:
        layout = scaling.read_layout({"strategy": "zero1", "tensor": 8, "pipeline": 4}, 128)
        assert (layout.data, layout.gpus) == (4, 128)

    @pytest.mark.parametrize(
        ("parallelism", "field"),
        [
            ({"tensor": 3}, "parallelism"),
            ({"tensor": 0}, "parallelism.tensor"),
            ({"pipeline": 2.5}, "parallelism.pipeline"),
            ({"strategy": "zero4"}, "parallelism.strategy"),
            ({"cpu_offload": "disk"}, "parallelism.cpu_offload"),
            ({"expert": 3}, "parallelism.expert"),
        ],
    )
    def test_impossible_layouts_name_their_field(self, parallelism: dict[str, object], field: str) -> None:
        with pytest.raises(ScenarioError) as caught:
            scaling.read_layout(parallelism, 8)
        assert caught.value.field == field


class TestStepTime:
    def test_bubble(self) -> None:
        assert step_time.bubble_share(8, 32) == 0.21875

    def test_llama_3_405b_on_sixteen_stages(self) -> None:
        # 126 layers, so that the last of 16 stages has one less than the others' 8 (arXiv:2407.21783, section 3.3.2).
        head = 128_256 * 16_384 / 405e9
        work = dataclasses.replace(WORK, layers=126, head_share=head)
        assert step_time.slowest_stage_share(work, 16) == pytest.approx(8 / 126 * (1 - head))

    def test_a_small_models_head_is_as_long_as_layers(self) -> None:
        # Llama 3.1 8B: the head has 7 % of the operations; five layers on a stage, not four, are the best of eight.
        work = dataclasses.replace(WORK, layers=32, head_share=0.07)
        assert step_time.slowest_stage_share(work, 8) == pytest.approx(5 / 32 * 0.93)
        assert step_time.slowest_stage_share(work, 1) == 1

    def test_exposed_communication_by_a_simulated_stream(self) -> None:
        for work, pieces, each in ((1.0, 10, 0.01), (1.0, 10, 0.3), (0.2, 1, 0.5), (0.0, 4, 0.1)):
            finished = 0.0
            for piece in range(pieces):
                ready = work * (piece + 1) / pieces
                finished = max(finished, ready) + each
            assert step_time.exposed_seconds(work, pieces, each) == pytest.approx(finished - work)

    def test_one_gpu_has_no_overhead(self) -> None:
        parts = scaling.step_parts(WORK, Layout(), FABRIC, 1, host_bytes_per_second=24e9)
        assert parts.seconds == pytest.approx(4 * 0.3 + 0.02)
        assert scaling.speed_up(WORK, Layout(), parts) == pytest.approx(1)

    def test_the_parts_add_up_to_less_than_linear(self) -> None:
        for strategy in Strategy:
            layout = Layout(strategy=strategy, data=64)
            parts = scaling.step_parts(WORK, layout, FABRIC, 8, host_bytes_per_second=24e9)
            assert 0 < scaling.speed_up(WORK, layout, parts) < 64 * 1.01

    def test_slow_links_show(self) -> None:
        slow = collectives.read_fabric("pcie-3+ethernet-10g")
        layout = Layout(data=16)
        fast_parts = scaling.step_parts(WORK, layout, FABRIC, 2, host_bytes_per_second=24e9)
        slow_parts = scaling.step_parts(WORK, layout, slow, 2, host_bytes_per_second=24e9)
        # 2 x 15/16 x 15 GB over 0.94 GB/s is half a minute.
        assert slow_parts.exposed_communication_seconds == pytest.approx(29.8, rel=0.03)
        assert fast_parts.exposed_communication_seconds < 0.1

    def test_tensor_ranks_on_the_same_node_share_its_adapters(self) -> None:
        # 8 tensor ranks a node: each of the 8 data-parallel groups has one adapter of the eight.
        layout = Layout(strategy=Strategy.ZERO1, data=8, tensor=8)
        parts = scaling.step_parts(WORK, layout, FABRIC, 8, host_bytes_per_second=24e9)
        gather = collectives.all_gather_seconds(FABRIC.shared_by(8), 8, 8, 15 * GB / 8)
        assert parts.exposed_communication_seconds > gather
        assert gather == pytest.approx(7 / 8 * 15 * GB / 8 / 47e9, rel=0.01)

    def test_every_kind_of_parallelism_costs_communication(self) -> None:
        for layout in (
            Layout(tensor=8),
            Layout(context=8),
            Layout(data=8, expert=8),
            Layout(pipeline=8),
        ):
            parts = scaling.step_parts(WORK, layout, FABRIC, 1, host_bytes_per_second=24e9)
            assert parts.exposed_communication_seconds > 0
            assert (parts.bubble_seconds > 0) == (layout.pipeline > 1)

    def test_offload_passes_the_bus(self) -> None:
        layout = Layout(strategy=Strategy.ZERO2, data=8, cpu_offload=Offload.OPTIMIZER)
        seconds = step_time.offload_seconds(layout, WORK, 4, host_bytes_per_second=24e9, whole_update_seconds=8.0)
        # Each host updates the parts of its four GPUs: half of the model.
        assert seconds == pytest.approx(30 * GB / 8 / 24e9 + 4.0)

    def test_a_host_is_reached_at_three_quarters_of_its_link(self) -> None:
        # nvbandwidth's host_to_device_memcpy_ce on an A100 with PCIe 4; PCIe 3, 4 and 5 double from one to the next.
        three, four, five = (scaling.host_bytes_per_second(gpus.pcie_bytes_per_second(n, 16)) for n in (3, 4, 5))
        assert four == pytest.approx(24.8e9, rel=0.05)
        assert (three, five) == (four / 2, 2 * four)
        assert scaling.host_bytes_per_second(None) == four

    def test_offloading_over_pcie_3_takes_twice_as_long(self) -> None:
        def moved_seconds(card: str) -> float:
            given = {"model": "gpt2", "gpu": card, "parallelism": {"cpu_offload": "optimizer"}, "precision": "fp16"}
            result = evaluate({**given, "micro_batch": 1})
            update = scaling.host_optimizer_seconds(result["parameters"])
            return float(result["scaling"]["parts"]["offload_seconds"] - update)

        assert moved_seconds("v100-sxm-16gb") == pytest.approx(2 * moved_seconds("a100-sxm-40gb"), rel=1e-6)

    def test_an_update_on_the_host_lies_between_the_reports(self) -> None:
        assert 0.77 < scaling.host_optimizer_seconds(1e9) < 2.98

    def test_accumulation_averages_out_delays(self) -> None:
        shares = [step_time.unmodelled_share(steps) for steps in (1, 4, 16, 256)]
        assert shares[0] == pytest.approx(0.085)
        assert shares[1] == pytest.approx(0.0425)
        assert shares[-1] == 0.02


class TestScale:
    def test_a_report_holds_strategies_and_gpus(self) -> None:
        found = scaling.scale(
            WORK,
            layout=Layout(strategy=Strategy.FSDP, data=16),
            interconnect="nvlink-4+infiniband-ndr-x8",
            nodes=2,
            micro_batch=3,
            host_bytes_per_second=24e9,
        )
        assert found["samples_per_second"] == pytest.approx(3 * 4 * 16 / found["step_seconds"])
        assert found["efficiency_low"] < found["efficiency"] < found["efficiency_high"] <= 1
        rows = {row["strategy"]: row["step_seconds"] for row in found["by_strategy"]}
        assert rows["fsdp"] == found["step_seconds"]
        own = next(row for row in found["by_gpus"] if row["gpus"] == 16)
        assert own["step_seconds"] == pytest.approx(found["step_seconds"])
        assert own["nodes"] == 2

    def test_nodes_must_divide(self) -> None:
        with pytest.raises(ScenarioError, match="nodes"):
            scaling.scale(
                WORK,
                layout=Layout(data=6),
                interconnect="pcie-4",
                nodes=4,
                micro_batch=1,
                host_bytes_per_second=24e9,
            )


class TestPublished:
    def test_median_error_of_the_published_table(self) -> None:
        errors = [abs(row["error_points"]) for row in comparison() if row["predicted"] is not None]
        assert len(errors) == 135
        assert statistics.median(errors) < 5

    def test_rows_without_a_prediction_say_why(self) -> None:
        for row in comparison():
            assert (row["predicted"] is None) == ("skipped" in row)

    def test_megatrons_fixed_batch_is_the_bubble(self) -> None:
        row = next(r for r in comparison() if r["workload"].startswith("GPT-3 175B PTD-P") and r["gpus"] == 1536)
        assert row["predicted"] == pytest.approx(0.9216, abs=0.01)

    def test_mfu_rows_name_their_source(self) -> None:
        for row in published.training_speeds():
            assert row["source"]
            assert 0 < row.get("mfu_percent", row.get("mfu_percent_low", 0)) < 70
