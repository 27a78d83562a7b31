"""The events are those of the design, and importing them brings in no framework."""

import inspect
import subprocess
import sys

from hookline_hookspecs import PHASES

EVENTS = {
    "run": "on_new_training_run restore_training_run on_training_complete on_training_failed",
    "training": "pre_training on_epoch_start on_train_phase_start pre_training_step on_mb_end post_training_step "
    "on_train_phase_end on_epoch_end post_training",
    "rollout": "on_worker_start on_rollout_start on_turn_end on_rollout_end on_weights_updated on_curriculum_update "
    "on_worker_lost on_worker_restarted on_worker_stop",
    "validation": "pre_validation pre_validation_step post_validation_step post_validation",
    "evaluation": "on_evaluation_start evaluate_policy on_evaluation_end on_replay_saved",
    "rewards": "pre_rewards score_episodes verify_episodes post_rewards on_episodes_filtered",
    "checkpoint": "save_plugin_state load_plugin_state on_checkpoint_saved on_checkpoint_restored",
    "metrics": "register_sinks collect_metrics log_metrics",
    "setup": "register_tasks register_losses register_environments register_engines register_sources register_commands",
}
SIGNATURES = {
    "on_new_training_run": "state",
    "restore_training_run": "state",
    "on_training_failed": "state error",
    "post_training_step": "state report_data",
    "on_rollout_end": "context rollout",
    "on_turn_end": "context episode turn",
    "on_weights_updated": "context version",
    "on_curriculum_update": "context changes",
    "on_evaluation_end": "state scores",
    "on_episodes_filtered": "batch accepted rejected",
    "log_metrics": "report_data step",
}
KINDS = {
    "decide": {"restore_training_run", "evaluate_policy"},
    "collect": {"score_episodes", "verify_episodes", "save_plugin_state", "collect_metrics", "register_sinks"}
    | {"register_tasks", "register_losses", "register_environments", "register_engines"}
    | {"register_sources", "register_commands"},
}


def declared() -> dict[str, dict[str, object]]:
    return {
        phase.__name__.rpartition(".")[2]: {
            name: function for name, function in vars(phase).items() if hasattr(function, "hookline_spec")
        }
        for phase in PHASES
    }


def test_each_phase_declares_its_events_in_order() -> None:
    assert {phase: " ".join(events) for phase, events in declared().items()} == EVENTS


def test_the_arguments_that_others_rely_on_are_there() -> None:
    events = {name: function for phase in declared().values() for name, function in phase.items()}
    for name, arguments in SIGNATURES.items():
        assert " ".join(inspect.signature(events[name]).parameters) == arguments


def test_every_event_declares_kind_clock_and_scope() -> None:
    for events in declared().values():
        for name, function in events.items():
            options = function.hookline_spec
            kind = next((kind for kind, names in KINDS.items() if name in names), "notify")
            assert options["kind"] == kind, name
            assert options["clock"] in ("step", "epoch", "rollout", "none"), name
            assert options["scope"] in ("driver", "every_rank", "worker"), name


def test_a_phase_names_its_events_as_its_public_api() -> None:
    for phase in PHASES:
        assert sorted(phase.__all__) == sorted(declared()[phase.__name__.rpartition(".")[2]])


def test_importing_the_hookspecs_imports_no_framework_and_no_numpy() -> None:
    code = "import sys, hookline_hookspecs; print(*(m for m in ('torch','jax','mlx','numpy','pydantic','rich') if m in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
