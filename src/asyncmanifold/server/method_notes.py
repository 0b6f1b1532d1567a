"""What each method is: one line, its rule, its source, and where this library differs from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Group = Literal["asynchronous", "buffered", "cached", "adaptive", "curves", "synchronous"]


@dataclass(frozen=True, kw_only=True)
class MethodNote:
    """The description of one method.

    Rules use the library's notation: v is the offset that a client sends, d the drift of the model since the
    client's base version, τ the staleness, w the client's share of all examples, η_g ``global_lr``.
    """

    group: Group
    summary: str
    rule: str
    reference: str
    differs: str = ""


_PAPER = (
    "Licudi, Thakur, Molaei, Belgrave, Clifton: Aggregation on Learnable Manifolds for Asynchronous "
    "Federated Optimisation"
)
_SHARES = 'Steps are weighted by shares, as in the paper; `weighting = "none"` gives the published constant.'

METHOD_NOTES: dict[str, MethodNote] = {
    "fedasync": MethodNote(
        group="asynchronous",
        summary="moves the model towards each local model, wherever it started from",
        rule="Θ ← Θ + w η_g s(τ) (v − d)",
        reference="Xie, Koyejo, Gupta: Asynchronous Federated Optimization, 2019 (arXiv 1903.03934)",
        differs=_SHARES + " Choose the staleness function s by `staleness`: constant, polynomial or hinge.",
    ),
    "asyncsgd": MethodNote(
        group="asynchronous",
        summary="adds each update as it is: plain asynchronous steps",
        rule="Θ ← Θ + w η_g v",
        reference=_PAPER + ", where it is called AsyncTan",
    ),
    "fedortho": MethodNote(
        group="asynchronous",
        summary="always removes an update's component along the drift",
        rule="Θ ← Θ + w η_g (v − (⟨v,d⟩/⟨d,d⟩) d)",
        reference=_PAPER + " (OrthoDC with ϑ = 1)",
    ),
    "fedgs": MethodNote(
        group="asynchronous",
        summary="removes an update's component along the drift where they conflict: gradient surgery",
        rule="Θ ← Θ + w η_g v', with v' = v − (⟨v,d⟩/⟨d,d⟩) d if ⟨v,d⟩ ≤ 0, else v' = v",
        reference="Yu et al.: Gradient Surgery for Multi-Task Learning, NeurIPS 2020; here on updates, after "
        "the paper",
    ),
    "dcasgd": MethodNote(
        group="adaptive",
        summary="compensates delay to first order, with a diagonal estimate of the curvature",
        rule="Θ ← Θ + w η_g (v − λ ⊙ v ⊙ v ⊙ d), λ = λ₀/√(MeanSquare + ε)",
        reference="Zheng et al.: Asynchronous Stochastic Gradient Descent with Delay Compensation, ICML 2017",
        differs="Published for a gradient; here it acts on a local model's offset, with the same λ₀.",
    ),
    "delay-adaptive": MethodNote(
        group="asynchronous",
        summary="shortens the steps of updates that are later than usual",
        rule="Θ ← Θ + w η_g min(1, τ_c/τ) v, τ_c the number of clients",
        reference="Koloskova, Stich, Jaggi: Sharper Convergence Guarantees for Asynchronous SGD, NeurIPS "
        "2022; Mishchenko et al.: Asynchronous SGD Beats Minibatch SGD Under Arbitrary Delays, NeurIPS 2022",
        differs=_SHARES + " Published with steps of at most 1/(4Lτ) above τ_c: the smoothness L is unknown "
        "here, so steps continue at τ_c.",
    ),
    "rescaled": MethodNote(
        group="asynchronous",
        summary="lengthens the steps of slow clients, so that all contribute alike in a cycle",
        rule="Θ ← Θ + w η_g (T_i/T̄) v, T_i the client's measured time per job",
        reference="Mahran, Maranjyan, Richtárik: Rescaled Asynchronous SGD: Optimal Distributed Optimization "
        "under Data and System Heterogeneity, 2026 (arXiv 2605.13434)",
        differs=_SHARES
        + " Times are measured as a moving average; published for fixed, known ones. Only the "
        "abstract could be read.",
    ),
    "ringmaster": MethodNote(
        group="asynchronous",
        summary="discards updates that come too late, and stops jobs as soon as they are too late",
        rule="Θ ← Θ + w η_g v if τ < R; a job whose model is R versions old starts again from the latest",
        reference="Maranjyan, Tyurin, Richtárik: Ringmaster ASGD: The First Asynchronous SGD with Optimal "
        "Time Complexity, ICML 2025 (arXiv 2501.16168)",
        differs=_SHARES + " On Flower running jobs cannot be stopped: late updates are discarded.",
    ),
    "generalized-asyncsgd": MethodNote(
        group="asynchronous",
        summary="sends jobs by given probabilities, and makes up for them in the steps",
        rule="Θ ← Θ + w η_g v/(n p_i); client i is sent the next job with probability p_i",
        reference="Leconte et al.: Queuing Dynamics of Asynchronous Federated Learning, AISTATS 2024",
        differs=_SHARES
        + " A client has one job at a time, so probabilities are those among the clients that "
        "wait. The default is uniform: set `routing`, and `concurrency` below the number of clients.",
    ),
    "fedbuff": MethodNote(
        group="buffered",
        summary="adds up ten updates before the model moves",
        rule="Θ ← Θ + η_g Σ_k w_k v_k over the buffer of K updates",
        reference="Nguyen et al.: Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022",
        differs=_SHARES + ' The published 1/√(1 + τ) is `staleness = "polynomial"`.',
    ),
    "fadas": MethodNote(
        group="adaptive",
        summary="AMSGrad on means of five updates, with a rate that falls with their staleness",
        rule="Θ ← Θ + η_τ m/(√û + ε), m ← β₁m + (1−β₁)Δ, u ← β₂u + (1−β₂)Δ², û ← max(û, u), Δ the mean of K "
        "offsets; η_τ = η_g, or η_g/τ if the greatest staleness τ in the buffer is above τ_c",
        reference="Wang, Wang, Lu, Chen: FADAS: Towards Federated Adaptive Asynchronous Optimization, ICML "
        "2024 (arXiv 2407.18365)",
        differs="The rate of late steps is that of the authors' code, η_g/τ; the paper has min(η_g, 1/τ). "
        "Their code also has Adam's bias corrections, which the paper and this library do not.",
    ),
    "port": MethodNote(
        group="buffered",
        summary="the mean of ten updates, weighted by freshness and by agreement with the drift",
        rule="Θ ← Θ + η_g Σ_k p_k v_k / Σ_k p_k over K updates, p = w (a (1 + cos(v, d))/2 + b S/(S + τ))",
        reference="Su, Li: How Asynchronous can Federated Learning Be?, IWQoS 2022",
        differs="The weights are those of the authors' framework Plato, whose code compares with the model "
        "two rounds back; here it is the drift since the client's own base model.",
    ),
    "fedfa": MethodNote(
        group="buffered",
        summary="moves at every update, by the mean of the last five",
        rule="Θ ← Θ + η_g (1/K) Σ w v over the last K updates",
        reference="Xu et al.: FedFa: A Fully Asynchronous Training Paradigm for Federated Learning, IJCAI "
        "2024 (arXiv 2404.11015)",
        differs=_SHARES
        + " This is the published variant that sends differences; the other one takes the mean "
        "of the last K local models.",
    ),
    "ca2fl": MethodNote(
        group="cached",
        summary="ten updates at a time, calibrated by what every client sent last",
        rule="Θ ← Θ + η_g (h̄ + (1/K) Σ (v − h_i)) every K updates; h_i the client's last offset, h̄ the "
        "mean of all n at the last move",
        reference="Wang, Cao, Wu, Chen: Tackling the Data Heterogeneity in Asynchronous Federated Learning "
        "with Cached Update Calibration, ICLR 2024",
    ),
    "ace": MethodNote(
        group="cached",
        summary="moves at every update, by the mean of what all clients sent last",
        rule="Θ ← Θ + η_g (1/n) Σ_j U_j at every update, U_j the last offset of client j",
        reference="Chang et al.: Mitigating Participation Imbalance Bias in Asynchronous Federated Learning, "
        "2025 (arXiv 2511.19066)",
        differs="Clients that have not sent anything count as 0; the paper first collects an update of each.",
    ),
    "aced": MethodNote(
        group="cached",
        summary="as ACE, without what is older than fifty versions",
        rule="Θ ← Θ + η_g mean of U_j over clients whose last base model is at most B versions old",
        reference="Chang et al.: Mitigating Participation Imbalance Bias in Asynchronous Federated Learning, "
        "2025 (arXiv 2511.19066)",
    ),
    "ringleader": MethodNote(
        group="cached",
        summary="collects from every client, then moves once for each, by the mean of all clients' means",
        rule="Θ ← Θ + η_g (1/n) Σ_i G_i/b_i, n times in a round: once every client is in the table (G_i the "
        "sum of b_i offsets), at the update that filled it and at the next one of each other client, which "
        "is added first; what clients send after their turn is for the next round's table",
        reference="Maranjyan, Richtárik: Ringleader ASGD: The First Asynchronous SGD with Optimal Time "
        "Complexity under Data Heterogeneity, ICLR 2026 (arXiv 2509.22860)",
        differs="A job always starts from the latest model, as in the authors' code; in the paper a client "
        "keeps its model until its next turn. Both bound a step's age by 2n − 2 versions. The paper has "
        "γ ≤ 1/(8nL): a round moves by n means, so η_g should be about 1/n of another method's.",
    ),
    "fedcompass": MethodNote(
        group="adaptive",
        summary="gives clients as many epochs as let groups of them arrive together",
        rule="Θ ← Θ + w η_g v; epochs in [Q_min, Q_max] by the client's measured pace",
        reference="Li et al.: FedCompass: Efficient Cross-Silo Federated Learning on Heterogeneous Client "
        "Devices using a Computing Power-Aware Scheduler, ICLR 2024 (arXiv 2309.14675)",
        differs=_SHARES
        + " Epochs instead of local steps; every update is absorbed when it arrives, where the "
        "original waits for the group.",
    ),
    "asyncfeded": MethodNote(
        group="adaptive",
        summary="scales steps by their length over the drift, and adapts each client's epochs",
        rule="Θ ← Θ + S w η_g v, S = ‖v‖/‖d‖; K ← max(1, K + ⌊(γ̄ − ‖d‖/‖v‖) κ⌋)",
        reference="Wang et al.: AsyncFedED: Asynchronous Federated Learning with Euclidean Distance based "
        "Adaptive Weight Aggregation, 2022 (arXiv 2205.13797)",
        differs="S is bounded to [0, 10], since a tiny drift would make it arbitrarily large.",
    ),
    "asyncbezier": MethodNote(
        group="curves",
        summary="clients learn a low-loss curve to their model, and the server moves along it",
        rule="Θ ← γ(t*) with ‖γ(t*) − Θ‖ = w η_g ‖v'_2‖, on the quadratic curve of OrthoDC's v'_1, v'_2",
        reference=_PAPER,
        differs="OrthoDC acts on each control point; the paper's form would move the fixed first one.",
    ),
    "asyncbezier-ed": MethodNote(
        group="curves",
        summary="AsyncBezier with AsyncFedED's distance penalty",
        rule="Θ ← γ(t*) with ‖γ(t*) − Θ‖ = S w η_g ‖v'_2‖, S = ‖v'_2‖/‖d‖",
        reference=_PAPER,
        differs="S is bounded to [0, 10], since a tiny drift would make it arbitrarily large.",
    ),
    "asyncdisc": MethodNote(
        group="curves",
        summary="clients learn a low-loss disc that holds their model, and the server follows its geodesic",
        rule="Θ ← γ(t*) with ‖γ(t*) − Θ‖ = w η_g ‖v'_5‖, γ the geodesic on the disc of OrthoDC's v'_1 … v'_5",
        reference=_PAPER + " (section 3: 𝓜 = D_1(R²))",
        differs="The paper draws a disc and tries curves only: polynomials and measure are chosen here.",
    ),
    "orthomean": MethodNote(
        group="asynchronous",
        summary="FedOrtho with long steps, scaled by distance; what is returned is a mean of late models",
        rule="Θ ← Θ + min(1, w η_g ‖v'‖/‖d‖) v' with v' = v − (⟨v,d⟩/⟨d,d⟩) d, for d = 0 with w η_g v; "
        "returned is M ← M + 8/(t + 7) (Θ − M), t = 1, 2, …",
        reference="This library, by a search over compositions of parts on validation data "
        "(results/README.md); the mean: Shamir, Zhang: Stochastic Gradient Descent for Non-smooth "
        "Optimization, ICML 2013 (arXiv 1212.1824), over about an eighth of the run",
    ),
    "fedavg": MethodNote(
        group="synchronous",
        summary="waits for every client, then takes the weighted mean",
        rule="Θ ← Θ + η_g Σ_k w_k v_k / Σ_k w_k over the clients of a round",
        reference="McMahan et al.: Communication-Efficient Learning of Deep Networks from Decentralized "
        "Data, AISTATS 2017",
        differs="A round counts as many updates as clients took part, so that methods are compared at equal "
        "communication and on one clock.",
    ),
}
"""A note for every method in ``METHODS``."""
