"""The candidates of the search for a composition: a method, and what differs from the scenario's settings."""

from typing import Any

from schedule_free import ScheduleFree

from asyncmanifold import PARTS


def at(method: str, *rates: float, label: str = "", **settings: Any) -> dict[str, tuple[str, dict[str, str]]]:
    """Return a candidate for every rate."""
    others = {key: str(value) for key, value in settings.items()}
    label = label or method
    return {f"{label} {rate:g}": (method, {"global_lr": f"{rate:g}", **others}) for rate in rates}


LOCAL_RATE = "times_local_lr"
"""A factor of the scenario's local learning rate; no key of a configuration."""
PULL, END_PULL = "distilled_by", "taught_by"
"""How far curves and end points are pulled towards what the global model says (distilled_curves.py)."""
CHORD = {"interior_start": "chord"}
TRAJECTORY = {"interior_start": "trajectory"}
LINEAR = {"rate_schedule": "cyclic", "cycle_length": "{updates}"}  # one cycle: down to a tenth at the end
QUICK, SLOW, QUICKER, QUICKEST = ({LOCAL_RATE: factor} for factor in (2, 0.5, 4, 8))
DISTILLED, HALF_DISTILLED = ({PULL: share} for share in (1, 0.5))
TAUGHT = {END_PULL: 0.5}
SHORT = {"point_epochs": 1, "curve_epochs": 1}  # the local work of plain steps
THREEFOLD = {LOCAL_RATE: 3}  # on images what Shakespeare's scenario has
NIMBLE = {"optimizer": '{{name = "Adam", betas = [0.9, 0.98], fused = true}}'}  # forgets sooner
WARM = {"warm_up": 0.3}  # of a job's steps
PARTS["server_optimizer"]["schedule-free"] = ScheduleFree
SMOOTH = {"server_optimizer": '{{name = "schedule-free"}}'}
HALF_SMOOTH = {"server_optimizer": '{{name = "schedule-free", interpolation = 0.5}}'}
CAPPED = {"decay": 1, "highest": 1}  # the penalty shortens steps and lengthens none
SETTLING = {**QUICK, "local_schedule": "linear"}  # within every job, down to 0

CANDIDATES = {
    **at("asyncsgd", 2, 3),
    **at("fedasync", 3, 5),
    **at("fedortho", 2, 3, 4),
    **at("fedortho", 3, 4, label="linear-fedortho", **LINEAR),
    **at("dcasgd", 2, 3),
    **at("asyncsgd", 5, label="decaying", rate_schedule="decaying", decay_period=32),
    **at("dcasgd", 3, 4, label="linear-dcasgd", **LINEAR),
    **at("asyncsgd", 3, 4, label="linear", **LINEAR),
    **at("ace", 0.25, 0.5),
    **at("fedfa", 2, 3),
    **at("fadas", 0.003, 0.01),
    **at("asyncsgd", 0.1, 0.3, label="momentum", server_optimizer="momentum"),
    **at("dcasgd", 0.1, 0.3, label="momentum-dcasgd", server_optimizer="momentum"),
    **at("rescaled", 2),
    **at("asyncbezier", 1, 2, label="chord", **CHORD),
    **at("asyncbezier", 1, 2, label="trajectory", **TRAJECTORY, point_epochs=4, curve_epochs=0),
    **at("asyncbezier", 1, 2, label="short-trajectory", **TRAJECTORY, point_epochs=2, curve_epochs=0),
    **at("asyncbezier", 1, label="trajectory-trained", **TRAJECTORY),
    **at("asyncbezier", 1, label="fewer-curve-epochs", **CHORD, point_epochs=3, curve_epochs=1),
    **at("asyncbezier", 1, label="proximal", **CHORD, proximal=0.1),
    **at("asyncbezier", 1, label="distilled", **CHORD, **DISTILLED),
    **at("asyncbezier", 1, label="half-distilled", **CHORD, **HALF_DISTILLED),
    **at("asyncbezier", 1, label="distilled-from-base", **DISTILLED),
    **at("asyncbezier", 1, label="threefold-distilled", **CHORD, **DISTILLED, **THREEFOLD),
    **at("asyncbezier", 2, label="short-distilled", **CHORD, **DISTILLED, **SHORT),
    **at("asyncbezier", 1.5, label="threefold-short-distilled", **CHORD, **DISTILLED, **SHORT, **THREEFOLD),
    **at("asyncbezier", 1.5, label="threefold-line", degree=1, **DISTILLED, **SHORT, **THREEFOLD),
    **at("asyncsgd", 2, label="taught-asyncsgd", **TAUGHT),
    **at("asyncsgd", 1.5, 3, label="threefold-taught-asyncsgd", **TAUGHT, **THREEFOLD),
    **at("asyncsgd", 2, label="quicker-taught-asyncsgd", **TAUGHT, **QUICKER),
    **at("fedortho", 3, 4, label="taught-fedortho", **TAUGHT),
    **at("fedortho", 3, label="taught-distance-fedortho", decay=1, **TAUGHT),
    **at("fedortho", 3, label="quicker-taught-fedortho", **TAUGHT, **QUICKER),
    **at("fedgs", 2, label="taught-fedgs", **TAUGHT),
    **at("fedgs", 2, label="quicker-taught-fedgs", **TAUGHT, **QUICKER),
    **at("asyncsgd", 1, 2, label="four-epochs", point_epochs=4),
    **at("fedortho", 3, 6, label="distance-fedortho", decay=1),
    **at("fedortho", 3, label="settling-fedortho", **SETTLING),
    **at("fedortho", 2, 3, label="quick-fedortho", **QUICK),
    **at("fedortho", 3, label="quicker-fedortho", **QUICKER),
    **at("asyncsgd", 1, 2, label="quick-asyncsgd", **QUICK),
    **at("asyncsgd", 1, label="quicker-asyncsgd", **QUICKER),
    **at("dcasgd", 1, 2, label="quick-dcasgd", **QUICK),
    **at("fedasync", 2, 3, label="quick-fedasync", **QUICK),
    **at("fedortho", 3, label="slow-fedortho", **SLOW),
    **at("fedortho", 3, label="warm-fedortho", **WARM),
    **at("fedortho", 3, label="warm-quick-fedortho", **WARM, **QUICK),
    **at("fedortho", 3, label="falling-fedortho", local_schedule="linear"),
    **at("fedortho", 3, label="nimble-fedortho", **NIMBLE),
    **at("dcasgd", 2, label="nimble-dcasgd", **NIMBLE),
    **at("fedortho", 3, label="quick-distance-fedortho", decay=1, **QUICK),
    **at("fedortho", 3, label="quicker-distance-fedortho", decay=1, **QUICKER),
    **at("fedortho", 3, label="quickest-distance-fedortho", decay=1, **QUICKEST),
    **at("asyncsgd", 1, label="quickest-asyncsgd", **QUICKEST),
    **at("dcasgd", 1, 2, label="quicker-dcasgd", **QUICKER),
    **at("fedgs", 2, label="quick-fedgs", **QUICK),
    **at("fedgs", 2, label="quicker-fedgs", **QUICKER),
    **at("fedortho", 1, 1.5, 3, label="threefold-distance-fedortho", decay=1, **THREEFOLD),
    **at("fedortho", 2, 3, label="threefold-fedortho", **THREEFOLD),
    **at("asyncsgd", 1, 1.5, 2, label="threefold-asyncsgd", **THREEFOLD),
    **at("dcasgd", 1, 1.5, label="threefold-dcasgd", **THREEFOLD),
    **at("fedasync", 2, 3, label="threefold-fedasync", **THREEFOLD),
    **at("fedgs", 1, 2, label="threefold-fedgs", **THREEFOLD),
    **at("asyncsgd", 1.5, label="quicker-asyncsgd", **QUICKER),
    **at("fedortho", 1.5, label="quicker-distance-fedortho", decay=1, **QUICKER),
    **at("asyncsgd", 2, 3, label="quicker-asyncsgd", **QUICKER),
    **at("delay-adaptive", 2, label="quicker-delay-adaptive", **QUICKER),
    **at("fedgs", 2),
    **at("fedgs", 3, label="quicker-fedgs", **QUICKER),
    **at("fedgs", 2, label="quickest-fedgs", **QUICKEST),
    **at("dcasgd", 2, label="quickest-dcasgd", **QUICKEST),
    **at("asyncsgd", 0.003, 0.01, label="adam", server_optimizer="adam"),
    **at("asyncsgd", 0.003, label="yogi", server_optimizer="yogi"),
    **at("fedortho", 0.2, 0.6, label="momentum-fedortho", server_optimizer="momentum"),
    **at("fedortho", 3, label="capped-distance-fedortho", **CAPPED),
    **at("fedortho", 3, label="quicker-capped-distance-fedortho", **CAPPED, **QUICKER),
    **at("fedortho", 3, label="smooth-fedortho", **SMOOTH),
    **at("fedortho", 3, label="half-smooth-distance-fedortho", decay=1, **HALF_SMOOTH),
    **at("fedortho", 3, 4, label="smooth-quicker-fedortho", **SMOOTH, **QUICKER),
    **at("asyncsgd", 2, label="smooth-quicker-asyncsgd", **SMOOTH, **QUICKER),
}
